"""The terminal, written by a thread of its own: a slow one never slows the job."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from muster.output.lines import Line, as_bytes

_DIM = 2
_COLORS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_MOST_QUEUED = 64 << 20
"""Bytes that may wait for a screen that is not read (`| less`, Ctrl-S); more is left out there, never in the files."""

_CLEAR = "\r\x1b[K"

_PROMPT = "?"
"""The end of a line behind which a rank waits for input."""

_LABEL = re.compile(r"muster:|\[\S+ +(?P<rank>\d+)\]")


def rank_label(host: str, rank: int, width: int) -> str:
    """What stands before each line of a rank; `width` is that of the highest rank's number."""
    return f"[{host} {rank:>{width}}]"


def rank_color(rank: int) -> int:
    """The color of a rank's label, as a terminal numbers it."""
    return _COLORS[rank % len(_COLORS)]


def wants_color() -> bool:
    """Whether the user wants colors on a terminal."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Screen:
    """Shows lines of ranks, Muster's own words and one live status line."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        streams: Mapping[int, TextIO | None] | None = None,
    ) -> None:
        """`streams` stand in for descriptors 1 and 2 where those are not what the user looks at, as in a notebook."""
        self.quiet = quiet
        self._streams = streams or {}
        self.closed_by_reader = threading.Event()
        """Set when nobody reads our stdout any more (`| head`)."""
        self.beside: Callable[[int, str, str], None] | None = None
        """Gets every line too, as plain text: the stream, the text, how it ends. Called in any thread."""
        self.log: Callable[[str], None] = lambda text: None
        """Gets what Muster itself says, and hosts, also what --quiet leaves out: for the debug log."""
        self._tty = {fd: fd not in self._streams and os.isatty(fd) for fd in (1, 2)}
        self._color = {fd: self._tty[fd] and wants_color() for fd in (1, 2)}
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._queued = 0
        self._left_out = 0
        self._lock = threading.Lock()
        self._unfinished = {1: "", 2: ""}
        """How the line that is still open on each stream ended: by a carriage return, or as a prompt."""
        self._thread = threading.Thread(target=self._work, name="muster-screen", daemon=True)
        self._thread.start()

    def info(self, text: str) -> None:
        """A sentence of Muster's own, on stderr; left out with --quiet."""
        if self.quiet:
            self.log(text)
        else:
            self.warning(text)

    def warning(self, text: str) -> None:
        """A sentence that --quiet does not silence: a warning or a failure."""
        self.log(text)
        for line in text.splitlines() or [""]:
            self._show(2, f"muster: {line}" if line else "muster:", "\n", colored=len("muster:"))

    def show_block(self, text: str) -> None:
        """Text that stands by itself, such as a traceback."""
        for line in text.splitlines():
            self._show(2, "  " + line, "\n")

    def debug(self, text: str) -> None:
        """A line of the debug log, for --debug."""
        for line in text.splitlines():
            self._show(2, f"muster: debug: {line}", "\n", colored=len(f"muster: debug: {line}"))

    def status(self, text: str) -> None:
        """What is being waited for: one line that renews itself on a terminal, a new line elsewhere."""
        if not self.quiet:
            text = f"muster: {text}"
            self._show(2, text, "\r" if self._tty[2] else "\n", colored=len(text))

    @property
    def is_live(self) -> bool:
        """Whether a status line can renew itself."""
        return self._tty[2]

    def rank_line(self, host: str, rank: int, width: int, stream: int, line: Line) -> None:
        """One line of a rank, with `[host rank]` before it."""
        label = rank_label(host, rank, width)
        end = "\r" if line.end == "\r" and self._tty[stream] else "\n"
        self._show(stream, f"{label} {line.text}", end, colored=len(label), color=rank_color(rank))

    def rank_prompt(self, host: str, rank: int, width: int, stream: int, text: str) -> None:
        """A line without an end, behind which a rank waits for input."""
        label = rank_label(host, rank, width)
        end = _PROMPT if self._tty[stream] else "\n"
        self._show(stream, f"{label} {text}", end, colored=len(label), color=rank_color(rank))

    def host_line(self, host: str, text: str) -> None:
        """A line the host itself wrote: ssh, a shell profile, an import."""
        self.log(f"[{host}] {text}")
        self._show(2, f"[{host}] {text}", "\n")

    def repeat(self, stream: int, text: str, end: str) -> None:
        """A line that the screen of another process has shown, with the colors it has on this one."""
        label = _LABEL.match(text)
        if end == "\r" and not self._tty[stream]:
            if label is not None and label["rank"] is None:
                return  # a status that is renewed twice a second
            end = "\n"
        if label is None:
            self._show(stream, text, end)
        else:
            color = _DIM if label["rank"] is None else rank_color(int(label["rank"]))
            self._show(stream, text, end, colored=label.end(), color=color)

    def move(self, files: Mapping[int, int], limit: float = 0.5) -> None:
        """Write out what is queued, for `limit` seconds at most, then show the rest in other files: stream to file."""
        deadline = time.monotonic() + limit
        while self._queued and time.monotonic() < deadline:
            time.sleep(0.01)
        for fd, file in files.items():
            os.dup2(file, fd)
        self._tty = {fd: fd not in self._streams and os.isatty(fd) for fd in (1, 2)}
        self._color = {fd: self._tty[fd] and wants_color() for fd in (1, 2)}
        self._unfinished = {1: "", 2: ""}

    def close(self, limit: float = 10.0) -> None:
        """Write out what is queued; a screen that is not read holds us no longer than `limit` seconds."""
        for fd in (1, 2):
            if self._unfinished[fd]:
                is_bar = fd == 1 and self._unfinished[fd] == "\r"  # what it showed last stays
                self._put(fd, b"\n" if is_bar else self._begin_line(fd).encode())
        self._queue.put(None)
        self._thread.join(limit)

    def _show(self, fd: int, text: str, end: str, *, colored: int = 0, color: int = _DIM) -> None:
        """Show a line, of which the first `colored` characters have a color where there are colors."""
        if self.beside is not None:
            self.beside(fd, text, "\n" if end == _PROMPT else end)
        if colored and self._color[fd]:
            text = f"\x1b[{color}m{text[:colored]}\x1b[0m{text[colored:]}"
        begin = self._begin_line(fd) if self._tty[fd] else ""
        self._unfinished[fd] = "" if end == "\n" else end
        self._put(fd, as_bytes(begin + text + ("\n" if end == "\n" else "")))

    def _begin_line(self, fd: int) -> str:
        """What brings a terminal to the beginning of an empty line, whichever stream wrote the last one."""
        ends, self._unfinished = set(self._unfinished.values()), {1: "", 2: ""}
        if _PROMPT not in ends:
            return _CLEAR if "\r" in ends else ""
        # Whether somebody has pressed Enter behind it, only the terminal knows. This many blanks lead into the next
        # line if the cursor is behind the prompt, and not if it is at the beginning of a line, as in zsh.
        try:
            columns = os.get_terminal_size(fd).columns or 80
        except OSError:
            columns = 80
        return " " * (columns - 1) + _CLEAR

    def _put(self, fd: int, data: bytes) -> None:
        with self._lock:
            if self._queued > _MOST_QUEUED:
                self._left_out += 1
                return
            self._queued += len(data)
        self._queue.put((fd, data))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            fd, data = item
            self._write(fd, data)
            with self._lock:
                self._queued -= len(data)
                left_out, self._left_out = (self._left_out, 0) if self._queued == 0 else (0, self._left_out)
            if left_out:
                self._write(
                    2,
                    f"muster: {left_out} lines not shown, the screen was too slow; the logs have them\n".encode(),
                )

    def _write(self, fd: int, data: bytes) -> None:
        try:
            if fd in self._streams:
                self._write_text(self._streams[fd], data.decode("utf-8", "replace"))
                return
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        except BrokenPipeError:
            if fd == 1:
                self.closed_by_reader.set()
        except OSError:
            pass  # the terminal is gone; the logs are kept all the same

    def _write_text(self, stream: TextIO | None, text: str) -> None:
        if stream is None:  # a program without a console has no stdout
            return
        try:
            stream.write(text)
            if self._queue.empty():  # a notebook's stream waits for its server at each flush
                stream.flush()
        except ValueError:
            pass  # it was closed meanwhile
