"""Triton kernels for the 1x1 convolutions that widen; widen.py explains them."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from .norm_kernels import activate, sums, update_running


@triton.jit
def gram(
    x_d, part_ptr, s_ptr, h_ptr, M, programs,
    PRO: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Parts of S = f(X)^T f(X) and of s = sum(f(X)), one after the other; f(X) = relu(X*s+h) when PRO."""
    pid = tl.program_id(0)
    rk = tl.arange(0, K)
    s = tl.load(s_ptr + rk)
    h = tl.load(h_ptr + rk)
    square = tl.zeros([K, K], tl.float32)
    total = tl.zeros([K], tl.float32)
    for t in tl.range(pid, tl.cdiv(M, BM), programs, num_stages=STAGES):
        x = activate(x_d.load([t * BM, 0]), s, h, t * BM, M, PRO, EVEN, BM)
        square = tl.dot(tl.trans(x), x, square)
        total += tl.sum(x.to(tl.float32), 0)
    at = part_ptr + pid * (K * K + K)
    tl.store(at + rk[:, None] * K + rk[None, :], square)
    tl.store(at + K * K + rk, total)


@triton.jit
def moments(gram_ptr, w_ptr, part_ptr, N, K, M, BN: tl.constexpr, BK: tl.constexpr):
    """Parts (by columns of W) of mean(c) and var(c): part[tile, 0] = W s / m, part[tile, 1] = sum of (W cov) * W."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    r2 = tl.program_id(1) * BK + tl.arange(0, BK)
    count = M.to(tl.float32)
    s_ptr = gram_ptr + K * K
    s2 = tl.load(s_ptr + r2) / count
    t = tl.zeros([BN, BK], tl.float32)
    for k in range(0, K, BK):
        r1 = k + tl.arange(0, BK)
        cov = (
            tl.load(gram_ptr + r1[:, None] * K + r2[None, :]) / count
            - (tl.load(s_ptr + r1) / count)[:, None] * s2[None, :]
        )
        t = tl.dot(tl.load(w_ptr + rn[:, None] * K + r1[None, :]).to(tl.float32), cov, t)
    w = tl.load(w_ptr + rn[:, None] * K + r2[None, :]).to(tl.float32)
    at = part_ptr + tl.program_id(1) * 2 * N + rn
    tl.store(at, tl.sum(w * s2[None, :], 1))
    tl.store(at + N, tl.sum(t * w, 1))


@triton.jit
def finish_forward(
    part_ptr, gram_ptr, w_ptr, gamma_ptr, beta_ptr, vec_ptr, ws_ptr, rmean_ptr, rvar_ptr, N, K, M, parts, momentum, eps,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """vec = [scale, shift, mean, 1/std, shift for ws], ws = scale*W in bf16, and the running statistics."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    count = M.to(tl.float32)
    s_ptr = gram_ptr + K * K
    mean, var = sums(part_ptr, N, parts, rn, BP, BN)
    var = tl.maximum(var, 0.0)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(gamma_ptr + rn) * rstd
    beta = tl.load(beta_ptr + rn)
    moved = tl.zeros([BN], tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        ws = (tl.load(w_ptr + rn[:, None] * K + rk[None, :]).to(tl.float32) * scale[:, None]).to(tl.bfloat16)
        tl.store(ws_ptr + rn[:, None] * K + rk[None, :], ws)
        moved += tl.sum(ws.to(tl.float32) * (tl.load(s_ptr + rk) / count)[None, :], 1)
    tl.store(vec_ptr + rn, scale)
    tl.store(vec_ptr + N + rn, beta - mean * scale)
    tl.store(vec_ptr + 2 * N + rn, mean)
    tl.store(vec_ptr + 3 * N + rn, rstd)
    tl.store(vec_ptr + 4 * N + rn, beta - moved)
    update_running(rmean_ptr, rvar_ptr, rn, mean, var, count, momentum)


@triton.jit
def conv1x1_out(
    x_d, w_d, r_d, x2_d, w2_d, y_d, wn_d, yn_d, part_ptr, xs_ptr, xh_ptr, x2s_ptr, x2h_ptr, h_ptr, s2_ptr, h2_ptr,
    M, N, programs,
    PRO: tl.constexpr, RES: tl.constexpr, PRO2: tl.constexpr, NEXT: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, K2: tl.constexpr, NN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Y = relu(f(X) W^T + h + residual) with the scaled W; NEXT: also the next block's convolution of Y, and its sums.

    RES 1: R; 2: R*s2+h2; 3: f2(X2) W2^T + h2.
    """
    pid = tl.program_id(0)
    tiles_n = N // BN
    cn = pid % tiles_n * BN
    pid_m = pid // tiles_n
    rn = cn + tl.arange(0, BN)
    w = w_d.load([cn, 0])
    xs = tl.load(xs_ptr + tl.arange(0, K))
    xh = tl.load(xh_ptr + tl.arange(0, K))
    h = tl.load(h_ptr + rn)
    if RES == 2:
        s2 = tl.load(s2_ptr + rn)
    if RES > 1:
        h += tl.load(h2_ptr + rn)
    if RES == 3:
        w2 = w2_d.load([cn, 0])
        x2s = tl.load(x2s_ptr + tl.arange(0, K2))
        x2h = tl.load(x2h_ptr + tl.arange(0, K2))
    if NEXT:
        wn = wn_d.load([0, 0])
        total = tl.zeros([NN], tl.float32)
        square = tl.zeros([NN], tl.float32)
    for t in tl.range(pid_m, tl.cdiv(M, BM), programs, num_stages=STAGES):
        rm = t * BM
        x = activate(x_d.load([rm, 0]), xs, xh, rm, M, PRO, EVEN, BM)
        if RES == 1:
            acc = tl.trans(r_d.load([rm, cn])).to(tl.float32) + h[:, None]
        if RES == 2:
            acc = tl.trans(r_d.load([rm, cn])).to(tl.float32) * s2[:, None] + h[:, None]
        if RES == 3:
            acc = tl.zeros([BN, BM], tl.float32) + h[:, None]
            x2 = activate(x2_d.load([rm, 0]), x2s, x2h, rm, M, PRO2, EVEN, BM)
            acc = tl.dot(w2, tl.trans(x2), acc)
        acc = tl.maximum(tl.dot(w, tl.trans(x), acc), 0.0)
        if NEXT and not EVEN:
            acc = tl.where((rm + tl.arange(0, BM))[None, :] < M, acc, 0.0)
        y = tl.trans(acc.to(tl.bfloat16))
        y_d.store([rm, cn], y)
        if NEXT:
            c = tl.dot(wn, tl.trans(y)).to(tl.bfloat16)
            f = c.to(tl.float32)
            total += tl.sum(f, 1)
            square += tl.sum(f * f, 1)
            yn_d.store([rm, 0], tl.trans(c))
    if NEXT:
        r = tl.arange(0, NN)
        tl.store(part_ptr + pid_m * 2 * NN + r, total)
        tl.store(part_ptr + (pid_m * 2 + 1) * NN + r, square)


@triton.jit
def finish_backward(
    part_ptr, g_ptr, w_ptr, gamma_ptr, vec_ptr, ab_ptr, wa_ptr, wb_ptr, dgamma_ptr, dbeta_ptr, N, K, parts, M,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """From sum(g) and G = g^T x: dgamma, dbeta, ab = [a, b], and aW and bW in bf16."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    total, _ = sums(part_ptr, N, parts, rn, BP, BN)
    count = M.to(tl.float32)
    dot = tl.zeros([BN], tl.float32)
    for k in range(0, K, BK):
        at = rn[:, None] * K + k + tl.arange(0, BK)[None, :]
        dot += tl.sum(tl.load(w_ptr + at).to(tl.float32) * tl.load(g_ptr + at), 1)
    rstd = tl.load(vec_ptr + 3 * N + rn)
    dgamma = (dot - tl.load(vec_ptr + 2 * N + rn) * total) * rstd
    a = tl.load(gamma_ptr + rn) * rstd
    b = -a * rstd * dgamma / count
    tl.store(dgamma_ptr + rn, dgamma)
    tl.store(dbeta_ptr + rn, total)
    tl.store(ab_ptr + rn, a)
    tl.store(ab_ptr + N + rn, b)
    for k in range(0, K, BK):
        at = rn[:, None] * K + k + tl.arange(0, BK)[None, :]
        w = tl.load(w_ptr + at).to(tl.float32)
        tl.store(wa_ptr + at, (w * a[:, None]).to(tl.bfloat16))
        tl.store(wb_ptr + at, (w * b[:, None]).to(tl.bfloat16))


@triton.jit
def finish_wgrad(g_ptr, w_ptr, gram_ptr, ab_ptr, total_ptr, dw_ptr, N, K, M, BN: tl.constexpr, BK: tl.constexpr):
    """dW = a*(G - sum(g) mean(x)^T) + b*m*(W cov(x)), the centered form of the formula in operations.py."""
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    r2 = tl.program_id(1) * BK + tl.arange(0, BK)
    s_ptr = gram_ptr + K * K
    s2 = tl.load(s_ptr + r2) / M.to(tl.float32)
    t = tl.zeros([BN, BK], tl.float32)
    for k in range(0, K, BK):
        r1 = k + tl.arange(0, BK)
        cov = tl.load(gram_ptr + r1[:, None] * K + r2[None, :]) - tl.load(s_ptr + r1)[:, None] * s2[None, :]
        t = tl.dot(tl.load(w_ptr + rn[:, None] * K + r1[None, :]).to(tl.float32), cov, t)
    at = rn[:, None] * K + r2[None, :]
    g = tl.load(g_ptr + at) - tl.load(total_ptr + rn)[:, None] * s2[None, :]
    tl.store(dw_ptr + at, tl.load(ab_ptr + rn)[:, None] * g + tl.load(ab_ptr + N + rn)[:, None] * t)


@triton.jit
def finish_dgrad(
    w_ptr, wa_ptr, wb_ptr, total_ptr, s_ptr, v_ptr, shift_ptr, N, M,
    GIVEN: tl.constexpr, K: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """V = W^T bW (unless it is GIVEN) and the constant that makes the mean of dx zero, as after any normalization."""
    rc = tl.program_id(0) * BC + tl.arange(0, BC)
    rk = tl.arange(0, K)
    acc = tl.zeros([K, BC], tl.float32)
    shift = tl.zeros([BC], tl.float32)
    for n in range(0, N, BN):
        rn = n + tl.arange(0, BN)
        if not GIVEN:
            w = tl.load(w_ptr + rn[:, None] * K + rk[None, :])
            acc = tl.dot(tl.trans(w), tl.load(wb_ptr + rn[:, None] * K + rc[None, :]), acc)
        shift += tl.sum(
            tl.load(wa_ptr + rn[:, None] * K + rc[None, :]).to(tl.float32) * tl.load(total_ptr + rn)[:, None], 0
        )
    at = v_ptr + rk[:, None] * K + rc[None, :]
    if GIVEN:
        v = tl.load(at)
    else:
        v = acc.to(tl.bfloat16)
        tl.store(at, v)
    shift += tl.sum(v.to(tl.float32) * tl.load(s_ptr + rk)[:, None], 0)
    tl.store(shift_ptr + rc, -shift / M.to(tl.float32))


@triton.jit
def conv1x1_dgrad(
    g_d, wa_d, v_d, x_d, dx_d, ps_ptr, shift_ptr, xs_ptr, xh_ptr, mean_ptr, M, N, programs,
    PRO: tl.constexpr, EPI: tl.constexpr, STREAM: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dX = G aW + f(X) V + shift; EPI: masked where f(X) <= 0, with sum(dX) and sum(dX*(x-mean))."""
    pid = tl.program_id(0)
    rk = tl.arange(0, K)
    xs = tl.load(xs_ptr + rk)
    xh = tl.load(xh_ptr + rk)
    shift = tl.load(shift_ptr + rk)
    total = tl.zeros([K], tl.float32)
    dot = tl.zeros([K], tl.float32)
    v = v_d.load([0, 0])
    if STREAM:
        w = wa_d.load([0, 0])
        for t in tl.range(pid, tl.cdiv(M, BM), programs, num_stages=STAGES):
            rm = t * BM
            raw = x_d.load([rm, 0])
            x = activate(raw, xs, xh, rm, M, PRO, EVEN, BM)
            acc = tl.zeros([K, BM], tl.float32) + shift[:, None]
            acc = tl.dot(tl.trans(w), tl.trans(g_d.load([rm, 0])), acc)
            acc = tl.dot(tl.trans(v), tl.trans(x), acc)
            total, dot = _dgrad_end(acc, raw, x, rm, dx_d, mean_ptr, total, dot, EPI, K)
    else:
        for t in tl.range(pid, tl.cdiv(M, BM), programs, flatten=FLAT):
            rm = t * BM
            acc = tl.zeros([K, BM], tl.float32) + shift[:, None]
            for n in range(0, N, BN):
                acc = tl.dot(tl.trans(wa_d.load([n, 0])), tl.trans(g_d.load([rm, n])), acc)
            raw = x_d.load([rm, 0])
            x = activate(raw, xs, xh, rm, M, PRO, EVEN, BM)
            acc = tl.dot(tl.trans(v), tl.trans(x), acc)
            total, dot = _dgrad_end(acc, raw, x, rm, dx_d, mean_ptr, total, dot, EPI, K)
    if EPI:
        tl.store(ps_ptr + pid * 2 * K + rk, total)
        tl.store(ps_ptr + (pid * 2 + 1) * K + rk, dot)


@triton.jit
def _dgrad_end(acc, raw, x, rm, dx_d, mean_ptr, total, dot, EPI: tl.constexpr, K: tl.constexpr):
    if EPI:
        acc = tl.where(tl.trans(x).to(tl.float32) > 0, acc, 0.0)
    o = acc.to(tl.bfloat16)
    dx_d.store([rm, 0], tl.trans(o))
    if EPI:
        f = o.to(tl.float32)
        total += tl.sum(f, 1)
        dot += tl.sum(f * (tl.trans(raw).to(tl.float32) - tl.load(mean_ptr + tl.arange(0, K))[:, None]), 1)
    return total, dot
