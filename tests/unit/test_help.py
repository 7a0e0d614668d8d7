"""`--help`: there for every command, with an example, and quick to come."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import muster

from muster.cli import COMMANDS, main


def muster_help(*command: str) -> str:
    done = muster(*command, "--help", cwd=Path("/"), env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_an_example(name: str):
    text = muster_help(name)
    assert text.startswith(f"usage: muster {name}")
    _, _, examples = text.partition("example")
    assert f"muster {name} " in examples


def test_the_help_of_muster_lists_every_command():
    text = muster_help()
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in text
        assert summary in text


def test_the_command_starts_light():
    # Each of these takes longer to import than everything else that `muster --help` does.
    heavy = "{'torch', 'numpy', 'asyncio', 'dataclasses', 'rich', 'importlib.metadata', 'subprocess'}"
    code = f"import sys; from muster.cli import main; main(['--help']); print({heavy} & set(sys.modules))"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_help_of_run_does_not_run_the_script_after_it(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit:
        main(["help", "run", "train.py"])
    assert exit.value.code == 0
    assert capsys.readouterr().out.startswith("usage: muster run ")


def test_output_to_a_full_disk_is_one_sentence():
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = [sys.executable, "-m", "muster", "--help"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, env=env, timeout=100)
    assert (done.returncode, done.stderr) == (125, "error: the output: no space left on device\n")
