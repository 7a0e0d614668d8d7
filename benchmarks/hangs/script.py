"""A training loop that hangs in the given way on the given rank."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

CASE, CULPRIT = sys.argv[1], int(sys.argv[2])
STEPS = 30


def sleeps():
    time.sleep(1000)  # HERE sleep


def takes_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # HERE lock


def reads_a_pipe():
    read, _ = os.pipe()
    os.read(read, 1)  # HERE read


def waits_for_a_program():
    subprocess.run(["sleep", "1000"])  # HERE program


def holds_the_lock_asleep():
    ctypes.PyDLL(None).sleep(1000)  # HERE gil-sleep


def holds_the_lock_and_spins():
    import re

    re.match(r"(a+)+$", "a" * 40 + "b")  # HERE gil-spin


def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


def sleeps_in_the_kernel():
    """Like a reader of a dead NFS server: a parent in vfork is in D state until its child execs."""
    os.mkfifo(fifo := f"/tmp/muster-hang-{os.getpid()}")
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(256)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 9, fifo.encode(), os.O_RDONLY, 0)
    argv = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, argv, None)  # HERE disk


class Samples(Dataset[torch.Tensor]):
    def __len__(self):
        return 1000

    def __getitem__(self, index: int):
        if CASE == "loader" and dist_rank == CULPRIT and index == 40:
            time.sleep(1000)  # HERE loader
        return torch.ones(4)


def other_operation():
    dist.broadcast(torch.ones(4), 0)  # HERE other-op


def other_shape():
    dist.all_reduce(torch.ones(4000))  # HERE other-shape


def other_type():
    dist.all_reduce(torch.ones(4, dtype=torch.float64))  # HERE other-type


def out_of_data():
    dist.barrier()  # HERE uneven
    time.sleep(1000)


STUCK = {
    "sleep": sleeps,
    "lock": takes_a_lock,
    "read": reads_a_pipe,
    "program": waits_for_a_program,
    "gil-sleep": holds_the_lock_asleep,
    "gil-spin": holds_the_lock_and_spins,
    "stop": stops_itself,
    "disk": sleeps_in_the_kernel,
    "other-op": other_operation,
    "other-shape": other_shape,
    "other-type": other_type,
    "uneven": out_of_data,
    "left": lambda: sys.exit(0),
    "group": sleeps,
    "p2p": sleeps,
    "async": sleeps,
    "new-group": sleeps,
    "init": sleeps,
    "host": lambda: None,
    "loader": lambda: None,
}


def train():
    torch.set_num_threads(1)
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[dist_rank % 2]
    batches = iter(DataLoader(Samples(), batch_size=1, num_workers=2 if CASE == "loader" else 0))
    for step in range(1000):
        next(batches)
        if step == STEPS:
            print("AT", time.time(), flush=True)
            if dist_rank == CULPRIT:
                STUCK[CASE]()
        if step == STEPS and CASE in ("p2p", "async"):
            exchange()
        if step == STEPS and CASE == "new-group":
            dist.new_group([0, 1])
        if CASE == "group":
            dist.all_reduce(torch.ones(4), group=mine)  # WAIT group
        dist.all_reduce(torch.ones(4))  # WAIT
        time.sleep(0.02)


def exchange():
    """One rank receives what another should send."""
    if dist_rank == (CULPRIT + 1) % 4:
        if CASE == "p2p":
            dist.recv(torch.ones(4), CULPRIT)
        else:
            work = dist.irecv(torch.ones(4), CULPRIT)
            assert work is not None
            work.wait()


dist_rank = int(os.environ["RANK"])
if CASE == "init":
    print("AT", time.time(), flush=True)
    if dist_rank == CULPRIT:
        STUCK[CASE]()
dist.init_process_group("gloo")
if CASE == "init":
    sys.exit(0)
train()
