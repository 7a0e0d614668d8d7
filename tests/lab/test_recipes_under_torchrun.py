"""Recipes under torchrun and torch.distributed.launch on two lab hosts, and under launchers of the past."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from bare import BIN, LIGHT, LIGHT_RECIPES, PLACE, Started, check_recipes, places, reserved_port, script
from recipes import Command

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="hosts with names of their own need root")

LAUNCHERS = {
    "torchrun": ["torchrun"],
    "torch.distributed.launch": ["python3", "-m", "torch.distributed.launch"],
}


# What the ranks say, apart from what the launchers do: one of those may leave with the store while the other still asks
# it, and then prints a traceback of its own (torch 2.13).
QUIET_RANKS = """
import os
os.dup2(os.open(os.path.dirname(__file__) + "/stderr-" + os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
"""


@pytest.mark.lab
@needs_root
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_recipes_run_on_two_hosts(cluster, shared, warm, launcher):
    port = 29521 + list(LAUNCHERS).index(launcher)
    where = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=h1", f"--master-port={port}"]
    path = script(shared, QUIET_RANKS + LIGHT_RECIPES)
    program, *arguments = LAUNCHERS[launcher]
    agents = [
        Started(cluster, host, [warm / program, *arguments, *where, f"--node-rank={i}", path])
        for i, host in enumerate(("h1", "h2"))
    ]
    first, second = (agent.end(220) for agent in agents)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    said = {path.name: path.read_text() for path in shared.glob("stderr-*")}
    assert said == {f"stderr-{rank}": "" for rank in range(4)}
    check_recipes(second.stdout + first.stdout, ["h1", "h1", "h2", "h2"], launcher, LIGHT)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_as_it_is_installed_starts_two_ranks(tmp_path, launcher):
    # The launcher and the ranks are a Python that is not warm.
    program, *arguments = LAUNCHERS[launcher]
    done = Command(f"{BIN}/{program}", *arguments, "--standalone", "--nproc-per-node=2", script(tmp_path, PLACE)).end()
    assert done.code == 0, done.err
    assert (
        done.err.count("Warning")
        == done.err.count("torch.distributed.launch is deprecated")
        == (launcher != "torchrun")
    )
    # The ranks do not buffer: the end of a line may come after the start of another rank's.
    here = socket.gethostname()
    wanted = places(launcher, [here, here])
    assert all(line in done.out for line in wanted), done.out
    assert len(done.out) == len("\n".join([*wanted, ""]))


def test_recipes_under_a_launcher_that_only_gives_local_rank_as_an_argument(tmp_path, warm):
    # torch.distributed.launch before torch 1.9: no LOCAL_RANK, and `--local_rank` with an underscore.
    with reserved_port() as port:
        zero, one = run_with_local_rank(warm, script(tmp_path, LIGHT_RECIPES), port)
    here = socket.gethostname()
    check_recipes(one + zero, [here, here], "torch.distributed.launch", LIGHT)


def run_with_local_rank(warm: Path, path: str, port: int) -> tuple[str, str]:
    """What two ranks print that get their local rank only as an argument."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [Command(warm / "python3", path, f"--local_rank={rank}", **world, RANK=str(rank)) for rank in range(2)]
    zero, one = (rank.end() for rank in ranks)
    assert (zero.err, one.err) == ("", "")
    return zero.out, one.out
