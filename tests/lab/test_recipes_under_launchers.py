"""The small recipes and muster.init() in real processes, under every launcher this machine can have."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.lab import Lab

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

# A plain shell, without what a launcher around the tests may have left. No GPU, so that all machines agree.
ENV = {
    **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

# All recipes one after the other in each rank: one import of torch instead of three.
ALL_RECIPES = """
import runpy
for name in ("hello", "message_passing", "check_config"):
    runpy.run_module(f"muster.recipes.{name}", run_name="__main__", alter_sys=True)
"""

SPAWN = """
import os, runpy, sys
import torch.multiprocessing as mp

def work(rank):
    os.environ["RANK"] = str(rank)
    path, sys.argv[1:] = sys.argv[1], []
    runpy.run_path(path, run_name="__main__")

if __name__ == "__main__":
    os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    mp.spawn(work, nprocs=2)
"""


def run(*argv, timeout=90, **env) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(a) for a in argv], env={**ENV, **env}, capture_output=True, text=True, timeout=timeout)


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def check_output(out: str, world: int, launcher: str) -> None:
    """Look for what each of the three recipes promises, with as many ranks as there were."""
    host = socket.gethostname()
    lines = out.splitlines()
    hellos = [re.fullmatch(r"\[http://(\S+):(\d+)\] hello from \[(.*):gloo\] process (\d+)/(\d+)", x) for x in lines]
    found = [match.groups() for match in hellos if match]
    assert [(h, int(r), int(w)) for _, _, h, r, w in found] == [(host, r, world) for r in range(world)]
    assert len({(addr, port) for addr, port, *_ in found}) == 1
    messages = sorted(line for line in lines if line.startswith("Rank "))
    assert messages == sorted(
        [f"Rank 0 sent data to Rank {r}" for r in range(1, world)]
        + [f"Rank {r} has received data from rank 0" for r in range(1, world)]
    )
    blocks = out[out.index("rank : 0 of") :].split("\n\n")
    assert len(blocks) == world
    for rank, block in enumerate(blocks):
        assert block.startswith(f"rank : {rank} of {world}, local rank {rank} of {world}\nlauncher : {launcher} (")
        assert f"host : {host}\ntorch version : " in block
        assert "torch git version : " in block
        assert "no cuda available" in block


def test_a_copied_recipe_runs_under_plain_python(tmp_path):
    subprocess.run([sys.executable, "-m", "muster", "recipes", "copy", "hello", "--to", tmp_path], check=True)
    done = run(sys.executable, tmp_path / "hello.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\[http://127\.0\.0\.1:\d+\] hello from \[.*:gloo\] process 0/1\n", done.stdout)


def test_recipes_under_plain_python(tmp_path):
    done = run(sys.executable, script(tmp_path, ALL_RECIPES))
    assert (done.returncode, done.stderr) == (0, "")
    check_output(done.stdout, 1, "python")


def test_recipes_under_torchrun(tmp_path):
    done = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script(tmp_path, ALL_RECIPES))
    assert (done.returncode, done.stderr) == (0, "")
    check_output(done.stdout, 2, "torchrun")


def test_recipes_under_torch_distributed_launch(tmp_path):
    done = run(sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2", script(tmp_path, ALL_RECIPES))
    assert done.returncode == 0
    # The launcher itself warns once that it is deprecated; the ranks must add nothing.
    assert done.stderr.count("Warning") == done.stderr.count("FutureWarning: The module torch.distributed.launch") == 1
    assert not re.search(r"\[W|\[rank|error:", done.stderr)
    check_output(done.stdout, 2, "torch.distributed.launch")


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed (apt install openmpi-bin)")
def test_recipes_under_mpirun(tmp_path):
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    done = run("mpirun", *root, "--oversubscribe", "-np", 3, sys.executable, script(tmp_path, ALL_RECIPES))
    assert (done.returncode, done.stderr) == (0, "")
    check_output(done.stdout, 3, "mpirun (Open MPI)")
    assert "OMPI_COMM_WORLD_SIZE : 3" in done.stdout
    assert "OMPI_MCA_orte_precondition_transports : (hidden)" in done.stdout


def test_recipes_under_mp_spawn(tmp_path):
    work = script(tmp_path, ALL_RECIPES, "work.py")
    done = run(sys.executable, script(tmp_path, SPAWN), work, free_port())
    assert (done.returncode, done.stderr) == (0, "")
    check_output(done.stdout, 2, "environment")


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


def test_a_backend_that_cannot_be_had_is_one_sentence_that_names_gloo(tmp_path):
    done = run(sys.executable, script(tmp_path, REFUSED))
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 2"] * 6
    sentences = done.stderr.splitlines()
    assert len(sentences) == 6
    assert all("use gloo" in sentence for sentence in sentences)
    assert sentences[0] == (
        f"error: backend nccl needs a GPU, but rank 0 on {socket.gethostname()} sees no GPU: use gloo"
    )


LIFE = """
import muster, torch, torch.distributed as dist

world = muster.init(timeout=30)
assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1), world
assert world.device == torch.device("cpu") and world.backend == dist.get_backend() == "gloo"
assert world.backend_reason == "there is no GPU"
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
    (dict(backend="tcp"), "no backend `tcp`"),
    (dict(rank=0), "rank and world_size go together"),
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


def test_a_world_is_opened_closed_and_opened_again_without_a_word(tmp_path):
    done = run(sys.executable, script(tmp_path, LIFE))
    assert (done.returncode, done.stdout, done.stderr) == (0, "all said\n", "")


FAILING = """
import sys, time
import muster

with muster.init(rank=int(sys.argv[1]), world_size=2) as world:
    import torch, torch.distributed as dist
    assert (world.local_rank, world.local_size) == (world.rank, 2)
    if world.rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(3), async_op=True)   # rank 1 never joins in
    time.sleep(0.2)
    print(time.time(), flush=True)
    raise ValueError("mine")
"""


def test_a_rank_that_raises_leaves_at_once_although_another_never_answers(tmp_path):
    path = script(tmp_path, FAILING)
    env = {**ENV, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    other = subprocess.Popen([sys.executable, path, "1"], env=env)
    try:
        failing = subprocess.run([sys.executable, path, "0"], env=env, capture_output=True, text=True, timeout=50)
        left = time.time()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(timeout=10)
    assert failing.returncode == 1
    assert failing.stderr.rstrip().endswith("ValueError: mine")
    assert left - float(failing.stdout) < 5


ABSENT = """
import muster
try:
    muster.init(timeout=1)
except muster.MusterError as error:
    print(error)
"""


def test_a_rank_that_never_comes_is_named_on_either_side(tmp_path):
    path, port = script(tmp_path, ABSENT), str(free_port())
    env = {**ENV, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    sides = [
        subprocess.Popen(
            [sys.executable, path],
            env={**env, "RANK": rank, "MASTER_PORT": at},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, at in (("0", port), ("1", str(free_port())))
    ]
    zero, one = (side.communicate(timeout=60) for side in sides)
    assert zero == (f"rank 1 of 2 did not come to 127.0.0.1:{port} within 1 s\n", "")
    assert one[1] == ""
    assert re.fullmatch(
        r"rank 1 on \S+ could not reach rank 0 at 127.0.0.1:\d+ within 1 s: Connection refused\n", one[0]
    )


def test_a_taken_port_is_named(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(
            sys.executable,
            script(tmp_path, ABSENT),
            RANK="0",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    assert done.stdout == f"rank 0 cannot listen on port {port} of {socket.gethostname()}: Address already in use\n"
    assert done.stderr == ""


PLACE = """
import muster
with muster.init(timeout=30) as world:
    print(world.rank, world.local_rank, world.local_size)
"""


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="hosts with names of their own need root")
def test_local_ranks_over_two_hosts_are_found_when_nobody_tells_them(tmp_path):
    path = script(tmp_path, PLACE)
    with Lab(2, bind=(str(tmp_path),)) as lab:
        ranks = [
            lab.popen(
                host,
                [sys.executable, str(path)],
                env={
                    **ENV,
                    "RANK": str(rank),
                    "WORLD_SIZE": "3",
                    "MASTER_ADDR": "h1",
                    "MASTER_PORT": "29501",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(("h1", "h2", "h2"))
        ]
        said = [process.communicate(timeout=60) for process in ranks]
    assert said == [("0 0 1\n", ""), ("1 0 2\n", ""), ("2 1 2\n", "")]
