"""One rank of a round: it prints numbered lines and records each in a file, after it was written.

usage: rank.py DIRECTORY LINES PACE FAILURE_RANK FAILURE_LINE HUNGRY_RANK FLAGS

FLAGS is `-` or some of `children,torch,scratch`. The file stays open, so that others find the process by it.
The rank ends LINES lines after the file `stop` has appeared in the directory.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import subprocess
import sys
import time
from pathlib import Path

folder, lines, pace = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
failing, after, hungry, flags = int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]), sys.argv[7].split(",")
rank = int(os.environ["RANK"])
MEAL = 16 << 20
"""Bytes that a hungry rank needs for each line."""
MEALS = 40
eaten: list[bytes] = []


def is_stopped() -> bool:
    """Whether the end of the job has been announced."""
    return (folder / "stop").exists()


if "torch" in flags:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def is_stopped() -> bool:
        """The same for all ranks, which therefore wait for each other."""
        seen = torch.tensor(float((folder / "stop").exists()))
        dist.all_reduce(seen)
        return bool(seen)


if "children" in flags:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=True)
log = os.open(folder / f"said-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number, left = 0, lines
while left > 0:
    number += 1
    os.write(1, f"line {number}\n".encode())
    os.write(log, f"{number} {time.time()}\n".encode())
    if "scratch" in flags:
        with open(f"/tmp/scratch-{rank}", "ab") as file:
            file.write(bytes(1 << 12))
    if rank == hungry and number <= MEALS:
        eaten.append(b"x" * MEAL)
    if rank == failing and number == after:
        raise ValueError("the failure of the plan")
    time.sleep(pace)
    if is_stopped() and (rank != failing or "torch" in flags or number > after):
        left -= 1
os.write(log, f"end {time.time()}\n".encode())
