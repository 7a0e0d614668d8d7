"""What a rank reports of its collectives when its script ends at an unlucky moment."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from muster.rank import torch_adapter
from muster.rank.reporter import Reporter

pytestmark = pytest.mark.timeout(60)


class Ended(Exception):
    """Raised in place of what happens to a daemon thread at the end of the interpreter: it stops where it is."""


@pytest.fixture
def one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch in which one collective has run."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(torch_adapter, "collectives_begun", lambda: 1)


@pytest.mark.usefixtures("one_collective")
@pytest.mark.parametrize("sent", [True, False])
def test_the_first_collective_is_reported_even_if_the_script_ends_while_it_is_about_to_be(sent: bool) -> None:
    ours, agents = socket.socketpair()
    agents.setblocking(False)
    with ours, agents:
        reporter = Reporter(ours.fileno())
        send = reporter.send

        def of_the_thread(message: Mapping[str, object]) -> None:
            if sent:
                send(message)
            raise Ended

        reporter.send = of_the_thread
        with pytest.raises(Ended):
            reporter.progress(1)
        reporter.send = send
        reporter.last_look()
        messages: list[dict[str, Any]] = [json.loads(line) for line in agents.recv(1 << 16).splitlines()]
    assert {"t": "progress", "done": 1, "first": True}.items() <= messages[0].items()
    assert all(message["done"] == 1 for message in messages)
