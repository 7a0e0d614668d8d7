"""Ctrl-Z during `muster run` at a terminal: the prompt returns, the job keeps running, and `fg` brings it back."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, run_here
from terminal import CTRL_C, OnTerminal, Terminal
from waiting import process_state, wait_until

from muster.jobs.job_folders import find, read_job

pytestmark = pytest.mark.timeout(180)

CTRL_Z = "\x1a"
FAST = "--no-zygote --no-check --nproc 1"
COUNTS = """
import os, time
for number in range(100000):
    print("line", number, flush=True)
    time.sleep(0.1)
"""


class Shell(OnTerminal):
    """An interactive shell, which has job control, in a directory with counts.py."""

    def __init__(self, folder: Path, *argv: str) -> None:
        (folder / "counts.py").write_text(COUNTS)
        self.state = folder / "state"
        env = {**PLAIN, "XDG_STATE_HOME": str(self.state), "NO_COLOR": "1", "PS1": "PROMPT> ", "MUSTER": MUSTER}
        super().__init__(argv, folder, env, columns=160)
        self.wait_for("PROMPT> ")

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # an interactive shell ignores SIGTERM
        super().__exit__()

    def prompts(self) -> int:
        return self.screen.count("PROMPT> ")

    def suspend(self) -> None:
        """Press Ctrl-Z, and wait until the shell has shown its prompt again."""
        before = self.prompts()
        self.type(CTRL_Z)
        self.wait_for("the job keeps running in the background")
        wait_until("the prompt", lambda: self.prompts() > before, 30, lambda: self.screen)


SHELLS = pytest.mark.parametrize(
    "argv",
    [
        pytest.param(argv, marks=pytest.mark.skipif(shutil.which(argv[0]) is None, reason=f"apt-get install {argv[0]}"))
        for argv in (("bash", "--norc", "-i"), ("dash", "-i"), ("zsh", "-f", "-i"))
    ],
    ids=lambda argv: argv[0],
)


@pytest.fixture(autouse=True)
def no_job_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    run_here(tmp_path, "--all", "--now", command="stop", state=tmp_path / "state")


def written(folder: Path) -> int:
    """How many lines the rank has written so far."""
    return sum(path.read_text().count("\n") for path in find("last").folder.glob("attempt-0/rank-0.log"))


@SHELLS
def test_ctrl_z_returns_to_the_shell_while_the_job_keeps_running_and_fg_brings_it_back(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    with Shell(tmp_path, *argv) as shell:
        shell.type(f"$MUSTER run {FAST} counts.py\n")
        shell.wait_for(r"0\] line 2\n")
        shell.suspend()
        before, shown = written(tmp_path), shell.screen.count("] line")
        wait_until("more lines of the rank", lambda: written(tmp_path) > before + 10, 30)
        assert shell.screen.count("] line") == shown, "the terminal belongs to the shell"
        shell.type("$MUSTER ps\n")
        shell.wait_for(r"counts-[0-9a-f]{4} +running ")
        shell.type("fg\n")
        shell.wait_for("the job is in the foreground again; its output meanwhile is in .*screen.log")
        wait_until("lines on the terminal", lambda: shell.screen.count("] line") > shown + 2, 30)
        shell.suspend()  # as often as one likes
        shell.type("fg\n")
        wait_until("the foreground", lambda: shell.screen.count("in the foreground again") == 2, 30)
        shell.type(CTRL_C)
        shell.wait_for("stopped by Ctrl-C")
        assert "line 9\n" in (find("last").folder / "screen.log").read_text()


def test_a_job_in_the_background_survives_its_terminal_and_can_be_attached_to(tmp_path: Path) -> None:
    with Shell(tmp_path, "bash", "--norc", "-i") as shell:
        shell.type(f"$MUSTER run {FAST} counts.py\n")
        shell.wait_for(r"0\] line 2\n")
        shell.suspend()
        shell.process.kill()  # the leader of the session: the kernel hangs the terminal up
    before = written(tmp_path)
    wait_until("more lines of the rank", lambda: written(tmp_path) > before + 10, 30)
    with OnTerminal([MUSTER, "attach"], tmp_path, {**PLAIN, "XDG_STATE_HOME": str(tmp_path / "state")}) as attached:
        attached.wait_for(rf"line {before + 12}\n")
        attached.type(CTRL_C)
        attached.wait_for("detached. The job keeps running")


@pytest.mark.parametrize(
    "where",
    [FAST, pytest.param("--no-zygote --no-check --lab 2 --nproc 1", marks=pytest.mark.lab)],
    ids=["here", "ssh"],
)
def test_a_script_that_reads_the_terminal_does_not_take_what_is_typed_for_the_shell(tmp_path: Path, where: str) -> None:
    (tmp_path / "asks.py").write_text(
        "import os\nif os.environ['RANK'] == '0':\n    print('hello', input('name? '), flush=True)\n"
    )
    with Shell(tmp_path, "bash", "--norc", "-i") as shell:
        shell.type(f"$MUSTER run {where} asks.py\n")
        shell.wait_for(r"\[\S+ 0\] name\? ")
        shell.suspend()
        if where is FAST:
            wait_until("the rank to be stopped", lambda: process_state(rank_pid()) == "T", 30)
        for word in ("one", "two", "three"):
            shell.type(f"echo sa''id {word}\n")
            shell.wait_for(f"said {word}\n")
        shell.type("fg\n")
        shell.wait_for("the job is in the foreground again")
        shell.type("bob\n")
        shell.wait_for("hello bob")
        wait_until("the end", lambda: read_job(find("last").folder).life == "ended", 30, lambda: shell.screen)


def test_a_rank_that_waits_for_a_terminal_continues_when_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("input('name? ')\n")
    with Shell(tmp_path, "bash", "--norc", "-i") as shell:
        shell.type(f"$MUSTER run {FAST} asks.py\n")
        shell.wait_for(r"\[\S+ 0\] name\? ")
        shell.suspend()
        wait_until("the rank to be stopped", lambda: process_state(rank_pid()) == "T", 30)
        shell.process.kill()
    wait_until("the rank to continue", lambda: process_state(rank_pid()) != "T", 30)


def test_under_nohup_a_job_survives_its_terminal_after_fg_as_well(tmp_path: Path) -> None:
    with Shell(tmp_path, "bash", "--norc", "-i") as shell:
        shell.type(f"nohup $MUSTER run {FAST} counts.py\n")
        out = tmp_path / "nohup.out"
        wait_until("the job", lambda: out.exists() and "line 2\n" in out.read_text(), 60)
        shell.type(CTRL_Z)
        shell.wait_for("Stopped")
        shell.type("fg\n")
        wait_until("the foreground", lambda: "in the foreground again\n" in out.read_text(), 30)
        shell.process.kill()
    before = written(tmp_path)
    wait_until("more lines of the rank", lambda: written(tmp_path) > before + 10, 30)
    assert "SIGHUP" not in out.read_text()


def rank_pid() -> int:
    """The process id of rank 0 of the newest job; 0 before it is known."""
    state = find("last").state
    return (state.ranks[0].pid or 0) if state is not None and state.ranks else 0


def test_without_a_shell_that_could_bring_the_job_back_ctrl_z_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    with Terminal(tmp_path, *FAST.split(), "counts.py") as terminal:
        terminal.wait_for(r"0\] line 2\n")
        terminal.type(CTRL_Z)
        terminal.wait_for("no shell here can bring the job back, so it stays; press Ctrl-C to stop it")
        shown = int(re.findall(r"line (\d+)\n", terminal.screen)[-1])
        terminal.wait_for(rf"line {shown + 5}\n")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
