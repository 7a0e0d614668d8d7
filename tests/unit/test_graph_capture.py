"""The flight recorder is left alone while a CUDA graph is captured, on a stand-in for torch's class of graphs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster.rank import graph_capture
from muster.rank.graph_capture import Captures

DUMPED = b"calls"


class Plain:
    """As torch.cuda.graphs.CUDAGraph: not begun twice, and `capture_end` raises after a capture that failed."""

    is_open = False
    is_broken = False

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> str:
        if self.is_open or capture_error_mode == "nonsense":
            raise RuntimeError("cannot begin")
        self.is_open = True
        return capture_error_mode

    def capture_end(self) -> None:
        self.is_open = False
        if self.is_broken:
            raise RuntimeError("the capture failed")


def guarded() -> tuple[Captures, type[Plain]]:
    graph = type("Graph", (Plain,), {})
    seen = Captures()
    seen.guard(graph)
    return seen, graph


def dumped(seen: Captures) -> bytes | None:
    return seen.read(lambda: DUMPED)


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_nothing_is_read_from_the_begin_of_a_capture_to_its_end():
    seen, graph = guarded()
    assert seen.is_guarded
    assert dumped(seen) == DUMPED
    one = graph()
    assert one.capture_begin(capture_error_mode="relaxed") == "relaxed"
    assert dumped(seen) is None
    one.capture_end()
    assert dumped(seen) == DUMPED


def test_with_two_captures_open_both_must_end():
    seen, graph = guarded()
    one, other = graph(), graph()
    one.capture_begin()
    other.capture_begin()
    one.capture_end()
    assert dumped(seen) is None
    other.capture_end()
    assert dumped(seen) == DUMPED


def test_a_capture_that_does_not_begin_holds_nothing_back():
    seen, graph = guarded()
    with pytest.raises(RuntimeError, match="cannot begin"):
        graph().capture_begin(capture_error_mode="nonsense")
    assert dumped(seen) == DUMPED


def test_a_second_begin_that_is_refused_leaves_the_first_capture_open():
    seen, graph = guarded()
    one = graph()
    one.capture_begin()
    with pytest.raises(RuntimeError, match="cannot begin"):
        one.capture_begin()
    assert dumped(seen) is None
    one.capture_end()
    assert dumped(seen) == DUMPED


def test_a_capture_that_fails_at_its_end_holds_nothing_back():
    seen, graph = guarded()
    one = graph()
    one.capture_begin()
    one.is_broken = True
    with pytest.raises(RuntimeError, match="the capture failed"):
        one.capture_end()
    assert dumped(seen) == DUMPED


def test_an_end_without_a_begin_does_no_harm():
    seen, graph = guarded()
    graph().capture_end()
    assert dumped(seen) == DUMPED


def test_a_capture_that_was_given_up_does_not_hold_back_for_ever(monkeypatch: pytest.MonkeyPatch):
    seen, graph = guarded()
    graph().capture_begin()
    monkeypatch.setattr(graph_capture, "_LONGEST", 0.0)
    assert dumped(seen) == DUMPED


def test_a_capture_waits_for_the_reading_under_way_and_the_next_reading_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(graph_capture, "_LONGEST_READING", 60.0)
    seen, graph = guarded()
    reads, go_on, began = threading.Event(), threading.Event(), threading.Event()
    one = graph()

    def dump() -> bytes:
        reads.set()
        assert go_on.wait(30)
        assert not one.is_open
        return DUMPED

    found: list[bytes | None] = []
    reading = in_thread(lambda: found.append(seen.read(dump)))
    assert reads.wait(30)
    beginning = in_thread(lambda: (one.capture_begin(), began.set()))
    assert not began.wait(0.1)
    go_on.set()
    assert began.wait(30)
    reading.join(30)
    beginning.join(30)
    assert found == [DUMPED]
    begin = time.monotonic()
    assert dumped(seen) is None
    assert time.monotonic() - begin < 30


def test_a_capture_begins_also_if_a_reading_never_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph_capture, "_LONGEST_READING", 0.05)
    seen, graph = guarded()
    reads, end = threading.Event(), threading.Event()

    def dump() -> bytes:
        reads.set()
        end.wait(60)
        return DUMPED

    reading = in_thread(lambda: seen.read(dump))
    assert reads.wait(30)
    graph().capture_begin()
    assert dumped(seen) is None  # another reader gives up likewise
    end.set()
    reading.join(30)


def test_a_reading_that_fails_blocks_nobody():
    seen, graph = guarded()
    with pytest.raises(ZeroDivisionError):
        seen.read(lambda: bytes(1 // 0))
    one = graph()
    one.capture_begin()
    one.capture_end()
    assert dumped(seen) == DUMPED
