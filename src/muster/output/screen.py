"""The terminal, written by a separate thread: a slow terminal never slows the job."""

from __future__ import annotations

import errno
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO

from muster.output.colors import ADVICE, DIM, FAILURE, WARNING, is_dumb, painted, rank_color, wants_color
from muster.output.escapes import for_terminal, visible
from muster.output.lines import Line, as_bytes
from muster.output.progress_bars import BarArea, BarLines, Key, fitted
from muster.text import printable_lines

_MOST_QUEUED = 128 << 20
"""Bytes that may be queued for a terminal that is not read (`| less`, Ctrl-S); more is dropped, never in the files."""

_ITEM = 64
"""Bytes counted for a queued line besides its text, so that empty ones are limited too."""

_CLEAR = "\r\x1b[K"

_PROMPT = "?"
"""The end of a line behind which a rank waits for input."""

_LEAVE = "leave"
"""In place of the end of a line: the terminal is about to be left."""

_REDRAW = 0.1
"""Seconds between two redraws of the progress bars."""

_STATUS: Key = ("muster:", 2)
"""The key of Muster's own status among the progress bars."""

_LABEL = re.compile(r"muster:|\[\S+ +(?P<rank>\d+)\]")
_ADVICE_LABEL = re.compile(r"(?:Fix|hint):")

_Parts = Sequence[tuple[str, str]]
"""Text with its style, as the parameters of an escape sequence; empty for plain text."""


def rank_label(host: str, rank: int, width: int) -> str:
    """The label before each line of a rank; `width` is that of the highest rank's number."""
    return f"[{host} {rank:>{width}}]"


class _Item(NamedTuple):
    """A line, a prompt or a state of a progress bar on its way to the terminal."""

    fd: int
    text: str
    end: str
    key: Key | None
    """Whose line it is: a line replaces the progress bar of the same key."""


class Screen:
    """Shows lines of ranks, messages of Muster, progress bars and one live status line."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        streams: Mapping[int, TextIO | None] | None = None,
    ) -> None:
        """`streams` replace descriptors 1 and 2 where those are not what the user looks at, as in a notebook."""
        self.quiet = quiet
        self._streams = streams or {}
        self.closed_by_reader = threading.Event()
        """Set when nobody reads our stdout any more (`| head`)."""
        self.beside: Callable[[int, str, str], None] | None = None
        """Called with every line as plain text: the stream, the text, its end. Called in any thread."""
        self.log: Callable[[str], None] = lambda text: None
        """Called with messages of Muster and of hosts, including those that --quiet hides: for the debug log."""
        self._find_terminals()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._queued = 0
        self._left_out = 0
        self._is_full = False
        """Whether the disk of stdout was full, which is reported once."""
        self._lock = threading.Lock()
        # Only the thread uses these.
        self._area = BarArea()
        self._bar_lines = BarLines()
        self._prompt: Key | None = None
        """Who waits for input behind an open line."""
        self._is_stale = False
        self._drawn = 0.0
        self._thread = threading.Thread(target=self._work, name="muster-screen", daemon=True)
        self._thread.start()

    def _find_terminals(self) -> None:
        self._tty = {fd: fd not in self._streams and os.isatty(fd) for fd in (1, 2)}
        self._live = {fd: self._tty[fd] and not is_dumb() for fd in (1, 2)}
        self._color = {fd: wants_color(self._tty[fd]) for fd in (1, 2)}

    def info(self, text: str) -> None:
        """A message of Muster on stderr; hidden by --quiet."""
        if self.quiet:
            self.log(text)
        else:
            self.notice(text)

    def notice(self, text: str) -> None:
        """A message that --quiet does not hide."""
        self._message(text, "")

    def warning(self, text: str) -> None:
        """A warning, in yellow; --quiet does not hide it."""
        self._message(text, WARNING)

    def failure(self, text: str) -> None:
        """The failure or the hang of a job, in red; --quiet does not hide it."""
        self._message(text, FAILURE)

    def show_block(self, text: str) -> None:
        """Text without a label, such as a traceback."""
        for line in text.splitlines():
            self._show(2, [("  " + _harmless(line), "")], "\n")

    def debug(self, text: str) -> None:
        """A line of the debug log, for --debug."""
        for line in text.splitlines():
            self._show(2, [(f"muster: debug: {line}", DIM)], "\n")

    def status(self, text: str) -> None:
        """What Muster waits for: one line that is updated on a terminal, a new line elsewhere."""
        if not self.quiet:
            self._show(2, [(f"muster: {text}", DIM)], "\r" if self._live[2] else "\n", key=_STATUS)

    @property
    def is_live(self) -> bool:
        """Whether a status line can be updated in place."""
        return self._live[2]

    def rank_line(self, host: str, rank: int, width: int, stream: int, line: Line) -> None:
        """One line of a rank after `[host rank]`; one that ends with a carriage return is a progress bar."""
        self._show_rank(rank_label(host, rank, width), rank, stream, line.text, "\r" if line.end == "\r" else "\n")

    def rank_prompt(self, host: str, rank: int, width: int, stream: int, text: str) -> None:
        """An incomplete line behind which a rank waits for input."""
        self._show_rank(rank_label(host, rank, width), rank, stream, text, _PROMPT if self._tty[stream] else "\n")

    def rank_ended(self, host: str, rank: int, width: int) -> None:
        """Turn what the progress bars of a rank showed last into ordinary lines."""
        for fd in (1, 2):
            self._put(_Item(fd, "", "", (rank_label(host, rank, width), fd)))

    def host_line(self, host: str, text: str) -> None:
        """A line of the host itself: ssh, a shell profile, an import."""
        self.log(f"[{host}] {text}")
        self._show(2, [(f"[{host}] {text}", "")], "\n")

    def repeat(self, stream: int, text: str, end: str) -> None:
        """A line that the screen of another process has shown, with the colors it has on this one."""
        text = for_terminal(text) if self._tty[stream] else text
        label = _LABEL.match(text)
        if label is None:
            self._show(stream, [(text, "")], "\n" if end == "\r" else end)
        elif label["rank"] is not None:
            self._show_rank(label.group(), int(label["rank"]), stream, text[label.end() + 1 :], end)
        elif end != "\r":
            self._show(stream, _message_parts(text[label.end() + 1 :], ""), end)
        elif self._live[stream]:  # else it would be a new line twice a second
            self._show(stream, [(text, DIM)], end, key=_STATUS)

    def move(self, files: Mapping[int, int], limit: float = 0.5) -> None:
        """Write what is queued, for at most `limit` seconds, then redirect descriptors to other files."""
        self._put(_Item(2, "", _LEAVE, None))
        deadline = time.monotonic() + limit
        while self._queued and time.monotonic() < deadline:
            time.sleep(0.01)
        for fd, file in files.items():
            os.dup2(file, fd)
        self._find_terminals()

    def close(self, limit: float = 10.0) -> None:
        """Write what is queued, but wait at most `limit` seconds for a terminal that is not read."""
        self._queue.put(None)
        self._thread.join(limit)

    def _message(self, text: str, style: str) -> None:
        self.log(text)
        for line in text.splitlines() or [""]:
            self._show(2, _message_parts(_harmless(line), style), "\n")

    def _show_rank(self, label: str, rank: int, fd: int, text: str, end: str) -> None:
        line = f"{label} {text}"
        if self.beside is not None:
            self.beside(fd, line, "\n" if end == _PROMPT else end)
        if self._tty[fd]:
            text = for_terminal(text)
            line = f"{label} {text}"
        if end == "\r" and not visible(text).strip():
            line = ""  # tqdm clears a bar with blanks
        elif self._color[fd]:
            line = f"{painted(label, str(rank_color(rank)))} {text}"
        self._put(_Item(fd, line, end, (label, fd)))

    def _show(self, fd: int, parts: _Parts, end: str, *, key: Key | None = None) -> None:
        if self.beside is not None:
            self.beside(fd, "".join(text for text, _ in parts), end)
        if self._tty[fd]:
            parts = [(for_terminal(text), style) for text, style in parts]
        shown = "".join(painted(text, style) if style and self._color[fd] else text for text, style in parts)
        self._put(_Item(fd, shown, end, key))

    def _put(self, item: _Item) -> None:
        with self._lock:
            if self._queued > _MOST_QUEUED:
                self._left_out += 1
                return
            self._queued += len(item.text) + _ITEM
        self._queue.put(item)

    # --- in the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._patience() if self._is_stale or self._bar_lines.waiting else None)
            except queue.Empty:
                self._refresh()
                continue
            if item is None:
                break
            self._handle(item)
            with self._lock:
                self._queued -= len(item.text) + _ITEM
                left_out, self._left_out = (self._left_out, 0) if self._queued == 0 else (0, self._left_out)
            if left_out:
                lost = f"muster: {left_out} lines not shown because the terminal was too slow; the log files have them"
                self._handle(_Item(2, lost, "\n", None))
            if self._is_stale and (time.monotonic() > self._drawn + _REDRAW or self._is_erased):
                self._refresh()
        self._finish()

    def _patience(self) -> float | None:
        """Seconds until progress bars have to be shown again; None if there is nothing to show."""
        due = self._drawn + _REDRAW if self._is_stale else self._bar_lines.next_due()
        return None if due is None else max(0.0, due - time.monotonic())

    @property
    def _is_erased(self) -> bool:
        """Whether a line has removed the progress bars, and no other line follows at once."""
        return bool(self._area.bars) and not self._area.drawn and self._queue.empty()

    def _handle(self, item: _Item) -> None:
        fd, text, end, key = item
        if end == "\n" and not (self._area.bars or self._area.drawn or self._bar_lines.shown or self._prompt):
            self._write(fd, as_bytes(text + "\n"))  # no bars and no prompt: the usual case must be fast
        elif end == _LEAVE:
            self._finish()
        elif end == "" and key is not None:
            self._end_bar(key)
        elif end == "\r" and key is not None:
            self._set_bar(key, text)
        elif key is None or not self._bar_lines.ended_by(key, text):
            for replaced in filter(None, (key, _STATUS)):
                self._is_stale |= self._area.bars.pop(replaced, None) is not None
            begin = self._begin_line(fd) if self._tty[fd] else ""
            self._prompt = key if end == _PROMPT else self._prompt
            self._write(fd, as_bytes(begin + text + ("\n" if end == "\n" else "")))

    def _set_bar(self, key: Key, text: str) -> None:
        if not self._live[key[1]]:
            self._bar_lines.waiting[key] = text
            self._write_due()
            return
        if self._prompt == key:  # it has read its input
            self._write(self._area_fd, self._begin_line(self._area_fd).encode())
        if text:
            self._area.bars[key] = text
        else:
            self._area.bars.pop(key, None)
        self._is_stale = True

    def _end_bar(self, key: Key) -> None:
        """Leave the last state of a bar as a line."""
        last = self._area.bars.pop(key, "") or self._bar_lines.waiting.pop(key, "")
        if last:
            self._is_stale = True
            self._handle(_Item(key[1], fitted(last, 2 * len(last)), "\n", None))

    def _write_due(self) -> None:
        for key, text in self._bar_lines.due(time.monotonic()):
            self._write(key[1], as_bytes(text + "\n"))

    def _begin_line(self, fd: int) -> str:
        """What brings the terminal to the beginning of an empty line below all others."""
        columns, _ = self._size(fd)
        self._is_stale |= bool(self._area.bars)
        if self._area.drawn:
            self._write(self._area_fd, self._area.erase(columns).encode())
        if self._prompt is None:
            return ""
        self._prompt = None
        # Whether somebody has pressed Enter behind the prompt, only the terminal knows. This many blanks lead into the
        # next line if the cursor is behind the prompt, and not if it is at the beginning of a line, as in zsh.
        return " " * (columns - 1) + _CLEAR

    def _refresh(self) -> None:
        """Show the progress bars as they are now; not below a prompt, where the user types."""
        self._write_due()
        if self._is_stale and self._prompt is None:
            columns, rows = self._size(self._area_fd)
            text = self._area.erase(columns) + self._area.draw(columns, rows)
            self._write(self._area_fd, as_bytes(text))
            self._drawn = time.monotonic()
        self._is_stale = False

    def _finish(self) -> None:
        """Leave the last state of every bar as a line."""
        self._area.bars.pop(_STATUS, None)
        for key in [*self._area.bars, *self._bar_lines.waiting]:
            self._end_bar(key)
        if self._area.drawn or self._prompt is not None:
            self._write(self._area_fd, self._begin_line(self._area_fd).encode())

    @property
    def _area_fd(self) -> int:
        return 2 if self._live[2] else 1

    def _size(self, fd: int) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

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
        except OSError as error:  # if the terminal is closed, nobody is left to read a message
            if fd == 1 and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not self._is_full:
                self._is_full = True
                why = (error.strerror or "").lower()
                lost = f"muster: warning: could not write all output ({why}); the log files have it"
                self._handle(_Item(2, lost, "\n", None))

    def _write_text(self, stream: TextIO | None, text: str) -> None:
        if stream is None:  # a program without a console has no stdout
            return
        try:
            stream.write(text)
            if self._queue.empty():  # the stream of a notebook waits for its server at each flush
                stream.flush()
        except ValueError:
            pass  # it has been closed


def _harmless(line: str) -> str:
    """The line without escape sequences: messages quote exceptions and hosts, which must not change what is shown."""
    return line if line.isprintable() else printable_lines(visible(line))


def _message_parts(line: str, style: str) -> _Parts:
    """A message of Muster: the label dim unless the message has a style, what to do in a color of its own."""
    if not line:
        return [("muster:", style or DIM)]
    advice = _ADVICE_LABEL.match(line)
    if advice is not None:
        return [("muster:", DIM), (" ", ""), (advice.group(), ADVICE), (line[advice.end() :], "")]
    return [(f"muster: {line}", style)] if style else [("muster:", DIM), (f" {line}", "")]
