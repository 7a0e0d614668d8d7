"""Every kernel against plain torch in float32, on small random inputs (interpreter on the CPU, or the GPU)."""
import torch
from . import linear, ops
from .ops import Tile
dev = 'cuda' if torch.cuda.is_available() else 'cpu'
torch.manual_seed(0)
bf = torch.bfloat16
def rn(*s): return torch.randn(*s, device=dev)
def vec(c, r=4): return torch.stack([rn(c) * .5 + 1, rn(c) * .3, rn(c) * .2, rn(c).abs() + .5, rn(c) * .3][:r]).contiguous()
bad = 0
def check(name, a, b, tol=6e-3 if dev == 'cuda' else 8e-3):
    global bad
    e = ((a.float() - b.float()).norm() / (b.float().norm() + 1e-30)).item(); ok = e < tol; bad += not ok
    print(('ok  ' if ok else 'BAD ') + name, f'{e:.2e}', flush=True)
def sumcheck(name, s, total, second=None):
    p = s.part[: s.parts].sum(0)
    check(name + ' sum', p[0], total, 1e-2)
    if second is not None: check(name + ' second', p[1], second, 1e-2)
def act(x, v): return (x.float() * v[0] + v[1]).relu().to(bf)
def forward(m, n, k, tile, pro):
    x, w, v = rn(m, k).to(bf), (rn(n, k) / k ** .5).to(bf), vec(k)
    fx = act(x, v) if pro else x
    y, s = ops.conv_forward(x, w, Tile(*tile), v if pro else None)
    name = f'fwd m{m} n{n} k{k} pro{pro} {tile}'
    check(name, y, fx.float() @ w.float().t())
    yf = y.float(); sumcheck(name, s, yf.sum(0), (yf * yf).sum(0))
def scattered(r, b, h, w, k):
    full = torch.zeros(b, h, w, k, device=dev); full[:, ::2, ::2] = r.float().view(b, (h + 1) // 2, (w + 1) // 2, k); return full.view(-1, k)
def back(b, h, w_, n, k, tile, prox, half):
    m = b * h * w_
    g, c, w = rn(m, n).to(bf), rn(m, n).to(bf), (rn(n, k) / n ** .5).to(bf)
    x = rn(m, k).to(bf) if prox else rn(m, k).relu().to(bf)
    abc = torch.stack([rn(n), rn(n) * .3, rn(n) * .1]).contiguous(); yv, xv = vec(n), vec(k)
    r = rn(b * ((h + 1) // 2) * ((w_ + 1) // 2) if half else m, k).to(bf)
    dy = (g.float() * (c.float() * yv[0] + yv[1] > 0) * abc[0] + c.float() * abc[1] + abc[2]).to(bf)
    X = act(x, xv) if prox else x
    dx = (dy.float() @ w.float() + (scattered(r, b, h, w_, k) if half else r.float())) * (X.float() > 0)
    gx, gw, s = ops.conv_backward(g, c, x, w, Tile(*tile), abc, yv, xv if prox else None, r, (h, w_))
    name = f'back n{n} k{k} prox{prox} half{half} {tile}'
    check(name + ' dx', gx, dx); check(name + ' dw', gw, dy.float().t() @ X.float())
    sumcheck(name, s, gx.float().sum(0), (gx.float() * (x.float() - xv[2])).sum(0) if prox else None)
def wgrad(m, n, k, tile, prox):
    g, x, xv = rn(m, n).to(bf), rn(m, k).to(bf), vec(k)
    check(f'wgrad n{n} k{k} {prox} {tile}', ops.conv_wgrad(g, x, Tile(*tile), xv if prox else None), g.float().t() @ (act(x, xv) if prox else x).float())
def norm(m, c):
    x = (rn(m, c) * 2 + rn(c)).to(bf); r = rn(m, c).to(bf); g = rn(m, c).to(bf)
    gamma, beta = torch.rand(c, device=dev) + .5, rn(c) * .1
    bn = torch.nn.BatchNorm2d(c).to(dev); bn.weight.data.copy_(gamma); bn.bias.data.copy_(beta)
    x32 = x.float().requires_grad_(); z = bn(x32.t().reshape(1, c, m, 1)).reshape(c, m).t()
    z.relu().backward(g.float())
    rm, rv = torch.zeros(c, device=dev), torch.ones(c, device=dev)
    v = ops.finish_forward(ops.stats(x), gamma, beta, rm, rv, m, .1, 1e-5)
    check(f'bn {m}x{c} running mean', rm, bn.running_mean, 1e-5); check('bn running var', rv, bn.running_var, 1e-5)
    check('bn apply', ops.apply(x, v), z.relu()); check('bn apply add', ops.apply(x, v, r), (z + r.float()).relu())
    check('bn apply norm', ops.apply(x, v, r, v), (z + r.float() * v[0] + v[1]).relu())
    s, _ = ops.reduce(g, x, v); abc, dg, db = ops.finish_backward(s, gamma, v, m)
    check('bn dgamma', dg, bn.weight.grad, 2e-2); check('bn dbeta', db, bn.bias.grad, 2e-2); check('bn dx', ops.normalise_backward(g, x, abc, v), x32.grad, 2e-2)
    y, t = ops.copy_sum(x, v); check('copy', y, z.relu()); check('copy sum', t, y.float().sum(0), 1e-3)
    b, h, w = 2, 5, m // 10
    x = x[: b * h * w]; y, t = ops.copy_sum(x, half=(b, h, w)); ref = x.view(b, h, w, c)[:, ::2, ::2].reshape(-1, c)
    check('copy half', y, ref, 1e-9); check('copy half sum', t, ref.float().sum(0), 1e-3)
    g = g[: b * h * w]; r = rn(ref.shape[0], c).to(bf)
    s, gm = ops.reduce(g, mask=x, res=r, keep=True, size=(h, w)); ref = (g.float() + scattered(r, b, h, w, c)) * (x.float() > 0)
    check('reduce half', gm, ref); sumcheck('reduce half', s, gm.float().sum(0))
def lin(m, k, n, tile, pro, kind, nn, dtile, gtile):
    """The widening convolution with its normalisation against autograd in float32 through the explicit output."""
    x, w, xv = rn(m, k).to(bf), (rn(n, k) / k ** .5).to(bf), vec(k)
    fx = (act(x, xv) if pro else x).float().requires_grad_(); w32 = w.float().requires_grad_()
    bn = torch.nn.BatchNorm2d(n).to(dev); bn.weight.data.uniform_(.5, 1.5); bn.bias.data.normal_(0, .2)
    bn1 = torch.nn.BatchNorm2d(n).to(dev); bn1.load_state_dict(bn.state_dict())
    z = bn((fx @ w32.t()).t().reshape(1, n, m, 1)).reshape(n, m).t()
    if gtile: flat = linear.make_gram(x, xv if pro else None, Tile(*gtile))
    else: fb, tot = ops.copy_sum(x, xv if pro else None); flat = linear.wide_gram(fb, tot)
    v, ws = linear.normalise(flat, w, bn1, m)
    name = f'linear m{m} k{k} n{n} pro{pro} kind{kind} {tile}'
    tol = 1e-4 if dev == 'cuda' else 5e-3; check(name + ' running mean', bn1.running_mean, bn.running_mean, tol); check(name + ' running var', bn1.running_var, bn.running_var, tol)
    r, rv = rn(m, n).to(bf), vec(n, 5); x2, x2v, w2 = rn(m, k).to(bf), vec(k), (rn(n, k) / k ** .5).to(bf)
    ref = z + {1: r.float(), 2: r.float() * rv[0] + rv[1], 3: act(x2, x2v).float() @ w2.float().t() + rv[4]}[kind]
    fol = (rn(nn, n) / n ** .5).to(bf) if nn else None
    y, yn, s = linear.out(x, xv if pro else None, ws, v, Tile(*tile), r if kind < 3 else None, rv if kind == 2 else None, (x2, x2v, w2, rv) if kind == 3 else None, fol)
    check(name + ' out', y, ref.relu())
    if nn: check(name + ' next', yn, y.float() @ fol.float().t()); sumcheck(name + ' next', s, yn.float().sum(0), (yn.float() ** 2).sum(0))
    g = (rn(m, n) + .3).to(bf); z.backward(g.float())
    sums, _ = ops.reduce(g); G = linear.mm32(g.t(), fx.detach().to(bf))
    d, dw, dg, db = linear.backward(sums, G, w, flat, v, bn.weight, m)
    check(name + ' dw', dw, w32.grad, 2e-2); check(name + ' dgamma', dg, bn.weight.grad, 2e-2); check(name + ' dbeta', db, bn.bias.grad, 1e-2)
    check(name + ' wide dx', linear.wide_dgrad(g, d, fx.detach().to(bf)), fx.grad, 2e-2)
    if dtile:
        check(name + ' dx', linear.dgrad(g, d, x, xv if pro else None, Tile(*dtile))[0], fx.grad, 2e-2)
        if pro:
            dx, s = linear.dgrad(g, d, x, xv, Tile(*dtile), xv[2]); check(name + ' masked dx', dx, fx.grad * (fx > 0), 2e-2)
            sumcheck(name + ' dx', s, dx.float().sum(0), (dx.float() * (x.float() - xv[2])).sum(0))
def all_checks(m=200):
    for pro in (0, 1):
        forward(m, 128, 64, (64, 64, 64, 4, 3, 1), pro); forward(m, 64, 128, (64, 64, 64, 4, 3, 1), pro); forward(192, 128, 256, (64, 64, 64, 4, 3, 1, True), pro)
        back(2, 10, 10, 64, 256, (32, 0, 256, 8, 3, 1), 0, pro); back(2, 9, 11, 128, 256, (32, 0, 128, 8, 3, 1), 0, pro)
        wgrad(m, 128, 64, (64, 64, 64, 4, 3, 1), pro)
    back(2, 10, 10, 64, 64, (64, 0, 64, 4, 3, 1), 1, 0)
    norm(m, 64); norm(100, 512)
    if dev == 'cuda':
        for kind in (1, 3): lin(64 * 37 + 5, 64, 256, (64, 256, 0, 8, 3, 1), 1, kind, 64, (64, 256, 0, 8, 3, 1), (128, 0, 0, 4, 3, 2))
    lin(m, 64, 256, (32, 256, 0, 8, 3, 1), 1, 1, 64, (64, 256, 0, 8, 3, 1), (64, 0, 0, 4, 3, 1))
    lin(m, 64, 256, (32, 256, 0, 8, 3, 1), 1, 3, 64, (64, 64, 0, 8, 3, 1, True), (64, 0, 0, 4, 3, 1))
    lin(192, 128, 512, (64, 128, 0, 8, 3, 1), 1, 2, 0, (64, 64, 0, 8, 3, 1), (64, 0, 0, 8, 3, 1))
    lin(1000, 256, 1024, (64, 128, 0, 8, 3, 1), 0, 1, 0, None, None)
    print('bad:', bad)
if __name__ == '__main__':
    all_checks()
