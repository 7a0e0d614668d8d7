"""`muster completion`: TAB in a real bash, and in zsh and fish where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from in_process import printed
from waiting import end

from muster.cli import COMMANDS, main
from muster.cli.command_table import command_table

SHELLS = ("bash", "zsh", "fish")

ARGV = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}

SETUP = {
    "bash": """\
PS1=; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'
bind 'set page-completions off'; bind 'set enable-bracketed-paste off'; source muster.bash
bind -x '"\\C-t": printf "LINE<%s>\\n" "$READLINE_LINE"'; echo READ''Y
""",
    "zsh": """\
PS1=; unsetopt beep prompt_cr prompt_sp; LISTMAX=1000; autoload -U compinit; compinit -u -D; source muster.zsh
show() { print -r -- "LINE<$BUFFER>" }; zle -N show; bindkey '^T' show; bindkey '^I' complete-word; echo READ''Y
""",
}
"""What a test types first: Ctrl-T then prints the line as it is."""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """The script of each shell, as a user gets it."""
    found: dict[str, str] = {}
    for shell in SHELLS:
        with printed() as texts:
            assert main(["completion", shell]) == 0
        assert texts.err == ""
        found[shell] = texts.out
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


class Shell:
    """An interactive shell at a terminal."""

    def __init__(self, home: Path, name: str) -> None:
        self.terminal, other = pty.openpty()
        self.process = subprocess.Popen(
            ARGV[name], cwd=home, env=environment(home), stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        os.write(self.terminal, SETUP[name].encode())
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


@contextmanager
def shell(home: Path, name: str) -> Generator[Shell]:
    """A shell that has read its completion script."""
    started = Shell(home, name)
    try:
        yield started
    finally:
        started.process.kill()  # an interactive shell ignores SIGTERM
        end(started.process)
        os.close(started.terminal)


@pytest.fixture
def bash(home: Path) -> Iterator[Shell]:
    with shell(home, "bash") as started:
        yield started


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
    ("muster run torchrun --nproc-p", "muster run torchrun --nproc-per-node "),
    (
        "muster run --sync torchrun --max-restarts 3 --rdzv-b",
        "muster run --sync torchrun --max-restarts 3 --rdzv-backend ",
    ),
    ("muster run torchrun --nnodes 1 tr", "muster run torchrun --nnodes 1 train.py "),
    ("muster logs --fol", "muster logs --follow "),
    ("muster logs 20261116-11", "muster logs 20261116-111500-eval-77aa "),
    ("muster show ev", "muster show eval "),
    ("muster stop la", "muster stop last "),
    ("muster lab block", "muster lab block-port "),
    ("muster lab up 4 --pod", "muster lab up 4 --podman "),
    ("muster recipes copy hel", "muster recipes copy hello "),
    ("muster submit --slurm --nodes 2 --npr", "muster submit --slurm --nodes 2 --nproc "),
    ("muster help chec", "muster help check "),
]


def test_bash_completes_commands_options_values_files_jobs_and_hosts(bash: Shell):
    assert [(line, bash.tab(line)[0]) for line, _ in UNIQUE] == UNIQUE


def test_bash_lists_what_can_follow(bash: Shell):
    assert set(COMMANDS) | {"help"} <= set(bash.tab("muster ")[1])
    assert {"gpu01", "gpu02", "@lab", "@large"} <= set(bash.tab("muster run -H ")[1])
    assert {"bash", "zsh", "fish"} <= set(bash.tab("muster completion ")[1])


def test_nothing_that_is_completed_is_run(bash: Shell, home: Path):
    (home / "$(touch bad)").touch()
    (home / "state/muster/jobs/$(touch bad)").mkdir()
    (home / "muster.toml").write_text('[hosts]\n"$(touch bad)" = "c"\n`touch bad` = 1\n')
    for line in ("muster logs ", "muster run -H ", "muster run ", "muster run --hostfile "):
        bash.tab(line)
    assert not (home / "bad").exists()


@pytest.mark.timeout(60)
def test_a_configuration_file_that_is_a_pipe_does_not_hang_the_shell(bash: Shell, home: Path):
    (home / "muster.toml").unlink()
    os.mkfifo(home / "muster.toml")
    assert "gpu01" in bash.tab("muster run -H ")[1]


def test_bash_starts_no_python(home: Path, bash: Shell):
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
    asked = "; ".join(f"complete -C '{line}'; echo END" for line, _ in UNIQUE)
    argv = ["fish", "--no-config", "-c", f"source muster.fish; {asked}"]
    done = subprocess.run(argv, cwd=home, env=environment(home), capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    answers = done.stdout.split("END\n")[:-1]
    for (line, whole), answer in zip(UNIQUE, answers, strict=True):
        found = [one.partition("\t")[0] for one in answer.splitlines()]
        assert whole.split()[-1] in found, (line, found)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_commands_options_values_files_jobs_and_hosts(home: Path):
    with shell(home, "zsh") as zsh:
        for line, whole in UNIQUE:
            assert zsh.tab(line)[0].rstrip(" =") == whole.rstrip(), line  # zsh puts = after an option with a value


@pytest.mark.parametrize("name", SHELLS)
def test_every_command_and_every_option_is_in_the_script(name: str, scripts: dict[str, str]):
    for command in command_table():
        assert command.words[-1] in scripts[name]
        for option in command.options:
            for flag in option.names:
                bare = flag.lstrip("-") if name == "fish" else flag
                assert bare in scripts[name], f"{' '.join(command.words)} {flag}"


def test_the_table_has_every_command_with_its_options():
    table = {command.words: command for command in command_table()}
    assert {words[0] for words in table} == {*COMMANDS, "help"}
    names = {name for option in table["run",].options for name in option.names}
    assert {"--engine", "-H", "--fetch", "--notify"} <= names
    assert table["logs",].arguments[0].kind == "job"
    assert table["submit",].arguments[0].kind == "script"


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("/bin/bash", "source <(muster completion bash)"),
        ("/usr/bin/zsh", "source <(muster completion zsh)"),
        ("/usr/bin/fish", "muster completion fish | source"),
        ("/bin/tcsh", "muster completion --help"),
    ],
)
def test_without_a_shell_the_hint_is_the_line_for_the_current_one(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SHELL", shell)
    assert main(["completion"]) == 2
    said = capsys.readouterr().err
    assert "error: no shell given: bash, zsh or fish" in said
    assert f"`{line}`" in said


def test_an_unknown_shell_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
