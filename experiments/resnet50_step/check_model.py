"""Loss, gradients and running statistics of the fused network against eager float32 and eager bf16 autocast."""
import copy, sys, time, torch, torch.nn.functional as F
from .model import ResNet
from .fused import FusedResNet
dev = 'cuda' if torch.cuda.is_available() else 'cpu'
torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False
def compare(arch, batch, size, seed=0, verbose=False):
    torch.manual_seed(seed)
    base = ResNet(arch).to(dev).to(memory_format=torch.channels_last).train()
    for m in base.modules():
        if isinstance(m, torch.nn.BatchNorm2d): torch.nn.init.uniform_(m.weight, .5, 1.5); torch.nn.init.normal_(m.bias, 0, .2)
    x = torch.randn(batch, 3, size, size, device=dev); y = torch.randint(0, 1000, (batch,), device=dev)
    out = {}
    for name in ('float32', 'autocast', 'fused'):
        m = copy.deepcopy(base)
        if name == 'fused': logits = FusedResNet(m)(x)
        else:
            with torch.autocast(dev, torch.bfloat16, enabled=name == 'autocast'): logits = m(x)
        loss = F.cross_entropy(logits.float(), y); loss.backward()
        out[name] = (loss.item(), {n: p.grad.float() for n, p in m.named_parameters()}, {n: b for n, b in m.named_buffers() if 'running' in n}, logits.detach().float())
    ref = out['float32']
    print(arch, batch, size, {n: round(o[0], 5) for n, o in out.items()})
    worst = {}
    for name in ('autocast', 'fused'):
        e = {n: ((g - ref[1][n]).norm() / ref[1][n].norm()).item() for n, g in out[name][1].items()}
        b = {n: ((v - ref[2][n]).norm() / ref[2][n].norm()).item() for n, v in out[name][2].items()}
        flat = torch.cat([g.flatten() for g in out[name][1].values()]); flat0 = torch.cat([g.flatten() for g in ref[1].values()])
        worst[name] = e
        print(f'{name:9s} grad err mean {sum(e.values())/len(e):.4f} max {max(e.values()):.4f} ({max(e, key=e.get)}) cos {torch.cosine_similarity(flat, flat0, dim=0):.5f} buffers max {max(b.values()):.5f} ({max(b, key=b.get)}) logits {((out[name][3]-ref[3]).norm()/ref[3].norm()).item():.4f}')
    ratio = sorted(((worst['fused'][n] / (worst['autocast'][n] + 1e-9), n) for n in worst['fused']), reverse=True)
    print('worst fused/autocast error ratios', [(n, round(r, 2)) for r, n in ratio[:6]])
if __name__ == '__main__':
    if dev == 'cpu': compare('resnet50', 2, 64)
    else: compare('resnet50', 64, 224); compare('resnet50', 30, 176); compare('resnet101', 16, 224)
