"""The end of a rank: what it waits for, what it leaves whole, and what is reported when it does not come."""

from __future__ import annotations

import gzip
import json
import re
import socket
import sys
import textwrap
from pathlib import Path

import pytest
from bare import reserved_port
from launching import run_here

pytestmark = pytest.mark.torch

STARTS = pytest.mark.parametrize("start", [(), ("--no-zygote",)], ids=["zygote", "fresh"])
KEEP = "--keep=5m"
"""With the `kept` fixture: a zygote for all tests that look at nothing but the end of a rank."""
ENDS = pytest.mark.parametrize("start", [(KEEP,), ("--no-zygote",)], ids=["zygote", "fresh"])


def script(folder: Path, text: str) -> str:
    """A script in the test's folder."""
    (folder / "train.py").write_text(textwrap.dedent(text))
    return "train.py"


@ENDS
def test_no_rank_leaves_while_another_still_joins(tmp_path: Path, kept: Path, start: tuple[str, ...]):
    # The last rank is slow in the middle of its init_process_group, after the others have connected to it.
    name = script(
        tmp_path,
        """
        import os, time
        import torch.distributed as dist
        from torch.distributed import distributed_c10d
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            helper = distributed_c10d._new_process_group_helper
            def slow(*args, **kwargs):
                made = helper(*args, **kwargs)
                time.sleep(6)
                return made
            distributed_c10d._new_process_group_helper = slow
        dist.init_process_group("gloo")
        print("joined", flush=True)
        """,
    )
    ranks = 4 if KEEP in start else 2  # each fresh one imports torch
    done = run_here(tmp_path, *start, "--nproc", str(ranks), name, state=kept if KEEP in start else None)
    assert done.code == 0, done.said
    waiting = rf"rank \d on \S+ has finished and is waiting up to 60 s for rank {ranks - 1} to create"
    assert re.search(waiting, done.err), done.said


def test_the_store_outlives_rank_0_and_serves_a_client_that_comes_before_it(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import os, sys, time
        import torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        if rank == 2:
            early = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
            early.set("early", "yes")
        if rank == 0:
            time.sleep(1)
        dist.init_process_group("gloo")
        if rank == 0:
            sys.exit(0)
        time.sleep(1)
        group = dist.new_group([1, 2])
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        print(int(total), flush=True)
        """,
    )
    done = run_here(tmp_path, KEEP, "--nproc", "3", name, state=kept)
    assert done.code == 0, done.said
    assert done.lines(1) == done.lines(2) == ["2"], done.said


@pytest.mark.parametrize("libuv", ["1", "0"])
def test_a_restart_has_a_store_of_its_own(tmp_path: Path, libuv: str):
    name = script(
        tmp_path,
        """
        import os, sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        print(store.add("attempts", 1), flush=True)
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3)
        """,
    )
    done = run_here(tmp_path, "--nproc", "2", "--restarts", "1", name, USE_LIBUV=libuv)
    assert done.code == 0, done.said
    assert sorted(done.log(0, 1) + done.log(1, 1)) == sorted(b"1\n2\n"), done.said


def test_a_script_with_a_port_of_its_own_meets_there(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import os, sys
        import torch, torch.distributed as dist
        os.environ["MASTER_PORT"] = sys.argv[1]
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(int(total), flush=True)
        dist.destroy_process_group()
        """,
    )
    with reserved_port() as port:
        done = run_here(tmp_path, KEEP, "--nproc", "2", name, str(port), state=kept)
    assert done.code == 0, done.said
    assert done.lines(0) == ["2"], done.said


@ENDS
def test_files_left_open_are_whole_and_objects_end_as_under_python(tmp_path: Path, kept: Path, start: tuple[str, ...]):
    name = script(
        tmp_path,
        """
        import gzip, weakref
        import torch.distributed as dist

        class Ends:
            def __del__(self):
                print("deleted", flush=True)

        ends = Ends()
        dead = weakref.proxy(Ends())
        packed = gzip.open("packed.gz", "wt")
        packed.write("whole")
        dist.init_process_group("gloo")
        """,
    )
    done = run_here(tmp_path, *start, "--nproc", "1", name, state=kept if KEEP in start else None)
    assert done.code == 0, done.said
    assert done.lines(0) == ["deleted", "deleted"], done.said
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == b"whole"


def test_a_daemon_thread_that_runs_on_at_the_end_prints_nothing(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import threading, time
        import helper

        class Slow:
            def __del__(self):
                time.sleep(0.3)  # the others have the GIL meanwhile

        slow = Slow()
        threading.Thread(target=helper.chatter, daemon=True).start()
        """,
    )
    (tmp_path / "helper.py").write_text("import time\ndef chatter():\n    while True:\n        time.sleep(0.001)\n")
    done = run_here(tmp_path, KEEP, "--nproc", "2", name, state=kept)
    assert done.code == 0, done.said
    assert "Traceback" not in done.err, done.said


def test_exit_handlers_of_c_libraries_run_unless_a_process_group_is_open(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import ctypes, sys
        libc, text = ctypes.CDLL(None), ctypes.pythonapi.Py_GetVersion
        text.restype = ctypes.c_void_p
        libc.__cxa_atexit(libc.puts, ctypes.c_void_p(text()), None)
        if sys.argv[1] == "open":
            import torch.distributed as dist
            dist.init_process_group("gloo")
        """,
    )
    assert run_here(tmp_path, KEEP, "--nproc", "1", name, "none", state=kept).lines(0) == [sys.version.splitlines()[0]]
    assert run_here(tmp_path, KEEP, "--nproc", "1", name, "open", state=kept).lines(0) == []


@ENDS
def test_a_rank_that_does_not_exit_is_reported_and_ended(tmp_path: Path, kept: Path, start: tuple[str, ...]):
    name = script(
        tmp_path,
        """
        import os, threading
        import torch.distributed as dist
        dist.init_process_group("gloo")
        def prefetch():
            threading.Event().wait()
        if dist.get_rank() == 1:
            threading.Thread(target=prefetch, name="loader").start()
        """,
    )
    done = run_here(
        tmp_path,
        *start,
        "--nproc",
        "2",
        "--on-hang",
        "kill",
        "--hang-after",
        "7",
        name,
        state=kept if KEEP in start else None,
    )
    assert done.code == 124, done.said
    where = r"rank 1 is waiting for thread loader at prefetch \(train\.py:6\)"
    assert re.search(rf"^muster: rank 1 finished its script [5-9] s ago but has not exited: {where}", done.err, re.M), (
        done.said
    )
    assert re.search(r"^muster: hang: rank 1 finished its script (7|8|9) s ago", done.err, re.M), done.said


def test_a_variable_that_comes_too_late_is_mentioned_once(tmp_path: Path):
    name = script(
        tmp_path,
        """
        import os
        for variable in ["PYTORCH_JIT"]:
            os.environ[variable] = "0"
        import torch
        """,
    )
    done = run_here(tmp_path, "--nproc", "2", name)
    assert done.err.count("set PYTORCH_JIT before importing torch") == 1, done.said


def test_a_variable_that_the_script_sets_first_gets_fresh_interpreters(tmp_path: Path):
    name = script(
        tmp_path,
        """
        import os
        os.environ["PYTORCH_JIT"] = "0"
        import torch
        print(torch.jit._state._enabled.enabled)
        """,
    )
    done = run_here(tmp_path, "--nproc", "1", name)
    assert done.lines(0) == ["False"], done.said
    assert "sets PYTORCH_JIT before it imports torch, so each rank starts as a fresh interpreter" in done.err


def test_threads_bound_by_the_environment_get_fresh_interpreters(tmp_path: Path):
    done = run_here(tmp_path, "--nproc", "1", script(tmp_path, "print('ran')"), OMP_PROC_BIND="true")
    assert done.lines(0) == ["ran"], done.said
    assert "OMP_PROC_BIND binds threads to CPUs, so ranks start as fresh interpreters" in done.err, done.said


@STARTS
def test_the_command_line_of_a_rank_is_that_of_python(tmp_path: Path, start: tuple[str, ...]):
    name = script(
        tmp_path,
        """
        import json, sys
        print(json.dumps(open("/proc/self/cmdline").read().split("\\0")[1:]))
        print(sys._getframe().f_back)
        """,
    )
    done = run_here(tmp_path, *start, "--nproc", "1", name, "--name", "a b")
    command, below = done.lines(0)
    assert json.loads(command) == ["train.py", "--name", "a b", ""], done.said
    assert below == "None", done.said


def test_a_restart_keeps_the_port_that_the_user_chose(tmp_path: Path):
    name = script(
        tmp_path,
        """
        import os, sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        print(os.environ["MASTER_PORT"], flush=True)
        sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
        """,
    )
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    done = run_here(tmp_path, "--nproc", "2", "--restarts", "1", "--master-port", port, name)
    assert done.code == 0, done.said
    assert done.log(0, 0) == done.log(0, 1) == f"{port}\n".encode(), done.said


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [("USR1", 0, "made"), ("KILL", 125, ": the process that hosts the store (TCPStore) was killed by SIGKILL")],
)
def test_the_store_survives_signals_and_its_death_ends_the_job(tmp_path: Path, number: str, code: int, words: str):
    name = script(
        tmp_path,
        """
        import os, signal, sys, time
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            parent = os.getppid()
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    ours = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(parent)
                    if ours and open(f"/proc/{pid}/cmdline").read().startswith("muster store"):
                        print("found", flush=True)
                        os.kill(int(pid), getattr(signal, "SIG" + sys.argv[1]))
                except OSError:
                    pass
        time.sleep(1)
        dist.new_group([0, 1])
        print("made", flush=True)
        """,
    )
    done = run_here(tmp_path, "--nproc", "2", name, number)
    assert "found" in done.lines(0), done.said
    assert done.code == code, done.said
    assert words in done.out + done.err, done.said


def test_ctrl_c_while_a_rank_is_held_leaves_its_files_whole(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import os, signal, threading, time
        import torch.distributed as dist
        from torch.distributed import distributed_c10d
        if os.environ["RANK"] == "1":
            helper = distributed_c10d._new_process_group_helper
            def slow(*args, **kwargs):
                made = helper(*args, **kwargs)
                time.sleep(1)
                return made
            distributed_c10d._new_process_group_helper = slow
        else:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            left = open("left.txt", "w")
            left.write("whole")
        dist.init_process_group("gloo")
        """,
    )
    done = run_here(tmp_path, KEEP, "--nproc", "2", name, state=kept)
    assert done.code == 130, done.said
    assert (tmp_path / "left.txt").read_text() == "whole"


def test_a_group_on_one_rank_alone_does_not_part_the_others(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import os
        import torch, torch.distributed as dist
        if os.environ["RANK"] == "0":
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(int(total), flush=True)
        """,
    )
    done = run_here(tmp_path, KEEP, "--nproc", "2", name, state=kept)
    assert done.lines(0) == done.lines(1) == ["2"], done.said


def test_a_preloaded_module_that_uses_torch_finds_it(tmp_path: Path):
    (tmp_path / "mine.py").write_text("import sys, torch\ndef ones():\n    return sys.modules['torch'].ones(1)\n")
    name = script(tmp_path, "import mine\nprint(int(mine.ones()))")
    done = run_here(tmp_path, "--nproc", "1", "--preload", "mine", name)
    assert done.lines(0) == ["1"], done.said


@pytest.mark.parametrize("text", ["raise Odd()", "import sys; sys.exit(Odd())"])
def test_an_exception_that_cannot_be_printed_ends_with_1(tmp_path: Path, kept: Path, text: str):
    odd = "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\n"
    done = run_here(tmp_path, KEEP, "--nproc", "1", script(tmp_path, odd + text), state=kept)
    assert done.code == 1, done.said
    assert "str() failed" in done.err, done.said


def test_a_group_with_a_process_that_is_no_rank_is_not_waited_for(tmp_path: Path, kept: Path):
    name = script(
        tmp_path,
        """
        import multiprocessing, os
        import torch.distributed as dist

        def join(rank, store):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            dist.barrier()
            dist.destroy_process_group()

        def second(ports):
            for _ in range(2):
                join(1, dist.TCPStore("127.0.0.1", ports.recv(), is_master=False))

        if __name__ == "__main__":
            ports, theirs = multiprocessing.Pipe()
            child = multiprocessing.get_context("spawn").Process(target=second, args=(theirs,))
            child.start()
            for _ in range(2):
                store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                ports.send(store.port)
                join(0, store)
                print("met", flush=True)
            child.join()
        """,
    )
    done = run_here(tmp_path, KEEP, "--nproc", "1", name, state=kept)
    assert done.lines(0) == ["met", "met"], done.said
    assert "has finished and is waiting" not in done.err, done.said
