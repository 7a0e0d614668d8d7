"""Requests to a running job over its socket; they block, but never longer than a given limit."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from muster import __version__
from muster.errors import MusterError, UsageError
from muster.jobs.decode import decode
from muster.jobs.job_messages import (
    JOB_ANSWERS,
    VERSION,
    AskDrain,
    AskStacks,
    AskState,
    AskStop,
    Follow,
    JobEnd,
    JobError,
    ShownLine,
)
from muster.jobs.kept_files import is_trusted
from muster.jobs.location import address
from muster.jobs.state import Report
from muster.shared.protocol import check_reply
from muster.shared.wire import ProtocolError

STATE_LIMIT = 5.0
"""Seconds for an answer that the controller has at hand; on a busy machine it may not get the CPU for one or two."""

STOP_LIMIT = 20.0
"""Seconds for a controller to confirm a stop; a signal sent too soon instead would cut the grace period short."""

STACKS_LIMIT = 30.0
"""Seconds for the stack traces of all ranks."""

_LARGEST_ANSWER = 256 << 20
"""Bytes; a longer answer does not come from a job."""


_LARGEST_LINE = 16 << 20
"""Bytes of a line for a follower: those of ranks are shown in pieces of 1 MB, and JSON may need six bytes for one."""


class NoAnswer(MusterError):
    """The job's socket does not answer: it has ended, its controller died, or it runs on another machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"job {folder.name} does not answer", hint=f"`muster logs {folder.name}` shows what it wrote")


class Refused(NoAnswer):
    """The job's socket exists, but no process holds it any more."""


def ask(folder: Path, request: AskState | AskStop | AskDrain | AskStacks, limit: float = STATE_LIMIT) -> Any:
    """Send one request to the job with this directory, and return the answer; NoAnswer within `limit` seconds."""
    with _connected(folder, limit) as peer:
        try:
            _send(peer, request)
            answer = _read_line(peer, time.monotonic() + limit)
        except OSError:
            raise NoAnswer(folder) from None
    if not answer:
        raise NoAnswer(folder)
    return _checked(folder, answer, request["do"])


def state(
    folder: Path, *, since: float | None = None, stacks: bool = True, limit: float = STATE_LIMIT
) -> dict[str, Any]:
    """The job's state as `JobState.as_data` gives it; with the history after `since` only, if that is given."""
    return ask(folder, {"do": "state", "since": since, "stacks": stacks}, limit)


def stop(folder: Path, *, grace: float | None = None, stacks: bool = False) -> str:
    """Ask the job to end as after SIGTERM; returns when it has begun to.

    With `stacks`, the stack traces of all ranks are saved before, and the answer says where.
    """
    limit = STACKS_LIMIT if stacks else STOP_LIMIT
    return ask(folder, {"do": "stop", "grace": grace, "stacks": stacks}, limit).get("said", "")


def drain(folder: Path, host: str, left: float | None) -> str:
    """Ask the job to leave a host that goes away, in `left` seconds if that is known; returns what the job does."""
    return ask(folder, {"do": "drain", "host": host, "left": left}, STOP_LIMIT)["said"]


def take_stacks(folder: Path) -> Report:
    """Have the stack traces of all ranks saved, and return the report."""
    answer = ask(folder, {"do": "stacks"}, STACKS_LIMIT)
    try:
        return decode(Report, answer["report"])
    except ValueError as error:
        raise MusterError(f"job {folder.name} sent an invalid answer: {error}") from None


def follow(folder: Path, *, last: int = 0, every: float | None = None) -> Generator[ShownLine | JobEnd | None]:
    """Everything the job shows from this call on, after the `last` lines: {"stream", "text", "end"} each.

    At the job's end {"end": exit code} comes last; it ends without that when the controller dies. With `every`, None
    comes after that many seconds without a line.
    """
    peer = _connected(folder, STATE_LIMIT)
    try:
        _send(peer, {"do": "follow", "last": last})
    except OSError:
        pass  # it ends now, and so do the lines
    return _lines(folder, peer, every)


def _lines(folder: Path, peer: socket.socket, every: float | None) -> Generator[ShownLine | JobEnd | None]:
    with peer:
        try:
            peer.settimeout(every)
            unfinished = b""
            while True:
                try:
                    data = peer.recv(1 << 18)
                except TimeoutError:
                    yield None
                    continue
                if not data:
                    return
                *lines, unfinished = (unfinished + data).split(b"\n")
                for line in lines:
                    yield _checked(folder, line, "follow")
                if len(unfinished) > _LARGEST_LINE:
                    raise MusterError(f"job {folder.name} sent an invalid answer: a line that does not end")
        except OSError:
            return


def _connected(folder: Path, limit: float) -> socket.socket:
    path = address(folder)
    if path is None:
        raise NoAnswer(folder)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(limit)
    try:
        peer.connect(str(path))
    except OSError as error:
        peer.close()
        raise (Refused if isinstance(error, ConnectionRefusedError) else NoAnswer)(folder) from None
    if not _is_ours(peer):
        peer.close()
        raise NoAnswer(folder)
    return peer


def _is_ours(peer: socket.socket) -> bool:
    """Whether the process that listens is of this user or root: a path in /tmp alone proves nothing."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return is_trusted(uid)


def _send(peer: socket.socket, request: AskState | AskStop | AskDrain | AskStacks | Follow) -> None:
    versioned = {**request, "protocol": VERSION, "muster": __version__}
    try:
        peer.sendall(json.dumps(versioned).encode() + b"\n")
    except BrokenPipeError:
        pass  # the job has refused one client too many, and the reason can still be read


def _read_line(peer: socket.socket, deadline: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while not pieces or not pieces[-1].endswith(b"\n"):
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        piece = peer.recv(1 << 18)
        size += len(piece)
        if not piece or size > _LARGEST_ANSWER:
            return b""
        pieces.append(piece)
    return b"".join(pieces)


def _checked(folder: Path, line: bytes, do: str) -> Any:
    """The answer to a request, validated; an error in it is raised."""
    try:
        answer = json.loads(line)
        if "error" in answer:
            check_reply(answer, JobError, do)
            raise (UsageError if answer.get("usage") else MusterError)(answer["error"], hint=answer.get("hint"))
        kind = ("line" if "stream" in answer else "end") if do == "follow" else do
        if kind in JOB_ANSWERS:
            check_reply(answer, JOB_ANSWERS[kind], do)
    except (ValueError, TypeError, RecursionError, ProtocolError) as error:
        raise MusterError(f"job {folder.name} sent an invalid answer: {error}") from None
    return answer
