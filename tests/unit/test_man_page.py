"""The manual page and `muster help`: what --help says, in other places."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from in_process import muster
from tools.man_page import PAGE, man_page

from muster.cli import COMMANDS
from muster.cli.command_table import command_table


def printed(*argv: str) -> str:
    done = muster(*argv, cwd=PAGE.parent, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8").split() == man_page(command_table()).split(), (
        "if the code is right: python -m tools.man_page"
    )


def test_the_page_has_every_command_and_option():
    text = PAGE.read_text(encoding="utf-8").replace(r"\-", "-")
    for command in command_table():
        assert f".SS muster {' '.join(command.words)}\n" in text
        for option in command.options:
            assert rf"\fB{option.names[-1]}\fR" in text


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed")
def test_man_shows_the_page_without_a_warning():
    argv = ["man", "--warnings", "-E", "UTF-8", "-l", str(PAGE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run PyTorch scripts on every GPU you have" in done.stdout


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
def test_mandoc_finds_no_fault():
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", str(PAGE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_wheel_ships_the_page():
    project = (PAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^"man/muster\.1" = "share/man/man1/muster\.1"$', project, re.MULTILINE)


@pytest.mark.parametrize("command", [("run",), ("lab", "up"), ("setup", "ssh"), ("recipes", "copy")])
def test_help_of_a_command_is_its_option_help(command: tuple[str, ...]):
    assert printed("help", *command) == printed(*command, "--help")


def test_help_alone_lists_the_commands():
    assert printed("help") == printed("--help")
    text = printed("help")
    assert all(f"  {name} " in text for name in COMMANDS)


def test_help_of_an_unknown_command_is_an_error():
    argv = [sys.executable, "-m", "muster", "help", "no-such-command"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
