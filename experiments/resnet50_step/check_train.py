"""Training for real: the same batches through eager float32, eager bf16 autocast and the fused step; loss, accuracy, gradients."""
import copy, torch, torch.nn.functional as F
from . import fused
from .model import ResNet
from .step import Settings, TrainStep
dev='cuda'; torch.manual_seed(0); torch.backends.cudnn.benchmark = True
N, B = 100, 128
base = ResNet('resnet50').to(dev)
for m in base.modules():
    if hasattr(m, 'bn3'): torch.nn.init.constant_(m.bn3.weight, .25)
tmpl = F.interpolate(torch.randn(16, 3, 14, 14, device=dev), 224, mode='bilinear')
def batch(i):
    g = torch.Generator(dev).manual_seed(i); y = torch.randint(0, 16, (B,), generator=g, device=dev)
    return tmpl[y] * .5 + torch.randn(B, 3, 224, 224, generator=g, device=dev), y
x, y = batch(9999); grads = {}
for name in ('float32', 'autocast', 'fused'):
    m = copy.deepcopy(base).to(memory_format=torch.channels_last).train()
    if name == 'fused': l = fused.FusedResNet(m)(x)
    else:
        with torch.autocast(dev, torch.bfloat16, enabled=name == 'autocast'): l = m(x)
    F.cross_entropy(l.float(), y).backward(); grads[name] = {n: p.grad.float() for n, p in m.named_parameters()}
ref = grads['float32']
for name in ('autocast', 'fused'):
    e = sorted(((g - ref[n]).norm() / ref[n].norm()).item() for n, g in grads[name].items())
    c = torch.cosine_similarity(torch.cat([g.flatten() for g in grads[name].values()]), torch.cat([g.flatten() for g in ref.values()]), dim=0)
    print(f'{name:9s} gradients to float32: error median {e[len(e)//2]:.4f} max {e[-1]:.4f} cosine {c:.6f}', flush=True)
for name in ('float32', 'autocast', 'fused'):
    m = copy.deepcopy(base).train()
    s = TrainStep(m, Settings(lr=.02, mode='fused' if name == 'fused' else 'eager', graph=name == 'fused', bf16=name != 'float32'), B)
    ls = []
    for i in range(N): ls.append(s.run(*batch(i)).clone())
    ls = torch.stack(ls).tolist(); m.eval(); ok = 0
    with torch.no_grad():
        for i in range(5000, 5004): xx, yy = batch(i); lo = m(xx.contiguous(memory_format=torch.channels_last)); ok += (lo.argmax(1) == yy).sum().item()
    print(f'{name:9s} loss', [round(sum(ls[i:i+10])/10, 4) for i in range(0, N, 10)], f'last {sum(ls[-10:])/10:.4f} eval accuracy {ok/4/B:.4f} eval loss {F.cross_entropy(lo, yy).item():.4f} tracked {int(m.bn1.num_batches_tracked)}', flush=True)
    del s, m; torch.cuda.empty_cache()
