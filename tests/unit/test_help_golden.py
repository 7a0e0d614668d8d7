"""Every `--help` is golden: a change of words is seen in the diff, and nobody changes them by accident."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.reference import every_command, golden_name, help_of

GOLDEN = Path(__file__).parents[1] / "golden" / "help"
ALL = list(every_command())


def words(text: str) -> str:
    """The text without line breaks, and with `-H, --hosts HOSTS` as Python 3.13 writes `-H HOSTS, --hosts HOSTS`."""
    return re.sub(r"(-\w) [A-Z]+, (--)", r"\1, \2", " ".join(text.split()))


@pytest.mark.parametrize("command", ALL, ids=lambda command: " ".join(("muster", *command)))
def test_the_help_is_the_golden_one(command: tuple[str, ...]):
    golden = (GOLDEN / golden_name(command)).read_text(encoding="utf-8")
    assert words(help_of(command)) == words(golden), "if the new words are right: python -m tools.reference"


def test_there_is_no_golden_help_of_a_command_that_has_gone():
    assert {path.name for path in GOLDEN.iterdir()} == {golden_name(command) for command in ALL}
