"""RunSpec: what a run can be asked for, from the command line and from Python."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from muster.api.run_options import parse_words, run_parser, spec_as_typed, spec_of, spec_with
from muster.cli import run
from muster.errors import UsageError
from muster.hosts import Host
from muster.spec import RunSpec

OF_THE_COMMAND = {"command", "detach", "dry_run", "env_file", "help", "hostfile", "module", "slurm_args"}
"""What `muster run` does itself, before or instead of a run."""


def spec(*argv: str) -> RunSpec:
    options, command = run.parse(argv)
    return spec_of(options, command)


def test_without_options_a_run_is_what_the_spec_says_by_default():
    wanted = spec("train.py", "--lr", "1")
    assert wanted == replace(RunSpec(target="train.py", args=("--lr", "1")), cwd=str(Path.cwd()))


def test_every_shown_option_of_run_fills_a_field_of_the_spec():
    parser = run_parser()
    shown = {action.dest for name in parser.shown_options() for action in [parser._option_string_actions[name]]}
    assert shown - {field.name for field in fields(RunSpec)} == OF_THE_COMMAND - {"command"}


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["-H", "a:2,b"], "hosts", (Host(name="a", slots=2), Host(name="b"))),
        (["--lab", "3"], "lab", 3),
        (["--no-zygote"], "zygote", False),
        (["--no-check"], "check", False),
        (["--no-watch"], "watch", False),
        (["--preload", "numpy", "--preload", "json"], "preload", ("numpy", "json")),
        (["--env", "A=1"], "env", {"A": "1"}),
        (["--only-rank", "0,2-3"], "only_ranks", frozenset({0, 2, 3})),
        (["--local-ranks-filter", "0"], "only_local_ranks", frozenset({0})),
        (["--dashboard", "--dashboard-port", "8000"], "dashboard_port", 8000),
        (["--page", "--page-port", "8000"], "dashboard_port", 8000),
        (["--max-restarts", "2"], "restarts", 2),
        (["-m"], "kind", "module"),
        (["--mpi-args", "-x A"], "mpi_args", ("-x", "A")),
        (["--pbs-start", "ssh"], "pbs_start", "ssh"),
        (["--container-args", "-v /a:/a"], "container_args", ("-v", "/a:/a")),
        (["--hang-after", "0"], "hang_after", 0),
        (["--debug"], "debug", True),
        (["--name", "resnet-lr01"], "name", "resnet-lr01"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_an_option_reaches_its_field(argv: list[str], field: str, value: object):
    assert getattr(spec(*argv, "train.py"), field) == value


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"nproc": 0}, "nproc must be at least 1, got 0"),
        ({"lab": 0}, "lab must be at least 1, got 0"),
        ({"restarts": -1}, "restarts must be at least 0, got -1"),
        ({"grace": float("nan")}, "grace must be at least 0, got nan"),
        ({"master_port": 70000}, r"master_port must be a port \(1 to 65535\), got 70000"),
        ({"on_hang": "wait"}, "on_hang must be 'report' or 'kill', got 'wait'"),
        ({"kind": "modul"}, "kind must be 'script' or 'module' or 'function', got 'modul'"),
        ({"kind": "function"}, "kind='function' needs a call"),
        ({"nproc": "1"}, "nproc must be a number, got '1'"),
        ({"preload": "numpy"}, "preload must be a list, got 'numpy'"),
        ({"only_ranks": 0}, "only_ranks must be a set of ranks, got 0"),
        ({"on_hang": "kill", "watch": False}, "on_hang='kill' has no effect with"),
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_refused_whoever_gives_it(changes: dict[str, Any], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        RunSpec(target="train.py", **changes)


def test_fields_may_be_given_as_they_are_written_in_python():
    wanted = spec_with(RunSpec(target="t.py"), {"hosts": ["a:2", Host(name="b")], "env": {"A": 1}, "mpi_args": ["-x"]})
    assert wanted.hosts == (Host(name="a", slots=2), Host(name="b"))
    assert spec_with(wanted, {"hosts": ["a:1", "a:1"]}).hosts == (Host(name="a", slots=2),)
    assert (wanted.env, wanted.mpi_args) == ({"A": "1"}, ("-x",))


def test_an_unknown_field_is_named_with_the_one_that_was_meant():
    with pytest.raises(UsageError, match="unknown option restart") as caught:
        spec_with(RunSpec(target="t.py"), {"restart": 2})
    assert caught.value.hint == "did you mean restarts?"


def test_typed_words_change_a_spec_but_not_what_it_runs():
    before = RunSpec(target="f", kind="module", cwd="/here", nproc=3, env={"A": "1", "B": "1"})
    wanted = spec_as_typed(before, parse_words(["--sync", "--restarts", "2", "--env", "B=2"]))
    assert wanted == replace(before, sync=True, restarts=2, env={"A": "1", "B": "2"})


@pytest.mark.parametrize("name", ["a b", "../x", "-x", "1st", "x" * 41, "naïve", "a\x1b", "last"])
def test_a_name_that_could_not_be_typed_or_found_is_refused(name: str):
    with pytest.raises(UsageError, match="name must "):
        RunSpec(target="train.py", name=name)
