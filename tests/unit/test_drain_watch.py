"""Ranks that agree on the step in which they save."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.deadline import Deadline
from muster.rank.world.context import World
from muster.rank.world.time_left import VARIABLE
from muster.training.drain_watch import DrainWatch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(100)]


def alone() -> Any:
    settings: dict[str, Any] = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "device": "cpu", "backend": ""}
    settings |= dict.fromkeys(("backend_reason", "launcher", "launcher_reason", "address"), "")
    return World(**settings, _leave=lambda orderly: None)


def test_a_world_has_the_deadline_that_the_agent_announced(monkeypatch: pytest.MonkeyPatch):
    world, deadline = alone(), Deadline(list)
    monkeypatch.setenv(VARIABLE, deadline.path)
    assert (world.deadline, world.time_left()) == (None, None)
    deadline.announce({"time": time.time() + 30, "signal": 0}, 1)
    assert world.deadline == pytest.approx(time.time() + 30, abs=5)
    assert world.time_left() == pytest.approx(30, abs=5)
    deadline.announce({"time": 1.0, "signal": 0}, 2)
    assert world.time_left() == 0


def test_a_deadline_is_noticed_within_some_steps(monkeypatch: pytest.MonkeyPatch):
    deadline = Deadline(list)
    monkeypatch.setenv(VARIABLE, deadline.path)
    watch = DrainWatch(alone())
    watch._since -= 400.0  # slow steps: they ask in each of them
    assert [watch.step() for _ in range(4)] == [False] * 4
    deadline.announce({"time": 1.0, "signal": 0}, 1)
    assert watch.step()


def test_other_launchers_pay_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    world: Any = SimpleNamespace(size=2)
    watch = DrainWatch(world)
    assert not any(watch.step() for _ in range(100))
    assert VARIABLE not in os.environ
