"""Lines that are sent again: whatever gets lost with a connection, each line arrives once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.shared.line_log import LineLog
from muster.shared.resume_proof import is_proof, proof
from muster.shared.wire import LineReader, ProtocolError

LINES = st.lists(st.lists(st.sampled_from([b"a", b"bb", b'{"c": 1}']), min_size=1, max_size=3), max_size=30)


@given(LINES, st.data())
def test_every_line_arrives_once_over_any_number_of_broken_connections(writes: list[list[bytes]], data: st.DataObject):
    log, reader = LineLog(), LineReader()
    arrived: list[bytes] = []
    under_way = b""
    for lines in writes:
        log.add(b"".join(line + b"\n" for line in lines))
        under_way += b"".join(line + b"\n" for line in lines)
        share = data.draw(st.integers(0, len(under_way)))
        arrived += reader.lines(under_way[:share])
        under_way = under_way[share:]
        if data.draw(st.booleans()):
            log.acknowledge(data.draw(st.integers(0, len(arrived))))
        if data.draw(st.booleans()):  # the connection breaks, perhaps within a line
            assert log.can_resume(len(arrived))
            under_way, reader = log.after(len(arrived)), LineReader()
    arrived += reader.lines(under_way)
    assert arrived == [line for lines in writes for line in lines]


@given(LINES)
def test_what_is_acknowledged_is_forgotten(writes: list[list[bytes]]):
    log = LineLog()
    for lines in writes:
        log.add(b"".join(line + b"\n" for line in lines))
    assert log.count == sum(map(len, writes))
    log.acknowledge(log.count)
    assert (log.size, log.after(log.count)) == (0, b"")


def test_more_lines_than_were_sent_cannot_be_acknowledged():
    log = LineLog()
    log.add(b"one\n")
    with pytest.raises(ProtocolError, match="2 lines acknowledged, but only 1 were sent"):
        log.acknowledge(2)
    assert not log.can_resume(2)


def test_a_side_that_lacks_forgotten_lines_cannot_resume():
    log = LineLog()
    log.add(b"one\ntwo\n")
    log.acknowledge(1)
    assert not log.can_resume(0)
    assert log.can_resume(1)
    assert log.after(1) == b"two\n"


def test_a_proof_is_for_one_side_one_pair_of_nonces_and_one_count():
    given = proof("secret", "agent", ("a", "b"), 3)
    assert is_proof(given, "secret", "agent", ("a", "b"), 3)
    for secret, who, nonces, got in (
        ("other", "agent", ("a", "b"), 3),
        ("secret", "controller", ("a", "b"), 3),
        ("secret", "agent", ("b", "a"), 3),
        ("secret", "agent", ("a", "b"), 4),
    ):
        assert not is_proof(given, secret, who, nonces, got)
    assert not is_proof("ü\udcff", "secret", "agent", ("a", "b"), 3)
