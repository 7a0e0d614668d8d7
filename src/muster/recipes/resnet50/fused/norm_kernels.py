"""Triton kernels for batch normalization of channels-last bf16 activations, viewed as matrices [pixels, channels]."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def activate(x, s, h, rm, M, PRO: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr):
    """relu(x*s+h) in bf16, zero in rows past the end."""
    if PRO:
        f = tl.maximum(x.to(tl.float32) * s[None, :] + h[None, :], 0.0)
        if not EVEN:
            f = tl.where((rm + tl.arange(0, BM))[:, None] < M, f, 0.0)
        x = f.to(tl.bfloat16)
    return x


@triton.jit
def even_row(m, M, IH, IW):
    """Position of pixel m in a map of the even rows and columns, and whether it is in that map."""
    w = m % IW
    h = m // IW % IH
    n = m // (IW * IH)
    return (n * ((IH + 1) // 2) + h // 2) * ((IW + 1) // 2) + w // 2, (w % 2 == 0) & (h % 2 == 0) & (m < M)


@triton.jit
def sum_parts(part_ptr, out_ptr, size, parts, BP: tl.constexpr, BC: tl.constexpr):
    """out[i] = sum over p of part[p, i]."""
    rc = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros([BP, BC], tl.float32)
    for p in range(0, parts, BP):
        rp = p + tl.arange(0, BP)
        live = (rp[:, None] < parts) & (rc[None, :] < size)
        acc += tl.load(part_ptr + rp[:, None].to(tl.int64) * size + rc[None, :], mask=live, other=0.0)
    tl.store(out_ptr + rc, tl.sum(acc, 0), mask=rc < size)


@triton.jit
def sums(part_ptr, C, parts, rc, BP: tl.constexpr, BC: tl.constexpr):
    """Both sums of the columns rc from their parts."""
    a = tl.zeros([BP, BC], tl.float32)
    b = tl.zeros([BP, BC], tl.float32)
    for p in range(0, parts, BP):
        rp = p + tl.arange(0, BP)
        at = part_ptr + rp[:, None] * 2 * C + rc[None, :]
        a += tl.load(at, mask=rp[:, None] < parts, other=0.0)
        b += tl.load(at + C, mask=rp[:, None] < parts, other=0.0)
    return tl.sum(a, 0), tl.sum(b, 0)


@triton.jit
def update_running(mean_ptr, var_ptr, rc, mean, var, count, momentum):
    """The running statistics as torch.nn.BatchNorm2d keeps them."""
    old = tl.load(mean_ptr + rc)
    tl.store(mean_ptr + rc, old + momentum * (mean - old))
    old = tl.load(var_ptr + rc)
    tl.store(var_ptr + rc, old + momentum * (var * (count / (count - 1.0)) - old))


@triton.jit
def finish_forward(
    part_ptr, gamma_ptr, beta_ptr, vec_ptr, rmean_ptr, rvar_ptr, C, parts, M, momentum, eps,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From sums to vec = [scale, shift, mean, 1/std], and the running statistics."""
    rc = tl.program_id(0) * BC + tl.arange(0, BC)
    total, square = sums(part_ptr, C, parts, rc, BP, BC)
    count = M.to(tl.float32)
    mean = total / count
    var = tl.maximum(square / count - mean * mean, 0.0)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(gamma_ptr + rc) * rstd
    tl.store(vec_ptr + rc, scale)
    tl.store(vec_ptr + C + rc, tl.load(beta_ptr + rc) - mean * scale)
    tl.store(vec_ptr + 2 * C + rc, mean)
    tl.store(vec_ptr + 3 * C + rc, rstd)
    update_running(rmean_ptr, rvar_ptr, rc, mean, var, count, momentum)


@triton.jit
def finish_backward(
    part_ptr, gamma_ptr, vec_ptr, abc_ptr, dgamma_ptr, dbeta_ptr, C, parts, M, BP: tl.constexpr, BC: tl.constexpr
):
    """From sum(g), sum(g*(c-mean)) to dgamma, dbeta and abc with dC = a*g + b*c + c0."""
    rc = tl.program_id(0) * BC + tl.arange(0, BC)
    total, dot = sums(part_ptr, C, parts, rc, BP, BC)
    count = M.to(tl.float32)
    mean = tl.load(vec_ptr + 2 * C + rc)
    rstd = tl.load(vec_ptr + 3 * C + rc)
    dgamma = dot * rstd
    a = tl.load(gamma_ptr + rc) * rstd
    b = -a * rstd * dgamma / count
    tl.store(dgamma_ptr + rc, dgamma)
    tl.store(dbeta_ptr + rc, total)
    tl.store(abc_ptr + rc, a)
    tl.store(abc_ptr + C + rc, b)
    tl.store(abc_ptr + 2 * C + rc, -a * total / count - b * mean)


@triton.jit
def bn_stats(x_ptr, part_ptr, M, C, programs, BM: tl.constexpr, BC: tl.constexpr):
    """Sum and sum of squares of every column."""
    rc = tl.program_id(1) * BC + tl.arange(0, BC)
    pid = tl.program_id(0)
    a = tl.zeros([BM, BC], tl.float32)
    b = tl.zeros([BM, BC], tl.float32)
    for t in tl.range(pid, tl.cdiv(M, BM), programs, num_stages=3):
        rm = t * BM + tl.arange(0, BM)
        at = x_ptr + tl.cast(t * BM, tl.int64) * C + tl.arange(0, BM)[:, None] * C + rc[None, :]
        x = tl.load(at, mask=rm[:, None] < M, other=0.0).to(tl.float32)
        a += x
        b += x * x
    tl.store(part_ptr + pid * 2 * C + rc, tl.sum(a, 0))
    tl.store(part_ptr + (pid * 2 + 1) * C + rc, tl.sum(b, 0))


@triton.jit
def bn_apply(
    x_ptr, r_ptr, y_ptr, s1_ptr, h1_ptr, s2_ptr, h2_ptr, M, C, RES: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Y = relu(X*s1+h1 (+ R when RES is 1, + R*s2+h2 when it is 2))."""
    rc = tl.program_id(1) * BC + tl.arange(0, BC)
    pid = tl.program_id(0)
    rm = pid * BM + tl.arange(0, BM)
    off = tl.arange(0, BM)[:, None] * C + rc[None, :]
    base = tl.cast(pid * BM, tl.int64) * C
    live = rm[:, None] < M
    f = (
        tl.load(x_ptr + base + off, mask=live).to(tl.float32) * tl.load(s1_ptr + rc)[None, :]
        + tl.load(h1_ptr + rc)[None, :]
    )
    if RES > 0:
        r = tl.load(r_ptr + base + off, mask=live).to(tl.float32)
        if RES == 2:
            r = r * tl.load(s2_ptr + rc)[None, :] + tl.load(h2_ptr + rc)[None, :]
        f += r
    tl.store(y_ptr + base + off, tl.maximum(f, 0.0).to(tl.bfloat16), mask=live)


@triton.jit
def copy_sum(
    x_ptr, y_ptr, part_ptr, s_ptr, h_ptr, M, C, IH, IW, programs,
    PRO: tl.constexpr, HALF: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Y = X, or relu(X*s+h) when PRO, or the even rows and columns of the maps in X when HALF; with its column sums."""
    rc = tl.program_id(1) * BC + tl.arange(0, BC)
    pid = tl.program_id(0)
    s = tl.load(s_ptr + rc)[None, :]
    h = tl.load(h_ptr + rc)[None, :]
    a = tl.zeros([BM, BC], tl.float32)
    for t in tl.range(pid, tl.cdiv(M, BM), programs, num_stages=3):
        rm = t * BM + tl.arange(0, BM)
        row = rm
        if HALF:
            ow = (IW + 1) // 2
            oh = (IH + 1) // 2
            row = (rm // (ow * oh) * IH + rm // ow % oh * 2) * IW + rm % ow * 2
        live = rm[:, None] < M
        f = tl.load(x_ptr + row.to(tl.int64)[:, None] * C + rc[None, :], mask=live, other=0.0).to(tl.float32)
        if PRO:
            f = tl.where(live, tl.maximum(f * s + h, 0.0), 0.0)
        y = f.to(tl.bfloat16)
        tl.store(y_ptr + tl.cast(t * BM, tl.int64) * C + tl.arange(0, BM)[:, None] * C + rc[None, :], y, mask=live)
        a += y.to(tl.float32)
    tl.store(part_ptr + pid * C + rc, tl.sum(a, 0))


@triton.jit
def bn_reduce(
    g_ptr, r_ptr, c_ptr, m_ptr, gm_ptr, s_ptr, h_ptr, mean_ptr, part_ptr, M, C, IH, IW, programs,
    RES: tl.constexpr, MASK: tl.constexpr, KEEP: tl.constexpr, DOT: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """sum(g) and, when DOT, sum(g*(c-mean)), g being G (+ R, as in conv1x1_backward) and masked; KEEP stores that g.

    MASK 0: no mask; 1: g where m > 0; 2: g where c*s+h > 0.
    """
    rc = tl.program_id(1) * BC + tl.arange(0, BC)
    pid = tl.program_id(0)
    if DOT:
        mean = tl.load(mean_ptr + rc)[None, :]
        s = tl.load(s_ptr + rc)[None, :]
        h = tl.load(h_ptr + rc)[None, :]
    a = tl.zeros([BM, BC], tl.float32)
    b = tl.zeros([BM, BC], tl.float32)
    for t in tl.range(pid, tl.cdiv(M, BM), programs, num_stages=3):
        rm = t * BM + tl.arange(0, BM)
        live = rm[:, None] < M
        off = tl.arange(0, BM)[:, None] * C + rc[None, :]
        base = tl.cast(t * BM, tl.int64) * C
        g = tl.load(g_ptr + base + off, mask=live, other=0.0)
        if RES == 1:
            g = (g.to(tl.float32) + tl.load(r_ptr + base + off, mask=live, other=0.0).to(tl.float32)).to(tl.bfloat16)
        if RES == 2:
            row, there = even_row(rm, M, IH, IW)
            r = tl.load(r_ptr + row[:, None] * C + rc[None, :], mask=there[:, None], other=0.0)
            g = (g.to(tl.float32) + r.to(tl.float32)).to(tl.bfloat16)
        if DOT:
            c = tl.load(c_ptr + base + off, mask=live, other=0.0).to(tl.float32)
            if MASK == 2:
                g = tl.where(c * s + h > 0, g, 0.0)
        if MASK == 1:
            g = tl.where(tl.load(m_ptr + base + off, mask=live, other=0.0) > 0, g, 0.0)
        if KEEP:
            tl.store(gm_ptr + base + off, g, mask=live)
        f = g.to(tl.float32)
        a += f
        if DOT:
            b += f * (c - mean)
    tl.store(part_ptr + pid * 2 * C + rc, tl.sum(a, 0))
    tl.store(part_ptr + (pid * 2 + 1) * C + rc, tl.sum(b, 0))


@triton.jit
def bn_backward(
    g_ptr, c_ptr, dc_ptr, a_ptr, b_ptr, c0_ptr, s_ptr, h_ptr, M, C, BM: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """dC = a*g + b*c + c0, g masked where c*s+h <= 0."""
    rc = tl.program_id(1) * BC + tl.arange(0, BC)
    pid = tl.program_id(0)
    rm = pid * BM + tl.arange(0, BM)
    live = rm[:, None] < M
    off = tl.arange(0, BM)[:, None] * C + rc[None, :]
    base = tl.cast(pid * BM, tl.int64) * C
    g = tl.load(g_ptr + base + off, mask=live).to(tl.float32)
    c = tl.load(c_ptr + base + off, mask=live).to(tl.float32)
    g = tl.where(c * tl.load(s_ptr + rc)[None, :] + tl.load(h_ptr + rc)[None, :] > 0, g, 0.0)
    dc = g * tl.load(a_ptr + rc)[None, :] + c * tl.load(b_ptr + rc)[None, :] + tl.load(c0_ptr + rc)[None, :]
    tl.store(dc_ptr + base + off, dc.to(tl.bfloat16), mask=live)
