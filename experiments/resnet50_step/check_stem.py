import torch, torch.nn.functional as F
from . import ops, stem
from .ops import Tile
from .check_ops import check, dev, bf
torch.manual_seed(1)
def run(n, h, w, bm):
    x = torch.randn(n, 3, h, w, device=dev); W = torch.randn(64, 3, 7, 7, device=dev) * .1
    x = x.to(bf).float(); Wb = W.to(bf)
    b = stem.blocks(x); check('weight there and back', stem.pixel_weight(stem.block_weight(W)), W, 1e-9)
    c, s = stem.forward(b, stem.block_weight(Wb), Tile(bm, 0, 0, 4, 2, 1))
    ref = F.conv2d(x, Wb.float(), None, 2, 3)
    oh, ow = ref.shape[2:]
    c4 = c.view(n, oh, ow, 64).permute(0, 3, 1, 2)
    check(f'stem forward {n} {h} {w}', c4, ref)
    p = s.part.sum(0); check('stem sums', p[0], c.float().sum(0), 1e-3); check('stem squares', p[1], (c.float() ** 2).sum(0), 1e-3)
    gamma = torch.rand(64, device=dev) - .3; beta = torch.randn(64, device=dev) * .1
    cc = c4.float().clone().requires_grad_()
    g_, b_ = gamma.clone().requires_grad_(), beta.clone().requires_grad_()
    act = F.max_pool2d(F.batch_norm(cc, None, None, g_, b_, True, .1, 1e-5).relu(), 3, 2, 1)
    dp = torch.randn_like(act).to(bf).float(); act.backward(dp)
    vec = ops.finish_forward(s, gamma, beta, torch.zeros(64, device=dev), torch.ones(64, device=dev), c.shape[0], .1, 1e-5)
    q, which = stem.pool(c, vec, n, oh, ow)
    check('pool', ops.apply(q, vec).view(n, *act.shape[2:], 64).permute(0, 3, 1, 2), act)
    dq = dp.permute(0, 2, 3, 1).reshape(-1, 64).to(bf)
    sums, gm = ops.reduce(dq, q, vec, keep=True)
    abc, dg, db = ops.finish_backward(sums, gamma, vec, c.shape[0])
    check('stem dgamma', dg, g_.grad, 2e-2); check('stem dbeta', db, b_.grad, 2e-2)
    dc = stem.unpool(gm, which, c, abc, n, oh, ow)
    check('unpool', dc.view(n, oh, ow, 64).permute(0, 3, 1, 2), cc.grad, 2e-2)
    dw = stem.wgrad(b, dc, Tile(bm, 0, 0, 4, 2, 1))
    check('stem wgrad', dw, torch.nn.grad.conv2d_weight(x, W.shape, dc.view(n, oh, ow, 64).permute(0, 3, 1, 2).float(), 2, 3))
    u = torch.randint(0, 255, (n, 3, h, w), device=dev, dtype=torch.uint8); sc = torch.tensor([.01, .02, .03], device=dev); sh = torch.tensor([-1., -.5, .2], device=dev)
    check('normalised blocks', stem.blocks(u, sc, sh), stem.blocks((u.float() * sc[:, None, None] + sh[:, None, None]).to(bf)))
run(2, 24, 28, 16 if dev == 'cpu' else 64)
if dev == 'cuda': run(3, 224, 224, 64); run(2, 176, 160, 64)
