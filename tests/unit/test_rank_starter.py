"""How an agent gets the process that starts its ranks."""

from __future__ import annotations

import selectors
from collections.abc import Iterator, Mapping

import pytest

from muster.agent.rank_starter import RankStarter
from muster.agent.spawner_client import Spawner
from muster.shared.spawner_messages import ImportFailed, Target

TARGET: Target = {
    "preload": ["torch"],
    "cwd": "/",
    "kind": "script",
    "target": "train.py",
    "args": [],
    "path": [],
    "nofile": 1024,
}
IMPORT_FAILED: ImportFailed = {
    "t": "import_failed",
    "module": "torch",
    "missing": "torch",
    "error": "No module named 'torch'",
    "traceback": "",
}


@pytest.fixture
def sent() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def starter(sent: list[Mapping[str, object]], monkeypatch: pytest.MonkeyPatch) -> Iterator[RankStarter]:
    """A starter with a kept zygote, on a host that cannot start another process."""

    def start_zygote(*_: object, keep: bool) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Spawner, "start_zygote", start_zygote)
    monkeypatch.setattr(Spawner, "end", lambda spawner: spawner.socket.close())
    with selectors.DefaultSelector() as selector:
        starter = RankStarter(selector, sent.append, lambda: None)
        spawner = Spawner()
        spawner.can_serve_next = True
        starter._use(spawner)
        yield starter
        starter.end()


def test_a_zygote_that_cannot_be_replaced_is_reported_to_the_controller(
    starter: RankStarter, sent: list[Mapping[str, object]]
):
    assert starter.prepare(TARGET, {}, 7, keep=True) is None
    starter.on_stale({"t": "stale", "why": "train.py has changed"})
    new_zygote, reply = sent
    assert new_zygote["t"] == "new_zygote"
    assert reply["re"] == 7
    assert reply["error"] == "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert not starter.is_busy


def test_a_zygote_that_nobody_asked_is_neither_replaced_nor_ended(
    starter: RankStarter, sent: list[Mapping[str, object]]
):
    starter.on_stale({"t": "stale", "why": "train.py has changed"})
    starter.on_import_failed(IMPORT_FAILED)
    assert not sent
    assert starter.spawner is not None


def test_a_zygote_without_torch_is_reported_once_and_not_as_killed(
    starter: RankStarter, sent: list[Mapping[str, object]]
):
    zygote = starter.spawner
    assert zygote is not None
    assert starter.prepare(TARGET, {}, 7, keep=True) is None
    starter.on_import_failed(IMPORT_FAILED)
    assert [(reply["re"], reply["error"]) for reply in sent] == [(7, IMPORT_FAILED["error"])]
    assert zygote.socket.fileno() == -1, "nobody reads from it that the zygote has exited"
    assert starter.spawner is None
