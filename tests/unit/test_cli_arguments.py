"""What every command reads alike: durations with units, and options with dashes or underscores."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from muster.api.arguments import Parser, seconds, with_dashes
from muster.cli import main, run
from muster.engines.slurm.salloc import _without
from muster.errors import UsageError

# --- durations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("30", 30),
        ("1.5", 1.5),
        (".5", 0.5),
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("8w", 8 * 7 * 86400),
        ("1d2h3m4s5ms", 93784.005),
        ("5M", 300),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, value: float):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "m", "5x", "5 m", "-1", "1:30", "inf", "nan", "30s5", "1e3", "٣s", "9" * 400])
def test_what_is_not_a_duration_is_refused_with_an_example(text: str):
    with pytest.raises(ArgumentTypeError, match="must be a duration such as 30s"):
        seconds(text)


def test_the_durations_of_run_have_units():
    options, _ = run.parse(["--grace", "500ms", "--hang-after=1h30m", "train.py"])
    assert (options.grace, options.hang_after) == (0.5, 5400)


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["stop", "last", "--grace", "5x"], "error: muster stop: --grace: must be a duration"),
        (["ps", "--prune", "--older", "90"], "error: muster ps: --older: `90` has no unit; type one, such as 12h"),
        (["ps", "--prune", "--older", "soon"], "error: muster ps: --older: must be a duration"),
        (["lab", "delay", "h1", "25x"], "error: muster lab delay: DURATION: must be a duration"),
    ],
    ids=["stop", "ps without a unit", "ps", "lab"],
)
def test_every_command_refuses_a_wrong_duration_in_the_same_way(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(error)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--lost-after", "0"], "--lost-after: must be at least 2s, got `0`"),
        (["--lost-after", "500ms"], "--lost-after: must be at least 2s, got `500ms`"),
        (["--rejoin", "soon"], "--rejoin: must be `restart` or a duration such as 30s, 10m or 1h30m, got `soon`"),
    ],
    ids=["zero", "short", "rejoin"],
)
def test_wrong_times_for_lost_hosts_are_explained(option: list[str], sentence: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", *option, "train.py"]) == 2
    assert sentence in capsys.readouterr().err


def test_an_age_may_have_any_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["ps", "--prune", "--older", "90m"]) == 0


def test_an_empty_range_of_ranks_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--only-rank", "0,7-4", "train.py"]) == 2
    assert "--only-rank: must be ranks such as 0 or 0,4-7, got `7-4`" in capsys.readouterr().err


# --- dashes and underscores -----------------------------------------------------------------------------------


def test_an_underscore_in_an_option_is_as_good_as_a_dash():
    options, command = run.parse(["--dry_run", "--only_rank=0", "--hang_after", "5m", "train.py", "--batch_size", "3"])
    assert options.dry_run
    assert options.only_ranks == {0}
    assert options.hang_after == 300
    assert command == ["train.py", "--batch_size", "3"]


def test_the_value_of_an_option_keeps_its_underscores():
    options, command = run.parse(["--env=MY_NAME=a_b", "--master_addr", "my_host", "my_train.py"])
    assert (options.env, options.master_addr, command) == (["MY_NAME=a_b"], "my_host", ["my_train.py"])


def test_a_value_that_begins_with_a_dash_may_follow_an_option_with_underscores():
    assert run.parse(["--mpi_args", "--mca_x", "train.py"])[0].mpi_args == ("--mca_x",)


def test_only_a_known_option_gets_dashes():
    assert with_dashes("--dry_run", {"--dry-run"}) == "--dry-run"
    assert with_dashes("--other_one=a_b", {"--dry-run"}) == "--other_one=a_b"
    assert with_dashes("my_script.py", {"my-script.py"}) == "my_script.py"


def test_an_option_that_is_spelled_with_an_underscore_stays_as_it_is():
    p = Parser(prog="x")
    p.add_argument("--a_b")
    assert p.parse_args(["--a_b", "1"]).a_b == "1"


@pytest.mark.parametrize("option", ["--slurm-args", "--slurm_args"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_command_inside_an_allocation_does_not_ask_for_another(option: str, tied: bool):
    given = [f"{option}=-N2"] if tied else [option, "-N2"]
    assert _without(["run", *given, "train.py", "--slurm_args", "x"], "--slurm-args") == [
        *("run", "train.py", "--slurm_args", "x")
    ]


def test_an_error_names_an_option_once():
    with pytest.raises(UsageError, match=r"^muster run: -H: expected one argument$"):
        run.parse(["-H"])
