"""The stdin of `muster run` belongs to its ranks: pipes, files and terminals, here and on another host."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done, run_here
from terminal import CTRL_D, Terminal
from waiting import patience

pytestmark = pytest.mark.timeout(180)

HERE = ["--no-zygote", "--nproc", "1"]
FORKED = ["--nproc", "1"]
OVER_SSH = ["--no-zygote", "--lab", "2", "--nproc", "1"]

EVERYWHERE = pytest.mark.parametrize(
    "where",
    [
        HERE,
        pytest.param(FORKED, marks=pytest.mark.torch),
        pytest.param(OVER_SSH, marks=pytest.mark.lab),
    ],
    ids=["fresh", "forked", "ssh"],
)

# Rank 0 asks, the others find nothing.
ASKS = """
import os, sys
if os.environ["RANK"] == "0":
    name = input("name? ")
    print(f"hello {name}", flush=True)
    print("then", len(sys.stdin.read()))
else:
    print("others have", repr(sys.stdin.read()))
"""


def run_with(folder: Path, stdin: int | None, *argv: str, text: bytes | None = None, limit: float = 100) -> Done:
    """`muster run` with a stdin of its own, or with `text` in a pipe."""
    state = folder / f".state-{time.monotonic_ns()}"
    env = {**PLAIN, "XDG_STATE_HOME": str(state)}
    command = [MUSTER, "run", *argv]
    done = subprocess.run(command, cwd=folder, env=env, stdin=stdin, input=text, capture_output=True, timeout=limit)
    return Done(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode(), state=state)


@contextmanager
def open_pipe() -> Iterator[int]:
    """A pipe into which nobody writes and which nobody closes, as many a CI gives its commands."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@EVERYWHERE
def test_rank_0_reads_what_is_piped_in_to_its_end(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    done = run_with(tmp_path, None, *where, "asks.py", text=b"bob\n" + b"x" * 300_000)
    assert done.code == 0, done.said
    assert done.lines(0) == ["name? hello bob", "then 300000"]
    assert all(line == "others have ''" for line in done.lines(1)), done.said


@EVERYWHERE
def test_rank_0_reads_a_file(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "answers").write_text("ann\n" + "y\n" * 50_000)
    with (tmp_path / "answers").open("rb") as file:
        done = run_with(tmp_path, file.fileno(), *where, "asks.py")
    assert done.code == 0, done.said
    assert done.lines(0) == ["name? hello ann", "then 100000"]


@EVERYWHERE
def test_a_script_that_does_not_read_its_stdin_neither_waits_for_it_nor_for_its_end(
    tmp_path: Path, where: list[str]
) -> None:
    (tmp_path / "quiet.py").write_text("print('done')\n")
    (tmp_path / "much").write_bytes(b"x" * 1_000_000)
    with open_pipe() as pipe, (tmp_path / "much").open("rb") as file:
        for stdin in (pipe, file.fileno()):
            done = run_with(tmp_path, stdin, *where, "quiet.py", limit=60)
            assert done.code == 0, done.said
            assert done.lines(0) == ["done"]


@pytest.mark.lab
def test_a_rank_that_closes_its_stdin_or_is_started_again_does_not_end_the_feed_wrongly(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(
        "import os, sys\n"
        "if os.environ['RANK'] != '0': sys.exit()\n"
        "line = sys.stdin.readline()\n"
        "if not os.path.exists('tried'):\n"
        "    open('tried', 'w').close(); os.close(0); sys.exit('first attempt read ' + line)\n"
        "print('second attempt read', repr(line))\n"
    )
    done = run_with(tmp_path, None, *OVER_SSH, "--restarts", "1", "again.py", text=b"one\n")
    assert done.code == 0, done.said
    assert "first attempt read one" in done.err
    assert done.lines(0) == ["second attempt read ''"]


def test_ranks_on_this_machine_share_one_stdin(tmp_path: Path) -> None:
    (tmp_path / "second.py").write_text("import os\nif os.environ['RANK'] == '1': print('got', input())\n")
    done = run_with(tmp_path, None, "--no-zygote", "--nproc", "2", "second.py", text=b"bob\n")
    assert done.code == 0, done.said
    assert done.lines(1) == ["got bob"]


# --- a terminal ---------------------------------------------------------------------------------------------------


@EVERYWHERE
def test_a_prompt_shows_at_once_and_the_answer_reaches_the_script(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    with Terminal(tmp_path, *where, "asks.py") as terminal:
        terminal.wait_for(r"\[\S+ 0\] name\? ")
        terminal.type("bob\n")
        terminal.wait_for(r"(?m)^(.*\x1b\[K)?\[\S+ 0\] hello bob$")
        terminal.type("more\n" + CTRL_D)
        terminal.wait_for(r"\[\S+ 0\] then 5")
        assert terminal.wait(60) == 0, terminal.screen


@pytest.mark.parametrize(
    "where",
    [
        ["--no-zygote", "--nproc", "2"],
        pytest.param(["--nproc", "2"], marks=pytest.mark.torch),
    ],
    ids=["fresh", "forked"],
)
def test_a_debugger_works_on_any_rank_of_this_machine(tmp_path: Path, where: list[str]) -> None:
    (tmp_path / "debugs.py").write_text(
        "import os\nrank = int(os.environ['RANK'])\nanswer = 41 + rank\n"
        "if rank == 1: breakpoint()\nprint('rank', rank, 'has', answer)\n"
    )
    with Terminal(tmp_path, *where, "debugs.py") as terminal:
        terminal.wait_for(r"1\] \(Pdb\) ")
        terminal.type("p answer * 2\n")
        terminal.wait_for(r"1\] 84\n")
        terminal.wait_for(r"84\n(?s:.*)\[\S+ 1\] \(Pdb\) ")  # a line of rank 0 may follow a prompt
        terminal.type("answer = 7\n")
        terminal.wait_for(r"(?s)answer = 7\n.*\(Pdb\) ")
        terminal.type("c\n")
        assert terminal.wait(60) == 0, terminal.screen
    assert re.search(r"\[\S+ 1\] rank 1 has 7\n", terminal.screen), terminal.screen


@pytest.mark.torch
def test_the_debugger_of_torch_distributed_works_on_the_rank_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "debugs.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nanswer = 42\n"
        "dist.breakpoint(1)\nprint('passed', flush=True)\ndist.destroy_process_group()\n"
    )
    with Terminal(tmp_path, "--nproc", "2", "debugs.py") as terminal:
        terminal.wait_for(r"1\] \(Pdb\) ")
        terminal.type("up\n")
        terminal.wait_for(r"(?s)debugs\.py\(4\).*\(Pdb\) ")
        terminal.type("p answer + 1\n")
        terminal.wait_for(r"1\] 43\n(?s:.*)\[\S+ 1\] \(Pdb\) ")
        terminal.type("c\n")
        assert terminal.wait(100) == 0, terminal.screen
    assert terminal.screen.count("] passed") == 2


def test_an_unfinished_line_that_asks_for_nothing_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "dots.py").write_text(
        "import time\nfor _ in range(4):\n    print('.', end='', flush=True); time.sleep(0.3)\nprint(' done')\n"
    )
    with Terminal(tmp_path, *HERE, "dots.py") as terminal:
        assert terminal.wait(60) == 0, terminal.screen
    assert re.search(r"\[\S+ 0\] \.\.\.\. done\n", terminal.screen), terminal.screen


def test_a_job_in_the_background_leaves_the_terminal_to_the_shell(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("import sys\nprint('stdin:', repr(sys.stdin.read()))\n")
    line = f'$MUSTER run {" ".join(HERE)} asks.py & read line; echo "the shell got $line"; wait %1'
    with Terminal(tmp_path, line, shell=True) as terminal:
        terminal.wait_for(r"stdin: ''")
        terminal.type("my line\n")
        terminal.wait_for("the shell got my line")
        assert terminal.wait(60) == 0, terminal.screen


# --- where there is none ------------------------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.parametrize("call", ["input()", "breakpoint()"])
def test_a_rank_that_prompts_without_stdin_gets_a_hint_which_rank_has_one(tmp_path: Path, call: str) -> None:
    (tmp_path / "asks.py").write_text(
        f"import os, time\nif os.environ['RANK'] == '0': time.sleep(1000)\n{call}\nprint('not reached')\n"
    )
    done = run_with(tmp_path, None, *OVER_SSH, "asks.py", text=b"c\n")
    assert done.code == 1, done.said
    assert f"rank 1 on h2 has no stdin, so {call} cannot read there; only rank 0 has stdin" in done.err
    assert "call it on rank 0 only" in done.err


@pytest.mark.parametrize("call", ["input()", "breakpoint()"])
def test_a_job_without_a_stdin_says_how_to_get_one(tmp_path: Path, call: str) -> None:
    (tmp_path / "asks.py").write_text(f"{call}\nprint('not reached')\n")
    done = run_here(tmp_path, *HERE, "asks.py")
    assert done.code == 1, done.said
    assert f"this job has no stdin, so {call} cannot read: muster run was started in the background" in done.err
    assert "in the foreground of a terminal: `muster run --nproc 1" in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_nobody_elses(tmp_path: Path, closed: str) -> None:
    (tmp_path / "reads.py").write_text("import sys\nopen('read', 'w').write(repr(sys.stdin.read()))\n")
    line = f"exec {MUSTER} run {' '.join(HERE)} reads.py {closed}"
    env = {**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, timeout=patience(100))
    assert done.returncode == 0
    assert (tmp_path / "read").read_text() == "''"
