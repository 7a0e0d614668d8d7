"""The documentation is true: each console block is run as written, and prints what the page shows.

tools/console.py has the language of the blocks. They are typed on this machine (`here`), in h1 of three hosts (`lab`),
or in h1 of two hosts with Slurm, MPI and two pretended GPUs each (`cluster`) or with a stand-in for PBS (`pbs`).
`kept` and `kept lab` are `here` and `lab` with hosts that `muster keep` has made ready, of the lab h1 and h2: most of
the cost of a page is the import of torch, and all blocks of these places share one for each host. A page that shows
what is kept is not typed there. A block's `first:` may turn the zygote off or keep hosts to save CPU time where nothing
shown depends on it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bare import AS_ROOT, BIN
from launching import PLAIN
from pbs import PbsSite
from tools.console import Block, CodeFile, Command, apply_diff, differences, pages, read_page
from waiting import end as end_process
from waiting import patience

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH
from muster.text import tilde

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in pages(ROOT)
    if any(isinstance(one, Block) and not one.reason for one in read_page(page.read_text()))
]

REUSING = "muster: reusing the agents kept on "

LIMIT = 120
"""Seconds for one block."""

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="the guides' hosts are a lab started as root"),
    pytest.mark.skipif(
        not all(shutil.which(name, path=SYSTEM_PATH) for name in ("slurmctld", "mpirun.openmpi", "mpiexec.hydra")),
        reason="apt-get install slurmctld slurmd slurm-client munge openmpi-bin mpich",
    ),
]

HERE = socket.gethostname()
SHOWN = {
    f"[{HERE} ": "[box ",
    f"@{HERE} ": "@box ",
    f" on {HERE} ": " on box ",
    f"(local): {HERE}": "(local): box",
    BIN: "/home/ann/venv/bin",
    tilde(Path(BIN)): "/home/ann/venv/bin",  # of a checkout in the home directory
}
"""What the documents call what this machine calls otherwise."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where blocks are typed."""

    lab: Lab | None = None
    env: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Variables of its shells, beside those of all; None takes one away."""
    kept: Path | None = None
    """The state directory for which its hosts are kept, which runs say in a line that the pages do not show."""


Places = Callable[[str], Place]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this machine and all hosts share."""
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[Places]:
    """The labs, each started when the first block asks for it."""
    with ExitStack() as stack:

        @cache
        def place(name: str) -> Place:
            if name == "here":
                return Place()
            if name == "lab":
                return Place(lab=stack.enter_context(Lab(3, bind=(folder,))))
            if name == "cluster":
                lab = stack.enter_context(Lab(2, bind=(folder,), slurm=True, mpi=True, gpus=2))
                return Place(lab=lab, env={"CUDA_VISIBLE_DEVICES": None})
            if name in ("kept", "kept lab"):
                return stack.enter_context(kept(place(name.removeprefix("kept").strip() or "here"), folder))
            assert name == "pbs", name
            lab = stack.enter_context(Lab(2, bind=(folder,)))
            site = stack.enter_context(PbsSite(lab, folder))
            return Place(lab=lab, env={"PATH": f"{BIN}:{site.path}", "HOME": str(site.home)})

        yield place


@contextmanager
def kept(place: Place, folder: Path) -> Generator[Place]:
    """A place with hosts made ready by `muster keep`: those that its blocks use, of a lab the first two."""
    hosts = "localhost" if place.lab is None else ",".join(place.lab.names[:2])
    there = replace(place, kept=folder / f".state-{hosts}")

    def keep(*argv: str) -> None:
        assert process([f"{BIN}/muster", "keep", *argv], folder, there).wait(patience(LIMIT)) == 0

    keep("-H", hosts)
    yield there
    keep("--end")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_console_blocks_of_a_page_are_true(page: Path, folder: Path, places: Places):
    home = folder / page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-")
    home.mkdir()
    try:
        wrong = [told for one in read_page(page.read_text()) for told in untrue(one, home, places)]
    finally:
        if any(home.glob(".state/muster/lab*")):  # one that the page itself has brought up
            subprocess.run(
                [f"{BIN}/muster", "lab", "down"], env=environment(home, Place()), capture_output=True, timeout=30
            )
    assert not wrong, "\n\n".join(f"{page.name}:{told}" for told in wrong)


def untrue(one: Block | CodeFile, home: Path, places: Places) -> Iterator[str]:
    """Write a file or type a block; what is not as the page says."""
    if isinstance(one, CodeFile):
        write_file(home, one)
        return
    if one.reason:
        return
    for command, code, printed in typed(one, home, places(one.place)):
        last = command is one.commands[-1]
        expected = one.exit_code if last else 0
        told = differences(printed, command.printed, any_numbers=one.any_numbers) if command.printed else ""
        if code != expected:
            told += f"\nexit code {code}, not {expected}:\n" + "\n".join(printed)
        if told:
            yield f"{one.line}: $ {command.text}\n{told}"


def write_file(home: Path, code: CodeFile) -> None:
    """Write the file of a code block; a diff is applied to `OLD` of its title `OLD -> NEW`."""
    old, _, new = code.name.rpartition(" -> ")
    path = home / new
    path.parent.mkdir(parents=True, exist_ok=True)
    text = apply_diff(code.text, (home / old).read_text()) if code.is_diff else code.text
    path.write_text(text.replace("/home/ann/venv/bin", BIN))


def typed(block: Block, home: Path, place: Place) -> Iterator[tuple[Command, int, list[str]]]:
    """Type the commands of a block, one after the other; those of several hosts at the same time."""
    hosts = {command.host for command in block.commands}
    if hosts == {""}:
        yield from shell(block, block.commands, home, place, "h1")()
    else:
        shells = [shell(block, [command], home, place, command.host) for command in block.commands]
        for end in shells:
            yield from end()


def environment(home: Path, place: Place) -> dict[str, str]:
    """A plain shell with the virtual environment of the tests, and a state folder of the page's own.

    Threads of OpenMP sleep while they wait: two of them on busy cores take twice the CPU time of a small training.
    """
    own = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(place.kept or home / ".state"),
        "GOMP_SPINCOUNT": "0",
    }
    return {name: value for name, value in {**PLAIN, **AS_ROOT, **own, **place.env}.items() if value is not None}


def process(argv: Sequence[str], home: Path, place: Place, host: str = "h1") -> subprocess.Popen[bytes]:
    """Start a command in a directory; its output is not read."""
    env = environment(home, place)
    if place.kept is not None:  # hosts are kept for a path, which leads to the jobs of the page
        (home / ".state").mkdir(exist_ok=True)
        if not place.kept.is_symlink() or place.kept.readlink() != home / ".state":
            place.kept.unlink(missing_ok=True)
            place.kept.symlink_to(home / ".state")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if place.lab is None:
        return subprocess.Popen(argv, cwd=home, env=env, **quiet)
    return place.lab.popen(host, argv, cwd=str(home), env=env, **quiet)


def shell(
    block: Block, commands: Sequence[Command], home: Path, place: Place, host: str
) -> Callable[[], Iterator[tuple[Command, int, list[str]]]]:
    """Start a shell that types the commands; the returned function waits for it and returns what each printed."""
    base = Path(mkdtemp(prefix=".typed-", dir=home))
    lines = [f"cd {home}", *block.first]
    for number, command in enumerate(commands):
        # `$?` of the command before it is left as it was.
        lines += [f"exec > {base}/{number} 2>&1", "(exit ${code-0})"]
        lines += [command.text, f"code=$?; echo $code > {base}/{number}.code"]
    script = base / "script"
    script.write_text("\n".join(lines) + "\n")
    typing = process(["bash", str(script)], home, place, host)

    def end() -> Iterator[tuple[Command, int, list[str]]]:
        limit = patience(LIMIT)
        try:
            typing.wait(limit)
        except subprocess.TimeoutExpired:
            end_process(typing)
            raise AssertionError(
                f"still running after {limit:.0f} s: {commands[0].text}\n{(base / '0').read_text()}"
            ) from None
        for number, command in enumerate(commands):
            printed = (base / str(number)).read_text(errors="replace")
            for real, shown in SHOWN.items():
                printed = printed.replace(real, shown)
            printed = printed.replace(str(home), "/home/ann/project")
            lines = [line for line in printed.splitlines() if not (place.kept and line.startswith(REUSING))]
            yield command, int((base / f"{number}.code").read_text()), lines

    return end
