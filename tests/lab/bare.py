"""Recipes under launchers that are not Muster: the scripts, the ways to start them, and what they must print."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from muster.lab import Lab


@dataclass(frozen=True, kw_only=True)
class Tried:
    """How a recipe is tried under a launcher: short, and with lines that rank 0 must print once."""

    arguments: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    """Patterns of whole lines; WORLD is the number of ranks."""


ACCURACY = r"accuracy: [01]\.\d{4}"
IMAGES = r"images/s: .* end to end .*"

# A recipe that is missing here fails a test. hello, message_passing and check_config print lines of every rank, which
# check_recipes knows.
RECIPES = {
    "ddp": Tried(prints=tuple(rf"epoch {epoch}: loss \d\.\d{{3}}" for epoch in range(3))),
    "gpt": Tried(
        # A short text that every host has.
        arguments=(
            f"--data={__file__}",
            "--layers=1",
            "--heads=1",
            "--width=8",
            "--context=64",
            "--batch=36",
            "--epochs=1",
        ),
        prints=(
            r".* M parameters, [\d,]+ tokens; ddp, adamw; WORLD ranks?; from step 0",
            r"step \d+: validation loss \d.*",
        ),
    ),
    "hello": Tried(),
    "message_passing": Tried(),
    "check_config": Tried(),
    "mnist": Tried(arguments=("--synthetic=100", "--epochs=1", "--batch_size=10"), prints=(ACCURACY, IMAGES)),
    "mnist_unequal": Tried(
        arguments=("--synthetic=100", "--epochs=1", "--batch_size=10"),
        prints=(r"measured shares: \d.*", ACCURACY, IMAGES),
    ),
    "resnet50": Tried(
        arguments=(
            "--use_syn",
            "--steps_syn=1",
            "--batch_size=2",
            "--image_size=32",
            "--arch=resnet18",
            "--num_epochs=1",
        ),
        prints=(r".* on synthetic: \d+ images, 1000 classes; WORLD ranks? on .*", IMAGES),
    ),
    "tacotron2": Tried(
        arguments=(
            "--use_syn",
            "--steps_syn=1",
            "--batch-size=1",
            "--syn-scale=0.02",
            "--epochs=1",
            "--decoder-rnn-dim=16",
            "--attention-rnn-dim=16",
            "--postnet-embedding-dim=16",
        ),
        prints=(
            r".* parameters on WORLD synthetic clips, 0\.0 hours; WORLD ranks?.*",
            r"mels/s: .* end to end .*",
        ),
    ),
}
"""Every recipe."""
LIGHT = RECIPES.keys() - {"mnist_unequal", "resnet50", "tacotron2"}
"""For another test of a launcher under which all have run: these three cost two thirds of the CPU time of all."""

BIN = str(Path(sys.executable).parent)

# A plain shell, without what a launcher around the tests may have left. No GPU, so that all machines agree. `python3`
# is the interpreter of the tests, as in an activated virtual environment.
ENV = {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "HOME": os.path.expanduser("~"),
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}

# All recipes one after the other in each rank: one import of torch instead of one for each. ddp does not use Muster, so
# it needs the variables that torchrun sets; under other launchers, this sets them, as a user would on the command line.
_RECIPES = """
import os, runpy, socket, sys, tempfile, torch.distributed as dist, muster
given = sys.argv[1:]                                     # --local-rank, from torch.distributed.launch
before = dict(os.environ)
with muster.init() as world:
    with socket.create_server(("", 0)) as free:
        place = [world.address.rpartition(":")[0], free.getsockname()[1]]
    dist.broadcast_object_list(place)                    # now, so that nobody connects to what is only a placeholder
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
values = (world.rank, world.size, world.local_rank, *place)
kept = []                                                # a DDP model that is freed at once may hang, see farewell.py
for name, arguments in %r.items():
    sys.argv[1:] = [*given, *arguments]
    os.environ.clear()
    os.environ.update(before)
    if name == "ddp":
        os.chdir(tempfile.mkdtemp())                     # it saves model.pt
        if world.size > 1 and not {*names} <= {*before}:
            os.environ.update(zip(names, map(str, values)))
    kept.append(runpy.run_module(f"muster.recipes.{name}", run_name="__main__", alter_sys=True))
"""

ALL_RECIPES = _RECIPES % {name: tried.arguments for name, tried in RECIPES.items()}
LIGHT_RECIPES = _RECIPES % {name: tried.arguments for name, tried in RECIPES.items() if name in LIGHT}

MESSAGE = r"Rank \d+ (?:sent data to Rank|has received data from rank) \d+\n"
"""What message_passing prints, in one piece."""

PLACE = """
import time
import muster, torch, torch.distributed as dist
with muster.init(timeout=60) as world:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    place = f"local {world.local_rank} of {world.local_size}"
    print(f"rank {world.rank} of {world.size}, {place}, sum {int(ones)}, {world.launcher}", flush=True)
time.sleep(0.2 * (world.size - world.rank))              # the end of a rank must not be the end of another
print(f"rank {world.rank} ends", flush=True)
"""

# Those who come wait for each other before the clock starts: a busy machine may import torch slowly.
ABSENT = """
import os, pathlib, sys, time
folder, variable, size, absent = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
limit = int(sys.argv[5]) if sys.argv[5:] else 2
rank = os.environ[variable]
if rank == absent:
    sys.exit()
import muster, torch.distributed
(folder / f"here-{rank}").touch()
while len(list(folder.glob("here-*"))) < size - 1:
    time.sleep(0.01)
try:
    muster.init(timeout=limit)
except muster.MusterError as error:
    print(f"{rank} says: {error}", flush=True)
"""


def script(folder: Path, text: str, name: str = "script.py") -> str:
    """Write a script and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


@contextmanager
def reserved_port() -> Generator[int]:
    """A port that only who asks for it by its number gets: it is bound here, and nobody listens on it yet.

    One that was picked and released again may be another program's by the time it is used.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: so both may have it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


# mpirun and its child both put the child into a group of its own; who comes second, after the exec, is refused.
_SECOND_SETPGID = re.compile(r"^\[\S+\] plm:rsh: Warning: setpgid\(.*\n", re.MULTILINE)


class Started:
    """A command inside a lab host."""

    def __init__(self, lab: Lab, host: str, argv: Sequence[object], **env: str) -> None:
        self._argv = [str(word) for word in argv]
        pipe = subprocess.PIPE
        self._process = lab.popen(
            host, self._argv, cwd="/", env={**ENV, **env}, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def end(self, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        try:
            out, err = self._process.communicate(timeout=timeout)
        except BaseException:
            self._process.kill()
            raise
        return subprocess.CompletedProcess(self._argv, self._process.returncode, out, _SECOND_SETPGID.sub("", err))


def run_on(lab: Lab, host: str, *argv: object, timeout: float = 200, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command inside a lab host to its end."""
    return Started(lab, host, argv, **env).end(timeout)


def check_recipes(out: str, hosts: Sequence[str], launcher: str, names: Iterable[str] = RECIPES) -> None:
    """Look for what each recipe promises, with one rank on each of `hosts` (several, if a host is named again)."""
    world = len(hosts)
    # mpirun passes on what it has of each rank in pieces of 4 KB: these lines of others may stand within one of rank 0.
    messages = re.findall(MESSAGE, out)
    out = re.sub(MESSAGE, "", out)
    lines = out.splitlines()
    hellos = [re.fullmatch(r"\[http://(\S+):(\d+)\] hello from \[(.*):gloo\] process (\d+)/(\d+)", x) for x in lines]
    found = [match.groups() for match in hellos if match]
    assert [(h, int(r), int(w)) for _, _, h, r, w in found] == [(h, r, world) for r, h in enumerate(hosts)], out
    # A rank that has asked at the address of the first host too early finds rank 0 by the next one, the host's name.
    assert len({(re.sub(r"^10\.77\.0\.", "h", addr), port) for addr, port, *_ in found}) == 1, out
    assert sorted(messages) == sorted(
        [f"Rank 0 sent data to Rank {r}\n" for r in range(1, world)]
        + [f"Rank {r} has received data from rank 0\n" for r in range(1, world)]
    ), out
    blocks = out[out.index("rank : 0 of") :].split("\n\n")
    assert len(blocks) == world
    for rank, (host, block) in enumerate(zip(hosts, blocks, strict=True)):
        local = f"local rank {hosts[:rank].count(host)} of {hosts.count(host)}"
        assert block.startswith(f"rank : {rank} of {world}, {local}\nlauncher : {launcher} (")
        assert f"host : {host}\ntorch version : " in block
        assert "torch git version : " in block
        assert "no cuda available" in block
    for pattern, times in Counter(line for name in names for line in RECIPES[name].prints).items():
        wanted = pattern.replace("WORLD", str(world))
        assert len(re.findall(rf"^{wanted}$", out, re.MULTILINE)) == times, f"{wanted}: not {times} times in\n{out}"


def of_the_ddp_guide(launcher: str) -> str:
    """What the guide passes to `sh -c` under a launcher, so that ddp.py gets the variables it reads."""
    page = (Path(__file__).parents[2] / "docs" / "ddp.md").read_text()
    (command,) = re.findall(rf"^{launcher} [^']*'([^']*)'$", page, re.MULTILINE)
    return command.replace("ddp.py", "-m muster.recipes.ddp")


def places(launcher: str, hosts: Sequence[str]) -> list[str]:
    """What PLACE prints, sorted, with one rank on each of `hosts`."""
    joined = [
        f"rank {rank} of {len(hosts)}, local {hosts[:rank].count(host)} of {hosts.count(host)}, "
        f"sum {len(hosts)}, {launcher}"
        for rank, host in enumerate(hosts)
    ]
    return sorted([*joined, *(f"rank {rank} ends" for rank in range(len(hosts)))])
