"""Triton kernels for the 1x1 convolutions that do not widen, with the normalization before and after them.

Activations are channels-last bf16, viewed as matrices [pixels, channels]. A 1x1 convolution is a matrix product, so
batch normalization fuses with it: normalization and ReLU of the previous layer happen while its input is read, and the
sums that the next normalization needs are computed while its output is written. Products are computed transposed,
[channels, pixels], so that the sum over pixels stays inside a thread. The compiler prefetches a load only if a product
depends on it, so residuals are the initial value of an accumulator. widen.py has the convolutions that widen.
"""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from .norm_kernels import activate, even_row


@triton.jit
def conv1x1_forward(
    x_d, w_d, y_d, part_ptr, s_ptr, h_ptr, M, N, K, programs,
    PRO: tl.constexpr, STREAM: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Y = f(X) W^T with the sum and the sum of squares of each column of Y; f(X) = relu(X*s+h) when PRO, else X.

    STREAM: BK covers K, so W and the vectors are read once per program. FLAT: one pipeline across all tiles.
    """
    pid = tl.program_id(0)
    tiles_n = N // BN
    cn = pid % tiles_n * BN
    pid_m = pid // tiles_n
    total = tl.zeros([BN], tl.float32)
    square = tl.zeros([BN], tl.float32)
    if STREAM:
        w = w_d.load([cn, 0])
        rk = tl.arange(0, BK)
        s = tl.load(s_ptr + rk)
        h = tl.load(h_ptr + rk)
        for t in tl.range(pid_m, tl.cdiv(M, BM), programs, num_stages=STAGES):
            rm = t * BM
            x = activate(x_d.load([rm, 0]), s, h, rm, M, PRO, EVEN, BM)
            c = tl.dot(w, tl.trans(x)).to(tl.bfloat16)
            f = c.to(tl.float32)
            total += tl.sum(f, 1)
            square += tl.sum(f * f, 1)
            y_d.store([rm, cn], tl.trans(c))
    else:
        for t in tl.range(pid_m, tl.cdiv(M, BM), programs, flatten=FLAT):
            rm = t * BM
            acc = tl.zeros([BN, BM], tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                x = x_d.load([rm, k])
                if PRO:
                    x = activate(x, tl.load(s_ptr + rk), tl.load(h_ptr + rk), rm, M, PRO, EVEN, BM)
                acc = tl.dot(w_d.load([cn, k]), tl.trans(x), acc)
            c = acc.to(tl.bfloat16)
            f = c.to(tl.float32)
            total += tl.sum(f, 1)
            square += tl.sum(f * f, 1)
            y_d.store([rm, cn], tl.trans(c))
    rn = cn + tl.arange(0, BN)
    tl.store(part_ptr + pid_m * 2 * N + rn, total)
    tl.store(part_ptr + (pid_m * 2 + 1) * N + rn, square)


@triton.jit
def conv1x1_backward(
    g_d, c_d, x_d, w_d, r_d, dx_d, r_ptr, pw_ptr, ps_ptr,
    ya_ptr, yb_ptr, yc_ptr, ys_ptr, yh_ptr, xs_ptr, xh_ptr, mean_ptr, M, K, IH, IW, programs,
    PRO_X: tl.constexpr, RES: tl.constexpr, DOT: tl.constexpr,
    EVEN: tl.constexpr, BM: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Both gradients of a 1x1 convolution with few outputs in one pass over its activations.

    dY = ya*g + yb*c + yc is the gradient of the normalization after it, g masked where c*ys+yh <= 0 (its ReLU); X
    is the input, or relu(x*xs+xh) when PRO_X; dX = dY W (+ R; RES 2: R has only the even rows and columns), masked
    where X <= 0; sum(dX) and, when DOT, sum(dX*(x-mean)) are taken for the normalization before.
    """
    pid = tl.program_id(0)
    tiles_k = K // BK
    ck = (pid % tiles_k) * BK
    pid_m = pid // tiles_k
    rn = tl.arange(0, N)
    rk = ck + tl.arange(0, BK)
    ya = tl.load(ya_ptr + rn)
    yb = tl.load(yb_ptr + rn)
    yc = tl.load(yc_ptr + rn)
    ys = tl.load(ys_ptr + rn)
    yh = tl.load(yh_ptr + rn)
    if PRO_X:
        xs = tl.load(xs_ptr + rk)
        xh = tl.load(xh_ptr + rk)
    if DOT:
        mean = tl.load(mean_ptr + rk)
    w = w_d.load([0, ck])
    dw = tl.zeros([BK, N], tl.float32)
    total = tl.zeros([BK], tl.float32)
    dot = tl.zeros([BK], tl.float32)
    for t in tl.range(pid_m, tl.cdiv(M, BM), programs, num_stages=STAGES):
        rm = t * BM
        dy = output_gradient(g_d, c_d, ya, yb, yc, ys, yh, rm, M, EVEN, BM)
        raw = x_d.load([rm, ck])
        x = raw
        if PRO_X:
            x = tl.maximum(raw.to(tl.float32) * xs[None, :] + xh[None, :], 0.0).to(tl.bfloat16)
        acc = tl.zeros([BK, BM], tl.float32)
        if RES == 1:
            acc = tl.trans(r_d.load([rm, ck])).to(tl.float32)
        if RES == 2:
            row, there = even_row(rm + tl.arange(0, BM), M, IH, IW)
            r = tl.load(r_ptr + row[:, None] * K + rk[None, :], mask=there[:, None], other=0.0)
            acc = tl.trans(r).to(tl.float32)
        acc = tl.dot(tl.trans(w), tl.trans(dy), acc)
        dw = tl.dot(tl.trans(x), dy, dw)
        o = tl.where(tl.trans(x).to(tl.float32) > 0, acc, 0.0).to(tl.bfloat16)
        f = o.to(tl.float32)
        total += tl.sum(f, 1)
        if DOT:
            dot += tl.sum(f * (tl.trans(raw).to(tl.float32) - mean[:, None]), 1)
        dx_d.store([rm, ck], tl.trans(o))
    tl.store(pw_ptr + pid_m.to(tl.int64) * N * K + rn[None, :] * K + rk[:, None], dw)
    tl.store(ps_ptr + pid_m * 2 * K + rk, total)
    tl.store(ps_ptr + (pid_m * 2 + 1) * K + rk, dot)


@triton.jit
def output_gradient(g_d, c_d, ya, yb, yc, ys, yh, rm, M, EVEN: tl.constexpr, BM: tl.constexpr):
    """ya*g + yb*c + yc in bf16, g masked where c*ys+yh <= 0; zero in rows past the end."""
    c = c_d.load([rm, 0]).to(tl.float32)
    g = tl.where(c * ys[None, :] + yh[None, :] > 0, g_d.load([rm, 0]).to(tl.float32), 0.0)
    dy = g * ya[None, :] + c * yb[None, :] + yc[None, :]
    if not EVEN:
        dy = tl.where((rm + tl.arange(0, BM))[:, None] < M, dy, 0.0)
    return dy.to(tl.bfloat16)


@triton.jit
def conv1x1_wgrad(
    g_d, x_d, pw_ptr, xs_ptr, xh_ptr, M, N, K, splits,
    PRO_X: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """G^T f(X), one part per split of the pixels; f(X) = relu(X*xs+xh) when PRO_X."""
    pid = tl.program_id(0)
    tiles_n = N // BN
    tiles_k = K // BK
    cn = (pid % tiles_n) * BN
    ck = (pid // tiles_n % tiles_k) * BK
    split = pid // (tiles_n * tiles_k)
    rn = cn + tl.arange(0, BN)
    rk = ck + tl.arange(0, BK)
    xs = tl.load(xs_ptr + rk)
    xh = tl.load(xh_ptr + rk)
    dw = tl.zeros([BK, BN], tl.float32)
    for t in tl.range(split, tl.cdiv(M, BM), splits, num_stages=STAGES):
        rm = t * BM
        x = activate(x_d.load([rm, ck]), xs, xh, rm, M, PRO_X, EVEN, BM)
        dw = tl.dot(tl.trans(x), g_d.load([rm, cn]), dw)
    tl.store(pw_ptr + split.to(tl.int64) * N * K + rn[None, :] * K + rk[:, None], dw)
