"""Wrong types and values for muster.launch, muster.run, muster.init and RunSpec: a MusterError with one sentence."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bad_input import Started, nothing_starts
from parsers_once import parsers_once

import muster
from muster.errors import MusterError
from muster.rank.world.context import init
from muster.rank.world.detect import detect, from_arguments
from muster.spec import RunSpec

__all__ = ["parsers_once"]  # a fixture

pytestmark = pytest.mark.timeout(60)

ODD: list[Any] = [
    5,
    -1,
    1.5,
    math.nan,
    math.inf,
    "x",
    "",
    b"x",
    [1],
    {"a": 1},
    {1: 2},
    object(),
    True,
    None,
    "a\0b",
    "\udcff",
]


def twice(number: int = 1) -> int:
    return 2 * number


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")


def refused(call: Any, *args: Any, **options: Any) -> str:
    """The message of the MusterError that a call raises."""
    with nothing_starts(), pytest.raises(MusterError) as raised:
        call(*args, **options)
    message = str(raised.value)
    assert len(message.splitlines()) <= 6
    return message


LAUNCH: list[tuple[dict[str, Any], str]] = [
    ({"args": 0.1}, "args must be a list or tuple, got 0.1"),
    ({"args": "ab"}, "args must be a list or tuple"),
    ({"kwargs": [1]}, "kwargs must be a dict, got"),
    ({"kwargs": {1: 2}}, "names in kwargs must be strings"),
    ({"hosts": 5}, "hosts must be a string or a list of strings, got 5"),
    ({"hosts": [5]}, "hosts must be a string or a list of strings"),
    ({"hosts": "a b["}, ""),
    ({"hosts": []}, ""),
    ({"nproc": "2"}, "nproc must be a number"),
    ({"nproc": True}, "nproc must be a number"),
    ({"nproc": 1.5}, "nproc must be a whole number"),
    ({"nproc": 0}, "nproc must be at least 1"),
    ({"nproc": 10**9}, "nproc must be at most 1024"),
    ({"engine": 5}, "5"),
    ({"engine": "zork"}, "zork"),
    ({"env": [1]}, "env must be a dict"),
    ({"env": {"A=B": 1}}, "env: invalid name 'A=B'"),
    ({"env": {"A": "\0"}}, "NUL"),
    ({"env": {5: "x"}}, "env: invalid name 5"),
    ({"image": 5}, "image must be a string"),
    ({"image": "-v /:/"}, "image"),
    ({"timeout": "x"}, "timeout must be a number of seconds, got 'x'"),
    ({"timeout": math.inf}, "timeout must be at most"),
    ({"timeout": math.nan}, "timeout must be above 0"),
    ({"timeout": 0}, "timeout must be above 0"),
    ({"timeout": -1}, "timeout must be above 0"),
    ({"options": 5}, "options must be a string or a list of strings, got 5"),
    ({"options": [5]}, "options must be a string or a list of strings"),
    ({"options": "--help"}, "does not support --help"),
    ({"options": "'"}, "no closing quotation"),
    ({"options": "--nosuch"}, "unknown option --nosuch"),
    ({"options": "train.py"}, "not an option"),
]


@pytest.mark.parametrize(("options", "says"), LAUNCH, ids=[str(options) for options, _ in LAUNCH])
def test_launch_refuses_wrong_arguments(options: dict[str, Any], says: str):
    assert says in refused(muster.launch, twice, **options)


@pytest.mark.parametrize("function", [5, None, "twice", [twice]], ids=lambda given: type(given).__name__)
def test_launch_needs_a_function(function: Any):
    assert "callable" in refused(muster.launch, function)


@pytest.mark.parametrize("name", ["args", "kwargs", "hosts", "nproc", "engine", "env", "image", "timeout", "options"])
def test_launch_raises_nothing_but_its_own_error(name: str):
    with nothing_starts():
        for value in ODD:
            with suppress(MusterError, Started):
                muster.launch(twice, **{name: value})


@pytest.mark.parametrize(
    "script", [5, None, b"x", ["train.py"], "", "nosuch.py", "a\0b", "x" * 300], ids=lambda one: repr(one)[:20]
)
def test_run_refuses_what_is_not_a_script(script: Any):
    assert refused(muster.run, script)


@pytest.mark.parametrize(
    "field", [name for name in RunSpec.__dataclass_fields__ if name not in ("target", "kind", "call")]
)
def test_run_raises_nothing_but_its_own_error_for_any_option(field: str):
    with nothing_starts():
        for value in ODD:
            with suppress(MusterError, Started):
                muster.run("train.py", **{field: value})


@pytest.mark.parametrize("field", ["lost_after", "grace", "hang_after", "rejoin"])
@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, "5", True], ids=str)
def test_a_duration_of_a_run_is_a_finite_number(field: str, value: Any):
    assert field in refused(RunSpec, target="train.py", **{field: value})


def test_restarts_of_zero_contradict_spares():
    assert "--restarts 0 contradicts --spares" in refused(muster.run, "train.py", hosts="a,b", restarts=0, spares=1)


INIT: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout must be above 0"),
    ({"timeout": -1}, "timeout must be above 0"),
    ({"timeout": math.nan}, "timeout must be above 0"),
    ({"timeout": math.inf}, "timeout must be at most"),
    ({"timeout": "x"}, "timeout must be a number of seconds"),
    ({"rank": "x", "world_size": 1}, "rank must be a whole number, got 'x'"),
    ({"rank": 0, "world_size": "x"}, "world_size must be a whole number"),
    ({"rank": 0, "world_size": 1.5}, "world_size must be a whole number"),
    ({"rank": True, "world_size": 2}, "rank must be a whole number"),
    ({"rank": 2, "world_size": 2}, "out of range"),
    ({"rank": -1, "world_size": 2}, "out of range"),
    ({"rank": 0, "world_size": 1, "local_rank": "x"}, "local_rank must be a whole number"),
    ({"rank": 0, "world_size": 1, "local_rank": -1}, "local_rank must be at least 0"),
    ({"rank": 0}, "given together"),
    ({"backend": "zork"}, "unknown backend"),
    ({"backend": 5}, "unknown backend"),
]


@pytest.mark.parametrize(("options", "says"), INIT, ids=[str(options) for options, _ in INIT])
def test_init_refuses_wrong_arguments(options: dict[str, Any], says: str):
    assert says in refused(init, **options)


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-1", "", "x", "1.5", "nan", " ", "0x1"])
def test_broken_variables_of_a_launcher_are_one_sentence(text: str):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500", name: text}
        if name == "MASTER_PORT" and not text:
            continue
        assert name in refused(detect, env)
    for launcher in ("OMPI_COMM_WORLD", "PMI", "SLURM"):
        names = {"OMPI_COMM_WORLD": ("RANK", "SIZE"), "PMI": ("RANK", "SIZE"), "SLURM": ("PROCID", "NTASKS")}[launcher]
        try:
            detect(
                {
                    f"{launcher}_{names[0]}": text,
                    f"{launcher}_{names[1]}": "2",
                    "SLURM_JOB_ID": "1",
                    "SLURM_STEP_ID": "0",
                }
            )
        except MusterError:
            continue
    detect({}, ["--local-rank", text])
    assert from_arguments({"MASTER_ADDR": "a"}, 0, 2, None).rank == 0
