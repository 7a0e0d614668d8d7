"""Triton kernels for the stem: blocks of pixels, the first convolution, and pooling; stem.py explains them."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def cut_blocks(x_ptr, y_ptr, scale_ptr, shift_ptr, H, W, sn, sc, sh, sw, BH, BW, BM: tl.constexpr):
    """y[n, i, j, (dy, dx, c)] = x[n, c, 2i+dy-4, 2j+dx-4] times scale plus shift, zero outside."""
    row = tl.program_id(0)
    n = row // BH
    i = row % BH
    j = tl.program_id(1) * BM + tl.arange(0, BM)[:, None]
    k = tl.arange(0, 16)[None, :]
    c = k % 3
    y = 2 * i + k // 6 - 4
    x = 2 * j + k // 3 % 2 - 4
    inside = (k < 12) & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    v = tl.load(x_ptr + n.to(tl.int64) * sn + c * sc + y * sh + x * sw, mask=inside, other=0.0).to(tl.float32)
    v = tl.where(inside, v * tl.load(scale_ptr + c) + tl.load(shift_ptr + c), 0.0)
    tl.store(y_ptr + (row.to(tl.int64) * BW + j) * 16 + k, v.to(tl.bfloat16), mask=j < BW)


@triton.jit
def stem_forward(x_d, w_d, y_d, part_ptr, ROWS, OH, OW, BH, BW, programs, BM: tl.constexpr, STAGES: tl.constexpr):
    """The 4x4 convolution and the sums of its output; a tile is BM pixels of four rows, which share seven of blocks."""
    pid = tl.program_id(0)
    tiles_w = tl.cdiv(OW, BM)
    w0 = w_d.load([0, 0])
    w1 = w_d.load([0, 64])
    w2 = w_d.load([0, 128])
    w3 = w_d.load([0, 192])
    total = tl.zeros([64], tl.float32)
    square = tl.zeros([64], tl.float32)
    for t in tl.range(pid, ROWS // 4 * tiles_w, programs, num_stages=STAGES):
        row = t // tiles_w * 4
        col = t % tiles_w * BM
        at = (row // OH * BH + row % OH) * BW + col
        x0 = tl.trans(x_d.load([at, 0]))
        x1 = tl.trans(x_d.load([at + BW, 0]))
        x2 = tl.trans(x_d.load([at + 2 * BW, 0]))
        x3 = tl.trans(x_d.load([at + 3 * BW, 0]))
        x4 = tl.trans(x_d.load([at + 4 * BW, 0]))
        x5 = tl.trans(x_d.load([at + 5 * BW, 0]))
        x6 = tl.trans(x_d.load([at + 6 * BW, 0]))
        acc = tl.dot(w3, x3, tl.dot(w2, x2, tl.dot(w1, x1, tl.dot(w0, x0))))
        total, square = _stem_row(acc, y_d, row, col, OW, total, square, BM)
        acc = tl.dot(w3, x4, tl.dot(w2, x3, tl.dot(w1, x2, tl.dot(w0, x1))))
        total, square = _stem_row(acc, y_d, row + 1, col, OW, total, square, BM)
        acc = tl.dot(w3, x5, tl.dot(w2, x4, tl.dot(w1, x3, tl.dot(w0, x2))))
        total, square = _stem_row(acc, y_d, row + 2, col, OW, total, square, BM)
        acc = tl.dot(w3, x6, tl.dot(w2, x5, tl.dot(w1, x4, tl.dot(w0, x3))))
        total, square = _stem_row(acc, y_d, row + 3, col, OW, total, square, BM)
    rn = tl.arange(0, 64)
    tl.store(part_ptr + pid * 128 + rn, total)
    tl.store(part_ptr + pid * 128 + 64 + rn, square)


@triton.jit
def _stem_row(acc, y_d, row, col, OW, total, square, BM: tl.constexpr):
    c = acc.to(tl.bfloat16)
    y_d.store([row, col, 0], tl.reshape(tl.trans(c), [1, BM, 64]))
    f = tl.where((col + tl.arange(0, BM))[None, :] < OW, c.to(tl.float32), 0.0)
    return total + tl.sum(f, 1), square + tl.sum(f * f, 1)


@triton.jit
def stem_wgrad(x_d, g_d, pw_ptr, ROWS, OH, OW, BH, BW, programs, BM: tl.constexpr, STAGES: tl.constexpr):
    """Partial gradients [64, 256] of the 4x4 convolution's weight."""
    pid = tl.program_id(0)
    tiles_w = tl.cdiv(OW, BM)
    a0 = tl.zeros([64, 64], tl.float32)
    a1 = tl.zeros([64, 64], tl.float32)
    a2 = tl.zeros([64, 64], tl.float32)
    a3 = tl.zeros([64, 64], tl.float32)
    for t in tl.range(pid, ROWS // 4 * tiles_w, programs, num_stages=STAGES):
        row = t // tiles_w * 4
        col = t % tiles_w * BM
        at = (row // OH * BH + row % OH) * BW + col
        g0 = tl.trans(tl.reshape(g_d.load([row, col, 0]), [BM, 64]))
        g1 = tl.trans(tl.reshape(g_d.load([row + 1, col, 0]), [BM, 64]))
        g2 = tl.trans(tl.reshape(g_d.load([row + 2, col, 0]), [BM, 64]))
        g3 = tl.trans(tl.reshape(g_d.load([row + 3, col, 0]), [BM, 64]))
        x0 = x_d.load([at, 0])
        x1 = x_d.load([at + BW, 0])
        x2 = x_d.load([at + 2 * BW, 0])
        x3 = x_d.load([at + 3 * BW, 0])
        x4 = x_d.load([at + 4 * BW, 0])
        x5 = x_d.load([at + 5 * BW, 0])
        x6 = x_d.load([at + 6 * BW, 0])
        a0 = tl.dot(g3, x3, tl.dot(g2, x2, tl.dot(g1, x1, tl.dot(g0, x0, a0))))
        a1 = tl.dot(g3, x4, tl.dot(g2, x3, tl.dot(g1, x2, tl.dot(g0, x1, a1))))
        a2 = tl.dot(g3, x5, tl.dot(g2, x4, tl.dot(g1, x3, tl.dot(g0, x2, a2))))
        a3 = tl.dot(g3, x6, tl.dot(g2, x5, tl.dot(g1, x4, tl.dot(g0, x3, a3))))
    r = tl.arange(0, 64)
    at = pw_ptr + pid * 16384 + r[:, None] * 256 + r[None, :]
    tl.store(at, a0)
    tl.store(at + 64, a1)
    tl.store(at + 128, a2)
    tl.store(at + 192, a3)


@triton.jit
def pool_forward(c_ptr, q_ptr, i_ptr, s_ptr, P, OH, OW, PH, PW, BM: tl.constexpr):
    """q = the raw value whose normalized value is the largest of its 3x3 window, i = its index among the nine.

    Normalization keeps the order, or reverses it if the scale is negative.
    """
    pid = tl.program_id(0)
    p = pid * BM + tl.arange(0, BM)
    rc = tl.arange(0, 64)
    pw = p % PW
    ph = p // PW % PH
    n = (p // (PW * PH)).to(tl.int64)
    flip = tl.where(tl.load(s_ptr + rc) < 0, -1.0, 1.0)[None, :]
    best = tl.full([BM, 64], float("-inf"), tl.float32)
    for k in tl.static_range(9):
        y = 2 * ph - 1 + k // 3
        x = 2 * pw - 1 + k % 3
        inside = (p < P) & (y >= 0) & (y < OH) & (x >= 0) & (x < OW)
        at = (y * OW + x)[:, None] * 64 + rc[None, :]
        c = (
            tl.load(c_ptr + n[:, None] * (OH * OW * 64) + at, mask=inside[:, None], other=float("-inf")).to(tl.float32)
            * flip
        )
        key = (c.to(tl.int32, bitcast=True) | (8 - k)).to(tl.float32, bitcast=True)  # a bf16 leaves sixteen bits free
        best = tl.maximum(best, tl.where(inside[:, None], key, float("-inf")))
    bits = best.to(tl.int32, bitcast=True)
    raw = (bits & -65536).to(tl.float32, bitcast=True) * flip
    which = (8 - (bits & 15)).to(tl.int8)
    at = p.to(tl.int64)[:, None] * 64 + rc[None, :]
    tl.store(q_ptr + at, raw.to(tl.bfloat16), mask=(p < P)[:, None])
    tl.store(i_ptr + at, which, mask=(p < P)[:, None])


@triton.jit
def pool_backward(q_ptr, i_ptr, c_ptr, dc_ptr, a_ptr, b_ptr, c0_ptr, OH, OW, PH, PW, BM: tl.constexpr):
    """dC = a*g + b*c + c0 with g = the sum of the pooled gradients q in whose window this pixel is the maximum.

    A program has rows 2i-1 and 2i; each pair of columns 2j-1, 2j needs the windows i-1, i and j-1, j.
    """
    n = tl.program_id(0) // (PH + 1)
    i = tl.program_id(0) % (PH + 1)
    j = tl.program_id(1) * BM + tl.arange(0, BM)
    rc = tl.arange(0, 64)
    base = n.to(tl.int64) * (PH * PW * 64)
    q, k = _window(q_ptr + base, i_ptr + base, i, j, rc, PH, PW)
    ql, kl = _window(q_ptr + base, i_ptr + base, i, j - 1, rc, PH, PW)
    qu, ku = _window(q_ptr + base, i_ptr + base, i - 1, j, rc, PH, PW)
    qd, kd = _window(q_ptr + base, i_ptr + base, i - 1, j - 1, rc, PH, PW)
    a = tl.load(a_ptr + rc)[None, :]
    b = tl.load(b_ptr + rc)[None, :]
    c0 = tl.load(c0_ptr + rc)[None, :]
    base = n.to(tl.int64) * (OH * OW * 64)
    g = tl.where(k == 4, q, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i, 2 * j, rc, OH, OW)
    g = tl.where(k == 3, q, 0.0) + tl.where(kl == 5, ql, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i, 2 * j - 1, rc, OH, OW)
    g = tl.where(k == 1, q, 0.0) + tl.where(ku == 7, qu, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i - 1, 2 * j, rc, OH, OW)
    g = tl.where(k == 0, q, 0.0) + tl.where(kl == 2, ql, 0.0) + tl.where(ku == 6, qu, 0.0) + tl.where(kd == 8, qd, 0.0)
    _unpooled(c_ptr + base, dc_ptr + base, g, a, b, c0, 2 * i - 1, 2 * j - 1, rc, OH, OW)


@triton.jit
def _window(q_ptr, i_ptr, i, j, rc, PH, PW):
    at = (i * PW + j)[:, None] * 64 + rc[None, :]
    there = ((i >= 0) & (i < PH) & (j >= 0) & (j < PW))[:, None]
    return tl.load(q_ptr + at, mask=there, other=0.0).to(tl.float32), tl.load(i_ptr + at, mask=there, other=-1).to(
        tl.int32
    )


@triton.jit
def _unpooled(c_ptr, dc_ptr, g, a, b, c0, y, x, rc, OH, OW):
    at = (y * OW + x)[:, None] * 64 + rc[None, :]
    there = ((y >= 0) & (y < OH) & (x >= 0) & (x < OW))[:, None]
    c = tl.load(c_ptr + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dc_ptr + at, (g * a + c * b + c0).to(tl.bfloat16), mask=there)
