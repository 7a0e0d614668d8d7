"""The port where the ranks meet, and when the store behind it is started."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.master_port import MasterPort
from muster.shared.light_selectors import Selector

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(60),
]


class Ranks:
    """What the port needs of the ranks of a host."""

    def __init__(self, *, is_plain: bool) -> None:
        self.on_torch = lambda: None
        self.stores: list[Any] = []
        self.spawner = SimpleNamespace(is_plain=is_plain, start_store=self.stores.append, end_store=lambda: None)


def ready(*, is_plain: bool) -> tuple[Ranks, MasterPort, Selector, int]:
    """A host that was asked to start its ranks and the store."""
    ranks, selector = Ranks(is_plain=is_plain), Selector()
    port = MasterPort(selector, ranks)  # type: ignore[arg-type]
    number = port.another({"port": 0}, 1)["port"]
    port.start_store()
    return ranks, port, selector, number


def turn(selector: Selector) -> None:
    for key, _ in selector.select(10.0):
        key.data()


def test_a_zygote_starts_the_store_with_the_ranks():
    ranks, port, _, _ = ready(is_plain=False)
    assert len(ranks.stores) == 1
    port.release()


def test_fresh_ranks_get_their_store_when_somebody_connects():
    ranks, port, selector, number = ready(is_plain=True)
    assert ranks.stores == []
    with socket.create_connection(("127.0.0.1", number), 10):
        turn(selector)
        assert len(ranks.stores) == 1
        ranks.on_torch()
        assert len(ranks.stores) == 1
    port.release()


def test_fresh_ranks_get_their_store_when_one_imports_torch():
    ranks, port, selector, _ = ready(is_plain=True)
    ranks.on_torch()
    assert len(ranks.stores) == 1
    assert not selector.get_map()
    port.release()


def test_the_port_of_an_attempt_without_torch_is_given_up_like_any_other():
    ranks, port, selector, _ = ready(is_plain=True)
    port.release()
    assert not selector.get_map()
    ranks.on_torch()
    assert ranks.stores == []
