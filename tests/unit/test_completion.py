"""`muster completion`: TAB in a real bash, and in zsh and fish where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import end

from muster.cli import COMMANDS, main
from muster.cli.command_table import command_table

SHELLS = ("bash", "zsh", "fish")

SETUP = """\
PS1=; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'
bind 'set page-completions off'; bind 'set enable-bracketed-paste off'; source muster.bash
bind -x '"\\C-t": printf "LINE<%s>\\n" "$READLINE_LINE"'; echo READ''Y
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """The script of each shell, as a user gets it."""
    found: dict[str, str] = {}
    for shell in SHELLS:
        argv = [sys.executable, "-m", "muster", "completion", shell]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        found[shell] = done.stdout
    return found


@pytest.fixture
def home(tmp_path: Path, scripts: dict[str, str]) -> Path:
    """A project of a user who has jobs, host groups and hosts of ssh."""
    for job in ("20261116-101500-train-3f9a", "20261116-111500-eval-77aa"):
        (tmp_path / "state/muster/jobs" / job).mkdir(parents=True)
    (tmp_path / "train.py").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "muster.toml").write_text('[hosts]\nlab = "a,b"\nlarge = "c"\n[env]\nNAME = "x"\n')
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpu01 gpu02\n  User me\nHost *\n")
    for shell, text in scripts.items():
        (tmp_path / f"muster.{shell}").write_text(text)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "INPUTRC": "/dev/null",
    }


class Bash:
    """An interactive bash at a terminal."""

    def __init__(self, home: Path) -> None:
        self.terminal, other = pty.openpty()
        argv = ["bash", "--norc", "--noprofile", "-i"]
        self.process = subprocess.Popen(
            argv, cwd=home, env=environment(home), stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        os.write(self.terminal, SETUP.encode())
        self._read("READY")

    def _read(self, until: str) -> str:
        text, limit = "", time.monotonic() + 60
        while not re.search(until, text):
            assert time.monotonic() < limit, text
            if select.select([self.terminal], [], [], 0.2)[0]:
                text += os.read(self.terminal, 65536).decode(errors="replace")
        return text

    def tab(self, line: str) -> tuple[str, list[str]]:
        """What TAB makes of a line, and the candidates it shows."""
        os.write(self.terminal, f"{line}\t\x14".encode())
        text = self._read(r"LINE<[^>]*>")
        os.write(self.terminal, b"\x15")
        completed = re.findall(r"LINE<(.*?)>", text)[-1]
        return completed, text.rpartition("LINE<")[0].split()


@pytest.fixture
def bash(home: Path) -> Iterator[Bash]:
    shell = Bash(home)
    yield shell
    shell.process.kill()  # an interactive shell ignores SIGTERM
    end(shell.process)
    os.close(shell.terminal)


UNIQUE = [
    ("muster ru", "muster run "),
    ("muster run --eng", "muster run --engine "),
    ("muster run --engine sl", "muster run --engine slurm "),
    ("muster run --engine=sl", "muster run --engine=slurm "),
    ("muster run --on-hang k", "muster run --on-hang kill "),
    ("muster run tr", "muster run train.py "),
    ("muster run --nproc 4 --sync tr", "muster run --nproc 4 --sync train.py "),
    ("muster run train.py --config no", "muster run train.py --config notes.txt "),
    ("muster run -H @lar", "muster run -H @large"),
    ("muster run -H gpu01,@lar", "muster run -H gpu01,@large"),
    ("muster run --hosts=gpu01,@lar", "muster run --hosts=gpu01,@large"),
    ("muster run --hostfile no", "muster run --hostfile notes.txt "),
    ("muster logs --fol", "muster logs --follow "),
    ("muster logs 20261116-11", "muster logs 20261116-111500-eval-77aa "),
    ("muster show ev", "muster show eval "),
    ("muster stop la", "muster stop last "),
    ("muster lab block", "muster lab block-port "),
    ("muster lab up 4 --pod", "muster lab up 4 --podman "),
    ("muster recipes copy mn", "muster recipes copy mnist "),
    ("muster submit --slurm --nodes 2 --npr", "muster submit --slurm --nodes 2 --nproc "),
    ("muster help chec", "muster help check "),
]


def test_bash_completes_commands_options_values_files_jobs_and_hosts(bash: Bash):
    assert [(line, bash.tab(line)[0]) for line, _ in UNIQUE] == UNIQUE


def test_bash_lists_what_can_follow(bash: Bash):
    assert set(COMMANDS) | {"help"} <= set(bash.tab("muster ")[1])
    assert {"gpu01", "gpu02", "@lab", "@large"} <= set(bash.tab("muster run -H ")[1])
    assert {"bash", "zsh", "fish"} <= set(bash.tab("muster completion ")[1])


def test_nothing_that_is_completed_is_run(bash: Bash, home: Path):
    (home / "$(touch bad)").touch()
    (home / "state/muster/jobs/$(touch bad)").mkdir()
    (home / "muster.toml").write_text('[hosts]\n"$(touch bad)" = "c"\n`touch bad` = 1\n')
    for line in ("muster logs ", "muster run -H ", "muster run ", "muster run --hostfile "):
        bash.tab(line)
    assert not (home / "bad").exists()


def test_bash_starts_no_python(home: Path, bash: Bash):
    for name in ("python", "python3", "muster"):
        program = home / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {home}/started\n")
        program.chmod(0o755)
    os.write(bash.terminal, f"PATH={home}/bin:$PATH; echo READ''Y\n".encode())
    bash._read("READY")
    for line, _ in UNIQUE:
        bash.tab(line)
    assert not (home / "started").exists()


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_commands_options_values_files_jobs_and_hosts(home: Path):
    for line, whole in UNIQUE:
        argv = ["fish", "--no-config", "-c", f"source muster.fish; complete -C '{line}'"]
        done = subprocess.run(argv, cwd=home, env=environment(home), capture_output=True, text=True, timeout=60)
        found = [one.partition("\t")[0] for one in done.stdout.splitlines()]
        assert (whole.split()[-1] in found, done.stderr) == (True, ""), (line, found)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_takes_its_script(home: Path):
    done = subprocess.run(["zsh", "-n", "muster.zsh"], cwd=home, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_every_option_is_in_the_script(shell: str, scripts: dict[str, str]):
    for command in command_table():
        assert command.words[-1] in scripts[shell]
        for option in command.options:
            for name in option.names:
                bare = name.lstrip("-") if shell == "fish" else name
                assert bare in scripts[shell], f"{' '.join(command.words)} {name}"


def test_the_table_has_every_command_with_its_options():
    table = {command.words: command for command in command_table()}
    assert {words[0] for words in table} == {*COMMANDS, "help"}
    names = {name for option in table["run",].options for name in option.names}
    assert {"--engine", "-H", "--fetch", "--notify"} <= names
    assert table["logs",].arguments[0].kind == "job"
    assert table["submit",].arguments[0].kind == "script"


def test_an_unknown_shell_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
