"""What a program finds in its own process under Muster, and that docs/inside.md names it; nothing with --no-watch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launching import MUSTER, PLAIN
from waiting import patience

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PAGE = (Path(__file__).parents[2] / "docs" / "inside.md").read_text()

PROGRAM = """
import faulthandler, json, os, sys, threading, time
at_start = dict(os.environ)
import torch, torch.distributed as dist
from torch.optim import optimizer

started = []
start = threading.Thread.start
def noted(thread):
    started.append(thread.name)
    start(thread)
threading.Thread.start = noted
dist.init_process_group("gloo")
dist.new_group(list(range(dist.get_world_size())))
dist.all_reduce(torch.ones(1))
weight = torch.zeros(1, requires_grad=True)
weight.sum().backward()
torch.optim.SGD([weight], 0.1).step()
threading.Thread.start = start

def is_ours(function):
    return function.__globals__["__name__"].startswith("_muster_agent")

functions = {
    "torch.distributed.init_process_group": dist.init_process_group,
    "new_group": dist.new_group,
    "torch.distributed.rendezvous._create_c10d_store": sys.modules["torch.distributed.rendezvous"]._create_c10d_store,
    "capture_begin": torch.cuda.CUDAGraph.capture_begin,
}
hooks = {
    "register_optimizer_step_pre_hook": optimizer._global_optimizer_pre_hooks,
    "register_optimizer_step_post_hook": optimizer._global_optimizer_post_hooks,
}
(caught,) = (int(line.split()[1], 16) for line in open("/proc/self/status") if line.startswith("SigCgt"))
print(json.dumps({
    "wrapped": [name for name, function in functions.items() if hasattr(function, "__globals__") and is_ours(function)],
    "hooks": [name for name, hooked in hooks.items() if any(map(is_ours, hooked.values()))],
    "threads": started,
    "signals": [number for number in range(1, 65) if caught >> (number - 1) & 1],
    "faulthandler": faulthandler.is_enabled(),
    "finders": [type(finder).__name__ for finder in sys.meta_path if type(finder).__module__.startswith("_muster")],
    "env": at_start,
    "changed": [name for name in {**at_start, **os.environ} if at_start.get(name) != os.environ.get(name)],
    "files": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 12) if os.path.lexists(f"/proc/self/fd/{fd}")],
}), flush=True)
dist.destroy_process_group()
"""


def look(folder: Path, *options: str) -> dict[str, Any]:
    """What rank 0 finds: of two forks, or alone as a fresh interpreter, since each of those imports torch."""
    (folder / "look.py").write_text(PROGRAM)
    env = {**PLAIN, "XDG_STATE_HOME": str(folder / "state")}
    ranks = "1" if "--no-zygote" in options else "2"
    argv = [MUSTER, "run", "--quiet", "--no-check", "--nproc", ranks, "--only-rank", "0", *options, "look.py"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("] ")[2])


@pytest.mark.parametrize("options", [(), ("--no-zygote",)])
def test_the_page_names_everything_that_is_different(tmp_path: Path, options: tuple[str, ...]):
    found = look(tmp_path, *options)
    assert {"torch.distributed.init_process_group", "new_group"} <= set(found["wrapped"])
    assert len(found["hooks"]) == 2
    assert "muster-progress" in found["threads"]
    assert int(signal.SIGRTMIN) + 13 in found["signals"]
    assert found["faulthandler"]
    # PLAIN has what this test's own environment has; a shell in between may add a variable of its own.
    new = {name for name, value in found["env"].items() if os.environ.get(name) != value} - {"XDG_STATE_HOME", "_"}
    assert {"RANK", "MUSTER_JOB", "OMP_NUM_THREADS"} <= new
    # Nothing of Muster's changes the environment later, such as the size of the flight recorder; torch does.
    assert set(found["changed"]) <= {"TORCHINDUCTOR_CACHE_DIR"}
    named = [*found["wrapped"], *found["hooks"], *found["threads"], *new]
    assert [name for name in named if f"`{name}`" not in PAGE] == []
    assert [name for name in found["files"] if "muster" in name and "muster stacks" not in name] == []


@pytest.mark.parametrize("options", [("--no-watch",), ("--env", "MUSTER_WATCH=0", "--no-zygote")])
def test_without_the_watch_no_hook_thread_or_handler_is_installed(tmp_path: Path, options: tuple[str, ...]):
    found = look(tmp_path, *options)
    assert (found["wrapped"], found["hooks"], found["threads"]) == ([], [], [])
    assert int(signal.SIGRTMIN) + 13 not in found["signals"]
    assert "OnImport" not in found["finders"]
    assert found["env"]["MUSTER_WATCH"] == "0"


def test_a_group_that_is_left_open_ends_well_without_the_watch(tmp_path: Path):
    (tmp_path / "open.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    )
    env = {**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")}
    argv = [MUSTER, "run", "--no-watch", "--no-check", "--nproc", "2", "open.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stderr
