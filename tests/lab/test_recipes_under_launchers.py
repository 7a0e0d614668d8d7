"""The small recipes and muster.init() in real processes, under every launcher this machine can have."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from bare import ALL_RECIPES, ENV, PLACE, RECIPES, Started, check_recipes, places, reserved_port, script
from launching import run_here
from recipes import Command, Ended
from waiting import ending

from muster.cli.recipes import find_recipes
from muster.lab import Lab

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SPAWN = """
import os, runpy, sys
import torch.multiprocessing as mp
import muster

def work(rank, size, path):
    with muster.init(rank=rank, world_size=size) as world:
        print(f"worker {world.rank} of {world.size}, local {world.local_rank} of {world.local_size}", flush=True)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    sys.argv[1:] = []
    runpy.run_path(path, run_name="__main__")

if __name__ == "__main__":
    mp.spawn(work, args=(2, sys.argv[1]), nprocs=2)
"""


def run(*argv: object, **env: str) -> Ended:
    return Command(*argv, **env).end()


def check_here(out: str, world: int, launcher: str) -> None:
    """Look for what each recipe promises, with all ranks on this machine."""
    check_recipes(out, [socket.gethostname()] * world, launcher)


def test_every_recipe_is_among_those_that_are_tried():
    assert set(RECIPES) == set(find_recipes())


def test_a_copied_recipe_runs_under_plain_python(tmp_path):
    subprocess.run([sys.executable, "-m", "muster", "recipes", "copy", "hello", "--to", tmp_path], check=True)
    done = run(sys.executable, tmp_path / "hello.py")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"\[http://127\.0\.0\.1:\d+\] hello from \[.*:gloo\] process 0/1\n", done.out)


def test_recipes_run_under_plain_python(tmp_path, warm):
    done = run(warm / "python3", script(tmp_path, ALL_RECIPES))
    assert (done.code, done.err) == (0, "")
    check_here(done.out, 1, "python")


def test_recipes_run_under_muster_run(tmp_path):
    done = run_here(
        tmp_path, "--nproc", "2", "--quiet", script(tmp_path, ALL_RECIPES), timeout=150, OMP_NUM_THREADS="1"
    )
    assert (done.code, done.err) == (0, ""), done.said
    check_here(re.sub(r"^\[\S+ \d+\] ?", "", done.out, flags=re.MULTILINE), 2, "muster run")


def test_recipes_run_under_torchrun(tmp_path, warm):
    done = run(warm / "torchrun", "--nproc-per-node=2", script(tmp_path, ALL_RECIPES))
    assert (done.code, done.err) == (0, "")
    check_here(done.out, 2, "torchrun")


def test_recipes_under_torch_distributed_launch(tmp_path, warm):
    done = run(warm / "python3", "-m", "torch.distributed.launch", "--nproc-per-node=2", script(tmp_path, ALL_RECIPES))
    assert done.code == 0
    # The launcher itself warns once that it is deprecated; the ranks must add nothing.
    assert done.err.count("Warning") == done.err.count("FutureWarning: The module torch.distributed.launch") == 1
    assert not re.search(r"\[W|\[rank|error:", done.err)
    check_here(done.out, 2, "torch.distributed.launch")


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed (apt install openmpi-bin)")
def test_recipes_run_under_mpirun(tmp_path, warm):
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    done = run("mpirun", *root, "--oversubscribe", "-np", 3, warm / "python3", script(tmp_path, ALL_RECIPES))
    assert (done.code, done.err) == (0, "")
    check_here(done.out, 3, "mpirun (Open MPI)")
    assert "OMPI_COMM_WORLD_SIZE : 3" in done.out
    assert "OMPI_MCA_orte_precondition_transports : (hidden)" in done.out


WORKERS = {"worker 0 of 2, local 0 of 2", "worker 1 of 2, local 1 of 2"}


def test_ranks_of_mp_spawn_meet_without_an_address(tmp_path):
    # They are a Python that is not warm.
    done = run(sys.executable, script(tmp_path, SPAWN), script(tmp_path, PLACE, "work.py"))
    assert (done.code, done.err) == (0, "")
    here = socket.gethostname()
    assert sorted(done.out.splitlines()) == sorted([*WORKERS, *places("environment", [here, here])])


def test_recipes_under_mp_spawn_meet_without_an_address(tmp_path, warm):
    work = script(tmp_path, ALL_RECIPES, "work.py")
    done = run(warm / "python3", script(tmp_path, SPAWN), work)
    assert (done.code, done.err) == (0, "")
    assert set(done.out.splitlines()) >= WORKERS
    check_here(done.out, 2, "environment")


REFUSED = """
import runpy, sys
for name in ("hello", "message_passing", "check_config"):
    for backend in ("nccl", "mpi"):
        sys.argv[1:] = ["--backend", backend, "--local_rank", "0"]
        try:
            runpy.run_module(f"muster.recipes.{name}", run_name="__main__")
        except SystemExit as left:
            print("exit", left.code)
"""


def test_a_backend_that_cannot_be_had_is_one_sentence_that_names_gloo(tmp_path, warm):
    done = run(warm / "python3", script(tmp_path, REFUSED))
    assert [line for line in done.out.splitlines() if line.startswith("exit")] == ["exit 2"] * 6
    errors, hints = done.err.splitlines()[::2], done.err.splitlines()[1::2]
    assert len(errors) == len(hints) == 6
    assert all("use backend gloo" in hint for hint in hints)
    assert errors[0] == f"error: backend nccl is not available: rank 0 on {socket.gethostname()} has no visible GPU"


LIFE = """
import muster, torch, torch.distributed as dist

world = muster.init(timeout=30)
assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1), world
assert world.device == torch.device("cpu") and world.backend == dist.get_backend() == "gloo"
assert world.backend_reason == "no GPU is visible"
world.close()
world.close()
assert not dist.is_initialized()

try:
    with muster.init() as world:
        raise KeyError("mine")
except KeyError:
    assert not dist.is_initialized()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with muster.init() as world:
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1), world
assert dist.is_initialized(), "a group that was there before is left alone"
dist.destroy_process_group()

for wrong, words in (
    (dict(backend="tcp"), "unknown backend `tcp`"),
    (dict(rank=0), "rank and world_size must be given together"),
    (dict(rank=1, world_size=2), "MASTER_ADDR is not set"),
):
    try:
        muster.init(**wrong)
    except muster.MusterError as error:
        assert words in str(error) and error.hint, error
    else:
        raise AssertionError(wrong)
muster.init()  # and never closed
print("all said")
"""


def test_a_world_is_opened_closed_and_opened_again_silently(tmp_path):
    done = run(sys.executable, script(tmp_path, LIFE))  # a real Python, because a world is left open at its end
    assert (done.code, done.out, done.err) == (0, "all said\n", "")


FAILING = """
import sys, time
import muster

with muster.init(rank=int(sys.argv[1]), world_size=2) as world:
    import torch, torch.distributed as dist
    assert (world.local_rank, world.local_size) == (world.rank, 2)
    if world.rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(3), async_op=True)   # rank 1 never joins in
    time.sleep(0.2)
    print(time.time(), flush=True)
    raise ValueError("mine")
"""


def test_a_rank_that_raises_leaves_at_once_although_another_never_answers(tmp_path, warm):
    path = script(tmp_path, FAILING)
    with reserved_port() as port:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with ending(subprocess.Popen([warm / "python3", path, "1"], env={**ENV, **env})) as other:
            failing = run(warm / "python3", path, "0", **env)
            left = time.time()
            assert other.poll() is None
    assert failing.code == 1
    assert failing.err.rstrip().endswith("ValueError: mine")
    assert left - float(failing.out) < 60, "it waited for the other"


ABSENT = """
import muster
try:
    muster.init(timeout=1)
except muster.MusterError as error:
    print(error)
"""


def test_a_rank_that_never_comes_is_named_on_either_side(tmp_path, warm):
    path = script(tmp_path, ABSENT)
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with reserved_port() as port, reserved_port() as nobodys:
        sides = [
            Command(warm / "python3", path, **env, RANK=str(rank), MASTER_PORT=str(at))
            for rank, at in ((0, port), (1, nobodys))
        ]
        zero, one = (side.end() for side in sides)
    assert (zero.err, one.err) == ("", "")
    assert zero.out == f"rank 1 of 2 did not reach rank 0 at 127.0.0.1:{port} within 1 s\n"
    assert re.fullmatch(
        r"rank 1 on \S+ could not reach rank 0 at 127.0.0.1:\d+ within 1 s: Connection refused\n", one.out
    )


def test_a_taken_port_is_named(tmp_path, warm):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(
            warm / "python3",
            script(tmp_path, ABSENT),
            RANK="0",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    assert done.out == f"rank 0 could not listen on port {port} of {socket.gethostname()}: Address already in use\n"
    assert done.err == ""


LOCAL = """
import muster
with muster.init(timeout=30) as world:
    print(world.rank, world.local_rank, world.local_size)
"""


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="hosts with names of their own need root")
def test_local_ranks_over_two_hosts_are_found_without_variables(shared, warm):
    path = script(shared, LOCAL)
    env = {"WORLD_SIZE": "3", "MASTER_ADDR": "h1", "MASTER_PORT": "29501"}
    with Lab(2, bind=(shared,)) as lab:
        ranks = [
            Started(lab, host, [warm / "python3", path], RANK=str(rank), **env)
            for rank, host in enumerate(("h1", "h2", "h2"))
        ]
        ended = [rank.end() for rank in ranks]
    assert [(rank.stdout, rank.stderr) for rank in ended] == [("0 0 1\n", ""), ("1 0 2\n", ""), ("2 1 2\n", "")]
