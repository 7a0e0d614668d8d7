"""The channel: messages come out whole, however the bytes are cut and whatever a shell printed before."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.shared import light_json
from muster.shared.wire import (
    GREETING,
    HEARTBEAT,
    LAST_GRACE,
    LEASE,
    LineReader,
    ProtocolError,
    Writer,
    decode,
    encode,
)

MESSAGES: list[dict[str, Any]] = [
    {"t": "up", "hostname": "h1"},
    {"t": "out", "text": "ü \udcff \u2028 \n\r\x1e"},
    {},
    {"deep": [1, {"a": None}]},
]
STREAM = GREETING + b"".join(map(encode, MESSAGES))


def read(*pieces: bytes, greeting: bytes | None = GREETING) -> tuple[list[dict[str, Any]], LineReader]:
    reader = LineReader(greeting=greeting)
    return [message for piece in pieces for message in reader.feed(piece)], reader


def test_a_message_is_one_line():
    assert all(encode(message).count(b"\n") == 1 for message in MESSAGES)


PLAIN: dict[str, Any] = {
    "t": "left",
    "how": "end",
    "place": "a.py:3",
    "groups": {},
    "time": 1763229000.123456,
    "status": -9,
}


def test_a_message_is_written_without_importing_json():
    code = f"import sys; from muster.shared.wire import encode; line = encode({PLAIN!r})\n"
    code += "assert 'json' not in sys.modules; sys.stdout.write(line.decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout.encode()) == ("", encode(PLAIN))


TEXTS = st.text() | st.sampled_from(["", "end", 'say "no"', "back\\slash", "two\nlines", "ä", "\x7f"])
VALUES: st.SearchStrategy[Any] = TEXTS | st.integers() | st.floats() | st.booleans() | st.none()
MORE: st.SearchStrategy[Any] = st.builds(dict[str, int]) | st.lists(st.integers())


@given(st.dictionaries(st.text(), VALUES | MORE))
def test_a_message_is_the_json_that_json_writes(message: dict[str, Any]):
    written = json.dumps(message, separators=(",", ":"))
    assert encode(message) == written.encode() + b"\n"
    assert repr(light_json.loads(written)) == repr(json.loads(written))


@given(st.text(alphabet='{}[]":,0123456789.eE+-truefalsenN \\\n\t') | st.text())
def test_a_text_is_refused_if_json_refuses_it(text: str):
    def outcome(loads: Callable[[str], Any]) -> str:
        try:
            return repr(loads(text))
        except (ValueError, RecursionError):
            return "refused"

    assert outcome(light_json.loads) == outcome(json.loads)


def test_messages_come_out_as_they_went_in():
    assert read(STREAM)[0] == MESSAGES


@pytest.mark.parametrize("greeting", [None, GREETING])
def test_a_message_that_has_not_ended_is_kept_for_later(greeting: bytes | None):
    reader = LineReader(greeting=greeting)
    line = (greeting or b"") + encode({"a": 1})
    assert reader.feed(line[:-3]) == []
    assert reader.feed(line[-3:]) == [{"a": 1}]


@pytest.mark.parametrize(
    "noise",
    [
        b"Welcome to box!\n",
        b"no newline at the end",
        b"\x1e\x1e\x1emuster-agent",
        GREETING[:-1],  # all but its last byte
        b'{"t": "up", "forged": true}\n',
        b"\xff\xfe\x00 binary \r\n" * 10,
    ],
)
def test_noise_before_the_greeting_is_no_message(noise: bytes):
    messages, reader = read(noise + STREAM)
    assert messages == MESSAGES
    assert reader.noise == noise


def test_noise_without_end_does_not_fill_the_memory():
    reader = LineReader(greeting=GREETING)
    for _ in range(200):
        reader.feed(b"x" * 10_000)
    assert len(reader.noise) <= 8192
    assert reader.feed(STREAM) == MESSAGES


def test_after_the_greeting_rubbish_is_an_error_and_not_skipped():
    with pytest.raises(ProtocolError, match="not JSON"):
        read(GREETING + b"rubbish\n")


@given(st.binary(max_size=40), st.lists(st.integers(0, len(STREAM) + 40), max_size=12))
def test_any_cut_of_the_stream_gives_the_same_messages(noise: bytes, cuts: list[int]):
    assume(GREETING not in noise)
    data = noise + STREAM
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    pieces = [data[start:stop] for start, stop in itertools.pairwise(edges)]
    messages, reader = read(*pieces)
    assert messages == MESSAGES
    assert reader.noise == noise


def test_a_line_whose_values_would_fill_the_memory_is_not_decoded():
    assert decode(b"[" + b"[]," * 1000 + b"[]]") == [[]] * 1001
    with pytest.raises(ProtocolError, match="too many values"):
        decode(b"[" + b"[]," * (2 << 20) + b"[]]")


def test_the_cost_of_a_line_is_linear_in_its_size():
    def seconds(pieces: int) -> float:
        reader = LineReader()
        begin = time.process_time()
        for _ in range(pieces):
            reader.lines(b"x" * 1024)
        reader.lines(b"\n")
        return time.process_time() - begin

    assert seconds(32_000) < 2, "about 0.05 s; 10 s if each piece copied the line so far"


@pytest.mark.parametrize("pieces", [[b"x" * 60, b"x" * 60], [b"\n" + b"x" * 120], [b"x" * 120 + b"\n"]])
def test_a_line_without_end_is_refused(pieces: list[bytes]):
    reader = LineReader(longest=100)
    with pytest.raises(ProtocolError, match="a line has more than 100 bytes"):
        list(map(reader.lines, pieces))


@pytest.mark.parametrize(
    "line",
    [
        b'"\xed\xa0\x80"',
        b"\xff",
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"a":',
        '"x"'.encode("utf-16"),
    ],
)
def test_a_line_that_cannot_be_written_or_is_no_json_is_refused(line: bytes):
    with pytest.raises(ProtocolError, match="not JSON in UTF-8"):
        decode(line)


@pytest.mark.parametrize("line", [b'{"\\ud800":"\\uD800 \\udc00x"}', b'{"\\uDFFF":"\\udfff \\ud900x"}'])
def test_characters_that_cannot_be_written_are_replaced(line: bytes):
    (name, text), *_ = decode(line).items()
    assert (name + text).encode("utf-8", "surrogateescape")


def test_bytes_that_are_no_text_and_characters_beyond_16_bits_pass():
    assert decode(encode({"text": "\udcff\udc80 \U0001f600"})) == {"text": "\udcff\udc80 \U0001f600"}


def test_one_byte_at_a_time_gives_the_same_messages():
    data = b"noise" + STREAM
    assert read(*(data[i : i + 1] for i in range(len(data))))[0] == MESSAGES


def into(sink: int) -> Writer:
    os.set_blocking(sink, False)
    return Writer(sink, lambda data: os.write(sink, data))


def test_a_writer_never_blocks_and_loses_nothing():
    source, sink = os.pipe()
    try:
        writer = into(sink)
        data = bytes(range(256)) * 4096  # 1 MiB, more than a pipe holds
        writer.send(data)
        assert 0 < writer.pending < len(data)
        arrived = b""
        while writer.pending:
            arrived += os.read(source, 1 << 16)
            writer.flush()
        while len(arrived) < len(data):
            arrived += os.read(source, 1 << 16)
        assert arrived == data
    finally:
        os.close(source)
        os.close(sink)


def test_a_writer_says_that_nobody_reads_any_more():
    source, sink = os.pipe()
    os.close(source)
    try:
        with pytest.raises(BrokenPipeError):
            into(sink).send(b"x")
    finally:
        os.close(sink)


def test_silence_and_grace_together_keep_the_promise_of_ten_seconds():
    # An agent may notice the silence half a second late, and a killed process takes a moment to go.
    assert LEASE + LAST_GRACE + 1.0 < 10
    assert LEASE > 4 * HEARTBEAT
