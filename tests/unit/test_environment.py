"""Which variables travel to the ranks on other hosts."""

from __future__ import annotations

import pytest

from muster.environment import CARRIED, carried, parse_env
from muster.errors import UsageError


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TORCH_LOGS",
        "TORCH_NCCL_BLOCKING_WAIT",
        "PYTORCH_CUDA_ALLOC_CONF",
        "OMP_NUM_THREADS",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
    ],
)
def test_settings_of_the_job_travel_without_being_asked(name: str):
    assert carried({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_LIBRARY_PATH",
        "HOME",
        "CUDA_VISIBLE_DEVICES",  # the GPUs of this machine say nothing about another's
        "RANK",
        "MASTER_ADDR",
        "AWS_SECRET_ACCESS_KEY",
        "SSH_AUTH_SOCK",
        "MY_NCCL_DEBUG",
        "nccl_debug",
        "TZDIR",
    ],
)
def test_what_describes_this_machine_or_is_nobodys_business_stays_here(name: str):
    assert carried({name: "x"}) == {}


def test_no_pattern_of_the_default_set_takes_everything():
    assert carried({"SOMETHING_ELSE": "x"}) == {}
    assert all(pattern.rstrip("*") for pattern in CARRIED)


def test_env_takes_a_value_or_the_value_it_has_here():
    assert parse_env(["A=1", "B"], {"B": "from here"}) == {"A": "1", "B": "from here"}


def test_a_value_may_be_empty_and_hold_equals_signs_spaces_and_newlines():
    assert parse_env(["A=", "B=x=y z\nw", "C=ü"], {"A": "kept out"}) == {"A": "", "B": "x=y z\nw", "C": "ü"}


def test_the_last_of_two_values_counts():
    assert parse_env(["A=1", "A=2"], {}) == {"A": "2"}


@pytest.mark.parametrize("option", ["=1", "1A=2", "A-B=2", "", "A B", "A.B=1", "ÄÖ=1"])
def test_a_name_no_shell_would_take_is_refused(option: str):
    with pytest.raises(UsageError, match="invalid name of an environment variable") as caught:
        parse_env([option], {})
    assert "--env NAME=VALUE" in (caught.value.hint or "")


def test_a_variable_that_is_not_set_here_is_refused_with_what_to_type():
    with pytest.raises(UsageError) as caught:
        parse_env(["MISSING"], {})
    assert caught.value.message == "--env MISSING: MISSING is not set on this machine"
    assert caught.value.hint == "write `--env MISSING=VALUE`"


def test_a_wrong_option_does_not_print_the_value_that_may_be_a_secret():
    with pytest.raises(UsageError) as caught:
        parse_env(["MY-KEY=hunter2"], {})
    assert "hunter2" not in caught.value.message + (caught.value.hint or "")
