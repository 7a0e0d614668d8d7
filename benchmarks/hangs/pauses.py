"""Trains with pauses of a minute, in which one rank computes, saves, loads or compiles while the others wait for it."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

LONG = float(os.environ.get("PAUSE", "60"))


def python_loop(until: float) -> None:
    total = 0
    while time.monotonic() < until:
        total += sum(range(1000))


def torch_evaluation(until: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.ones(256, 512))


def checkpoint(until: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            torch.save({"weights": torch.ones(1 << 20)}, f"{folder}/model.pt")
            time.sleep(0.05)  # a disk that is slower than the CPU


def a_program(until: float) -> None:
    """A compiler or another child process."""
    seconds = max(1.0, until - time.monotonic())
    subprocess.run(
        [sys.executable, "-c", f"import time; e=time.time()+{seconds}\nwhile time.time()<e: pass"], check=True
    )


def workers(until: float) -> None:
    """Data that arrives slowly."""

    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            end = time.monotonic() + seconds / 4
            while time.monotonic() < end:
                pass
            return torch.ones(1)

    seconds = max(1.0, until - time.monotonic())
    for _ in torch.utils.data.DataLoader(Slow(), num_workers=2):
        pass


def half_asleep(until: float) -> None:
    """Read from something slow, in small pieces."""
    while time.monotonic() < until:
        sum(range(2_000_000))
        time.sleep(0.4)


dist.init_process_group("gloo")
rank, begin = dist.get_rank(), time.monotonic()
end = begin + float(sys.argv[1])
turn = 0
kinds = (python_loop, torch_evaluation, checkpoint, a_program, workers, half_asleep)
while True:
    for _ in range(200):
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.005)
    over = torch.tensor(float(time.monotonic() > end))
    dist.broadcast(over, 0)
    if over:
        break
    pause = kinds[turn % len(kinds)]
    if rank == turn // len(kinds) % dist.get_world_size():
        now = time.monotonic()
        pause(now + LONG)
        print(f"PAUSE rank {rank} {pause.__name__} {time.monotonic() - now:.0f} s", flush=True)
    turn += 1
dist.destroy_process_group()
