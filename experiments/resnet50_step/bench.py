# pyright: basic
"""Images per second of the training step beside torchvision's, interleaved in one run: bench.py [--batches 256,1024]
[--rounds 5].

Every row trains for real (forward, loss, backward, SGD with momentum) on one synthetic batch that stays on the
device. The rows of a batch size take turns, `rounds` times; printed are the median and the spread over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import ResNet
from .step import Settings, TrainStep

Step = Callable[[], Tensor]


def torchvision_step(batch: int, size: int, bf16: bool, channels_last: bool, compiled: bool) -> Step | None:
    """The peer's step, or None where torchvision does not import."""
    try:
        from torchvision.models import resnet50  # pyright: ignore
    except ImportError:
        return None
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model: nn.Module = resnet50().cuda().to(memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=channels_last)
    images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=layout)
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            return F.cross_entropy(model(x), y)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(images, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def recipe_step(batch: int, size: int, mode: str) -> Step:
    """This recipe's step."""
    step = TrainStep(ResNet("resnet50").cuda(), Settings(mode=mode), batch, size)
    step.images.normal_()
    step.labels.random_(0, 1000)
    return lambda: step.run(step.images, step.labels)


def measure(rows: dict[str, Step], batch: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Images per second of every row in every round."""
    count: dict[str, int] = {}
    for name, step in rows.items():
        begin, loss = time.perf_counter(), torch.zeros(())
        for _ in range(6):  # compiles, chooses algorithms, records the graph
            loss = step()
        torch.cuda.synchronize()
        if not torch.isfinite(loss):
            raise SystemExit(f"{name}, batch {batch}: the loss is {loss.item()}")
        warm = time.perf_counter()
        step()
        torch.cuda.synchronize()
        took = time.perf_counter() - warm
        count[name] = max(2, round(seconds / took))
        print(f"  {name}, batch {batch}: ready after {warm - begin:.0f} s", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, step in rows.items():
            step()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count[name]):
                step()
            torch.cuda.synchronize()
            rates[name].append(batch * count[name] / (time.perf_counter() - begin))
    return rates


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="256,1024")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    lines = []
    for batch in map(int, args.batches.split(",")):
        rows: dict[str, Step | None] = {}
        if batch <= 128:
            rows["torchvision, float32"] = torchvision_step(batch, args.size, False, False, False)
        if batch == 256:
            rows["torchvision, bf16 autocast, channels-last"] = torchvision_step(batch, args.size, True, True, False)
        if batch >= 256:
            rows["torchvision, the same with torch.compile"] = torchvision_step(batch, args.size, True, True, True)
        rows["this recipe"] = recipe_step(batch, args.size, "auto")
        rates = measure({n: s for n, s in rows.items() if s is not None}, batch, args.rounds, args.seconds)
        best = statistics.median(rates.get("torchvision, the same with torch.compile", [float("nan")]))
        for name, r in rates.items():
            mid = statistics.median(r)
            ratio = f" | {mid / best:.2f}" if best == best else " | "
            lines.append(f"| {name} | {batch} | {mid:,.0f} | {min(r):,.0f} - {max(r):,.0f}{ratio} |")
        del rows
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    print(
        f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.size}x{args.size}, "
        f"median of {args.rounds} rounds\n"
    )
    print("| what | batch | images/s | spread | to torch.compile |\n|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
