"""The unix socket of a running job, where other commands of the same user ask about it, follow its output and stop it.

The requests and answers are in `muster.jobs.job_messages`. The job waits for no client: one that reads too slowly loses
lines, and above MOST_CLIENTS connections a client is refused.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from muster import __version__
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.monitor.job_status import JobStatus
from muster.errors import EXIT_MUSTER, MusterError, UsageError
from muster.jobs.job_messages import (
    JOB_REQUESTS,
    VERSION,
    AskDrain,
    AskStacks,
    AskState,
    AskStop,
    Draining,
    JobError,
    ShownLine,
    StacksTaken,
    Stopping,
)
from muster.jobs.location import leave_address, remove_address, socket_elsewhere, socket_in
from muster.output.screen import Screen
from muster.shared.protocol import validate
from muster.shared.wire import ProtocolError
from muster.text import printable

if TYPE_CHECKING:
    from muster.jobs.state import Report

_log = logging.getLogger("muster.job_server")

MOST_CLIENTS = 32
"""Connections at a time."""

_IDLE_LIMIT = 300.0
"""Seconds after which an idle client is disconnected."""

_ANSWER_LIMIT = 10.0
"""Seconds in which a client must have read an answer."""

_FAREWELL_LIMIT = 0.5
"""Seconds for followers to read the last lines when the rest of the job has ended."""

_MOST_UNREAD = 1 << 20
"""Bytes that may be queued for a follower; it does not get further lines."""

_LONGEST_WAIT = 366 * 86400.0
"""Seconds of a grace period, or until a host goes away, that a client may ask for."""

_KEPT_LINES = 100
_KEPT_LENGTH = 2000
"""How much of the latest output is kept for new followers: lines, and characters of each."""


class _Follower:
    """A client that reads the output of the job."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._missed = 0

    def give(self, data: bytes, lines: int) -> None:
        if self.writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            self._missed += lines
            return
        if self._missed:
            text = f"muster: {self._missed} lines not shown because this reader was too slow; they are in the logs"
            data, self._missed = _line({"stream": 2, "text": text, "end": "\n"}) + data, 0
        self.writer.write(data)


class JobServer:
    """Answers other commands while the job runs; an `async with` around all of it."""

    def __init__(
        self,
        folder: Path,
        status: JobStatus,
        screen: Screen,
        *,
        stop: Callable[[float | None], None],
        drain: Callable[[str, float | None], str],
        take_stacks: Callable[[], Awaitable[Report]],
    ) -> None:
        self._folder = folder
        self._status = status
        self._screen = screen
        self._stop = stop
        self._drain = drain
        self._take_stacks = take_stacks
        self._handlers: dict[str, Callable[[Any], Awaitable[Mapping[str, object]]]] = {
            "state": self._on_state,
            "stop": self._on_stop,
            "drain": self._on_drain,
            "stacks": self._on_stacks,
        }
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._followers: set[_Follower] = set()
        self._last: deque[ShownLine] = deque(maxlen=_KEPT_LINES)
        self._new: list[ShownLine] = []
        self._is_waking = False
        self._lock = threading.Lock()
        """Protects the lines and the followers: lines come from any thread."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> JobServer:
        """Open the socket; where that is not possible, the job runs without one."""
        self._loop = asyncio.get_running_loop()
        self._screen.beside = self._on_line
        try:
            self._socket = _bound(self._folder)
        except OSError as error:
            why = error.strerror.lower() if error.strerror else str(error)
            self._screen.warning(
                f"other commands cannot connect to this job ({why}): `muster attach`, `drain` and `show --stacks` do "
                "not work; `ps`, `logs`, `show` and `stop` do"
            )
        else:
            self._loop.add_reader(self._socket.fileno(), self._accept)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Send followers the exit code, and close."""
        assert self._loop is not None
        if error is not None:
            self._on_failure(error)
        self._screen.beside = None
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._flush()
        end = _line({"end": self._status.exit_code or 0})
        writers = [follower.writer for follower in self._followers]
        for writer in writers:
            writer.write(end)
            writer.close()
        if writers:
            await asyncio.wait([asyncio.ensure_future(_closed(writer)) for writer in writers], timeout=_FAREWELL_LIMIT)
        for task in self._tasks:
            task.cancel()
        self._socket.close()
        remove_address(self._folder)

    def _on_failure(self, error: BaseException) -> None:
        """Show followers an error that the command itself prints at its end."""
        sentence = error.message if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"
        code, hint = (error.exit_code, error.hint) if isinstance(error, MusterError) else (EXIT_MUSTER, None)
        self._status.failed(Verdict(exit_code=code, sentence=sentence, notes=(f"hint: {hint}",) if hint else ()))
        self._status.ended(code, sentence)
        self._on_line(2, f"error: {sentence}", "\n")

    # --- lines for followers --------------------------------------------------------------------------------

    def _on_line(self, stream: int, text: str, end: str) -> None:
        """A line was shown; this may be any thread."""
        line: ShownLine = {"stream": stream, "text": text, "end": end}
        with self._lock:
            if self._last and self._last[-1]["end"] == "\r":  # a line that is replaced counts once
                self._last.pop()
            self._last.append({**line, "text": text if len(text) <= _KEPT_LENGTH else text[:_KEPT_LENGTH] + "…"})
            if not self._followers:
                return
            self._new.append(line)
            is_first, self._is_waking = not self._is_waking, True
        if is_first and self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self, new: _Follower | None = None, last: int = 0) -> None:
        """Send followers what is new; add `new` to them and send it the last lines."""
        with self._lock:
            self._is_waking = False
            lines, self._new = self._new, []
            followers = list(self._followers)
            shown = list(self._last)[-last:] if last > 0 else []
            if new is not None:
                self._followers.add(new)
        if lines:
            data = b"".join(_line(line) for line in lines)
            for follower in followers:
                follower.give(data, len(lines))
        if new is not None:
            new.give(b"".join(_line(line) for line in shown), len(shown))

    # --- clients --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._socket is not None
        assert self._loop is not None
        try:
            peer, _ = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                # The client stays in the queue: accept it when a descriptor may be free.
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(1.0, self._look_again)
            return
        task = asyncio.ensure_future(self._serve(peer, len(self._tasks) >= MOST_CLIENTS))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_again(self) -> None:
        if self._socket is not None and self._socket.fileno() >= 0 and self._loop is not None:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _serve(self, peer: socket.socket, is_one_too_many: bool) -> None:
        """Serve one client; whatever it does causes no error in the job."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=peer)
            if is_one_too_many:
                writer.write(_line({"error": f"{MOST_CLIENTS} clients are connected to this job; try again later"}))
                return
            while request := await asyncio.wait_for(_read_line(reader), _IDLE_LIMIT):
                asked = _parsed(request)
                if asked["do"] == "follow":
                    await self._follow(reader, writer, asked.get("last", 0))
                    return
                writer.write(_line(await self._handlers[asked["do"]](asked)))
                await asyncio.wait_for(writer.drain(), _ANSWER_LIMIT)
        except (ProtocolError, UsageError) as error:
            assert writer is not None
            writer.write(_line({"error": str(error), "usage": isinstance(error, UsageError)}))
        except Exception as error:  # it has disconnected or does not read
            _log.debug("a client of the job's socket failed", exc_info=error)
            if writer is not None:
                writer.write(_line({"error": f"the request failed: {type(error).__name__}: {error}"}))
        finally:
            if writer is None:
                peer.close()
            elif writer.transport.get_write_buffer_size() > _MOST_UNREAD:
                writer.transport.abort()
            else:
                writer.close()

    async def _on_state(self, asked: AskState) -> Mapping[str, object]:
        return self._status.state().cut(since=asked.get("since"), stacks=asked.get("stacks", True)).as_data()

    async def _on_stop(self, asked: AskStop) -> Stopping:
        said = (await self._take_stacks()).sentence if asked.get("stacks") else ""
        self._stop(asked.get("grace"))
        return {"ok": True, "said": said}

    async def _on_drain(self, asked: AskDrain) -> Draining | JobError:
        try:
            return {"said": self._drain(asked["host"], asked.get("left"))}
        except MusterError as error:
            return {"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)}

    async def _on_stacks(self, asked: AskStacks) -> StacksTaken:
        return {"report": vars(await self._take_stacks())}

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last: int) -> None:
        follower = _Follower(writer)
        self._flush(follower, last)
        try:
            while await reader.read(1 << 16):
                pass  # a follower sends nothing more
        finally:
            with self._lock:
                self._followers.discard(follower)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise ProtocolError("invalid request: it is too long") from None


def _parsed(line: bytes) -> dict[str, Any]:
    """A request, validated; ProtocolError or UsageError says why it cannot be answered."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("invalid request: it is not JSON") from None
    asked = cast("dict[str, Any]", found if type(found) is dict else {})
    if type(asked.get("do")) is not str:
        raise ProtocolError("invalid request: it must be a JSON object with the field `do`")
    theirs = asked.get("protocol", 1)
    if theirs != VERSION:
        raise ProtocolError(
            f"this job runs Muster {__version__} (job protocol {VERSION}), but the command that asks is Muster "
            f"{_brief(asked.get('muster'))} (job protocol {_brief(theirs)}); use the version that started the job"
        )
    if asked["do"] not in JOB_REQUESTS:
        what = _brief(asked["do"])
        raise ProtocolError(f"this job does not know the request `{what}`; it may run another version of Muster")
    for name in ("grace", "left"):
        seconds = asked.get(name)
        if isinstance(seconds, (int, float)) and not 0 <= seconds <= _LONGEST_WAIT:
            raise UsageError(f"`{name}` must be between 0 and {_LONGEST_WAIT:.0f} s")
    try:
        validate(asked, JOB_REQUESTS, "do")
    except ProtocolError as error:
        raise ProtocolError(f"invalid request: {error}") from None
    return asked


def _brief(value: object) -> str:
    """A value that a client sent, to be repeated in a sentence."""
    return printable(str(value)[:40])


def _line(data: Mapping[str, object]) -> bytes:
    return json.dumps(data).encode() + b"\n"


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except OSError:
        pass


def _bound(folder: Path) -> socket.socket:
    """A listening socket that only this user can reach: in the job directory, or where paths are short."""
    path = socket_in(folder)
    if path is not None:
        try:
            return _listening(folder, path)
        except OSError:
            pass  # a network file system may have no sockets
    return _listening(folder, socket_elsewhere(folder))


def _listening(folder: Path, path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        server.bind(str(path))
        path.chmod(0o600)  # its directory is 0700, so nobody could connect before this
        leave_address(folder, path)
        server.listen(MOST_CLIENTS)
        server.setblocking(False)
    except OSError:
        server.close()
        path.unlink(missing_ok=True)
        raise
    return server
