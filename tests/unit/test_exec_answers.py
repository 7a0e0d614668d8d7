"""Answers to an exec that come in pieces, or that no honest server would send."""

from __future__ import annotations

import json

import pytest

from muster.engines.kubernetes import websocket
from muster.engines.kubernetes.websocket import Messages, WebSocketError, exit_code

BODY = json.dumps({"kind": "Status", "message": 'pods "x" not found', "code": 404}).encode()
HEAD = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def test_the_reason_of_a_refusal_may_come_after_its_head() -> None:
    messages = Messages()
    assert list(messages.feed(HEAD)) == []
    assert messages.status is None
    list(messages.feed(BODY[:9]))
    list(messages.feed(BODY[9:]))
    assert (messages.status, messages.refusal) == (404, 'pods "x" not found')


def test_a_refusal_without_its_reason_is_one_when_the_connection_ends() -> None:
    messages = Messages()
    list(messages.feed(HEAD))
    list(messages.feed(b""))
    assert (messages.status, messages.refusal) == (404, "HTTP/1.1 404 Not Found")


def test_a_message_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_LARGEST_FRAME", 300)
    messages = Messages()
    list(messages.feed(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"))
    with pytest.raises(WebSocketError):
        list(messages.feed((b"\x00\x64" + bytes(100)) * 4))


@pytest.mark.parametrize("message", [None, [], "x"])
def test_an_exit_code_that_is_not_a_number_is_unknown(message: object) -> None:
    status = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": message}]}}
    assert exit_code(json.dumps(status).encode())[0] is None


def test_nested_json_is_not_an_exit_code() -> None:
    assert exit_code(b"[" * 200_000)[0] is None
