"""Plain training that saves and resumes, prints a counter, and records the time of everything that is measured.

usage: train.py DIRECTORY SECONDS_PER_STEP [TIMEOUT]

It ends when the file `stop` appears in the directory, which all hosts share. TIMEOUT is that of collectives, in
seconds; without it, a rank below torchrun notices a lost peer only after 30 minutes.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SAVE_EVERY = 10
SCRATCH_EVERY = 5
"""Steps between writes to the host's own disk; the lab cannot fill a disk that grows all the time."""
BEAT = 0.05
"""Seconds between the signs of life of a rank, which do not depend on other ranks."""

folder, pace = Path(sys.argv[1]), float(sys.argv[2])
timeout = timedelta(seconds=float(sys.argv[3])) if len(sys.argv) > 3 else None
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
log = os.open(folder / "moments", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
step, weights = 0, torch.zeros(1000)
group = 0
"""Identifies this start of all ranks, known after the first all_reduce; torchrun's restart count differs by host."""
drained = False


def note(what: str) -> None:
    """Append one line; the order of lines in the file is the order of events on all hosts."""
    line = {"what": what, "time": time.time(), "attempt": attempt, "rank": rank, "host": socket.gethostname()}
    line |= {"group": group, "world": world, "step": step, "pid": os.getpid()}
    os.write(log, json.dumps(line).encode() + b"\n")


def drain(number: int, frame: object) -> None:
    """Remember that this host, or another one, will go away."""
    global drained
    drained = True


def save(seconds: float = 0.0) -> None:
    """Rank 0 writes the checkpoint; every rank records who it is, so that a rank of an older attempt would show."""
    if rank == 0:
        time.sleep(seconds)
        draft = folder / f"checkpoint.{attempt}.draft"
        torch.save({"step": step, "weights": weights}, draft)
        draft.replace(folder / "checkpoint")
    note("save")


def beat() -> None:
    """Record signs of life, whatever the main thread is waiting for."""
    while True:
        note("beat")
        time.sleep(BEAT)


signal.signal(signal.SIGUSR1, drain)
note("start")
threading.Thread(target=beat, daemon=True).start()
dist.init_process_group("gloo", timeout=timeout)
if (folder / "checkpoint").exists():
    saved = torch.load(folder / "checkpoint", weights_only=True)
    step, weights = saved["step"], saved["weights"]
common = torch.tensor(0 if rank else time.time_ns())
dist.all_reduce(common)
group = int(common)
note("first")
scratch = open(f"/tmp/scratch-{rank}", "ab", buffering=0)  # noqa: SIM115 - fails when the disk is full
while True:
    change = torch.cat([torch.ones(1000), torch.tensor([float((folder / "stop").exists()), float(drained)])])
    dist.all_reduce(change)
    weights += change[:1000] / world
    step += 1
    print(f"step {step}", flush=True)
    if step % SCRATCH_EVERY == 0:
        scratch.write(bytes(4096))
    if change[-1]:
        save(seconds=1.0)
        sys.exit(0)
    if change[-2]:
        break
    if step % SAVE_EVERY == 0:
        save()
    time.sleep(pace)
save()
note("end")
dist.destroy_process_group()
