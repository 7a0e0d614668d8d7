"""Where a rank in `init_process_group` looks for the others."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from muster.rank.joining import meeting
from muster.shared.user_code import is_musters, is_users


def called(**given: Any) -> list[FrameType]:
    """The frames below torch's function when it was called like this."""
    code = """
def init_process_group(look, init_method=None, world_size=-1, rank=-1, store=None):
    return look()
"""
    names: dict[str, Any] = {"__name__": "torch.distributed.distributed_c10d"}
    exec(code, names)

    def look() -> list[FrameType]:
        found, frame = [], sys._getframe()
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found

    return names["init_process_group"](look, **given)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "gpu01", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ("gpu01:29500", 8, 3)),
        ({"init_method": "env://"}, ("gpu01:29500", 8, 3)),
        ({"world_size": 2, "rank": 0}, ("gpu01:29500", 2, 0)),
        ({"init_method": "tcp://10.0.0.1:1234?x=1", "world_size": 2, "rank": 1}, ("10.0.0.1:1234", 2, 1)),
        ({"init_method": "tcp://[::1]:1234?rank=1&world_size=4"}, ("[::1]:1234", 4, 1)),
        ({"init_method": "tcp://10.0.0.1:1234"}, ("10.0.0.1:1234", None, None)),
        ({"init_method": "env://?rank=5"}, ("gpu01:29500", 8, 5)),
        ({"init_method": "file:///shared/meet", "world_size": 2, "rank": 1}, ("file:///shared/meet", 2, 1)),
        ({"store": object(), "world_size": 2, "rank": 1}, ("", 2, 1)),
        # torch has made the store by then
        ({"init_method": "env://", "store": object(), "world_size": 8, "rank": 3}, ("gpu01:29500", 8, 3)),
    ],
)
def test_arguments_come_before_the_url_and_that_before_the_environment(
    given: dict[str, Any], found: tuple[str, int | None, int | None]
):
    assert meeting(called(**given)) == dict(zip(("at", "size", "rank"), found, strict=True))


def test_an_environment_without_the_names_is_reported_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert meeting(called()) == {"at": "?:29500", "size": None, "rank": 3}


def test_elsewhere_there_is_no_meeting():
    assert meeting([sys._getframe()]) is None


def test_what_runs_in_a_rank_for_muster_is_not_the_users_code_in_a_checkout_either():
    assert not is_users(is_users.__code__.co_filename)
    assert is_musters(is_users.__code__.co_filename)
    assert is_users("/home/me/train.py")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/torch/train.py", True),
        ("/home/me/lib/python3-course/train.py", True),
        ("<string>", False),
        ("<muster>/rank/script.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("/opt/lib64/python3.13t/threading.py", False),
        ("/usr/lib/python312.zip/threading.py", False),
        ("/usr/lib/python3/dist-packages/numpy/x.py", False),
        ("/src/pytorch/torch/nn/modules/module.py", False),
    ],
)
def test_whose_file_it_is(path: str, expected: bool):
    assert is_users(path) is expected
