"""The `muster lab` command line, as far as it needs no lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli import main
from muster.cli.lab import COMMANDS, FAULTS
from muster.lab.lab_server import FAULTS as SERVER_FAULTS


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [*COMMANDS, *FAULTS])
def test_every_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", name, "--help"])
    assert ended.value.code == 0
    assert f"  muster lab {name}" in capsys.readouterr().out


def test_the_help_lists_every_command_and_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in (*COMMANDS, *FAULTS))


def test_the_server_can_do_every_fault_of_the_command_line() -> None:
    assert set(FAULTS) == set(SERVER_FAULTS)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["cutt", "h1"], ["muster lab: unknown command `cutt`", "did you mean `muster lab cut`?"]),
        (["dance"], ["muster lab: unknown command `dance`", "`muster lab --help` lists the commands"]),
        (["cut"], ["muster lab cut: ", "HOST", "`muster lab cut --help`"]),
        (["up", "many"], ["N: must be a whole number of at least 1, got `many`", "`muster lab up --help`"]),
        (["loss", "h1", "much"], ["PERCENT: must be a percentage from 0 to 100, got `much`"]),
    ],
)
def test_a_mistyped_command_gets_one_sentence_and_a_hint(
    argv: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(words in captured.err for words in said)


@pytest.mark.parametrize("argv", [["cut", "h1"], ["down"], ["ssh", "h1"], ["exec", "h1", "true"]])
def test_commands_say_when_no_lab_is_up(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *argv]) == 125
    captured = capsys.readouterr()
    assert captured.err == "error: no lab is running\n\nhint: start one with four hosts: muster lab up 4\n"


def test_status_says_that_no_lab_is_up(capsys: pytest.CaptureFixture[str], own_state: Path) -> None:
    assert main(["lab", "status"]) == 1
    assert capsys.readouterr().out == "no lab is running; start one with four hosts: muster lab up 4\n"
    assert main(["lab", "status", "--json"]) == 1
    assert capsys.readouterr().out == '{"hosts": []}\n'
    assert (own_state / "muster").stat().st_mode & 0o777 == 0o700


def test_the_lab_imports_nothing_of_muster_but_errors_and_the_state_directory() -> None:
    code = "import sys, muster.lab.lab_client, muster.cli.lab\nprint(*(m for m in sys.modules if m[:7] == 'muster.'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    foreign = {name for name in done.stdout.split() if not name.startswith(("muster.lab", "muster.cli", "muster.api"))}
    assert foreign == {"muster.errors", "muster.home", "muster.own_python"}
