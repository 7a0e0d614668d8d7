"""Parses and formats stack traces in faulthandler's format. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muster.shared.user_code import is_musters, is_users

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ ?(?P<name>.*?) ?\(most recent call first\):?")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')

_TORCH = re.compile(r"/torch/(\w+/)*\w+\.py$")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame of a stack trace."""

    file: str
    line: int
    function: str

    @property
    def name(self) -> str:
        """The file name without its directory."""
        return self.file.rpartition("/")[2]

    @property
    def place(self) -> str:
        """`train.py:88`."""
        return f"{self.name}:{self.line}"

    def __str__(self) -> str:
        return self.place if self.function == "<module>" else f"{self.function} ({self.place})"

    @property
    def is_torchs(self) -> bool:
        """Whether the frame is in torch."""
        return bool(_TORCH.search(self.file))

    @property
    def is_users(self) -> bool:
        """Whether the frame is in the user's own code, not in torch, a package or the standard library."""
        return is_users(self.file)

    def is_in(self, end: str) -> bool:
        """Whether its file path ends with `end`, for example `torch/utils/data/dataloader.py`."""
        return self.file.endswith("/" + end)


@dataclass(frozen=True, kw_only=True)
class Thread:
    """The frames of one thread, innermost first."""

    name: str
    frames: tuple[Frame, ...]


def parse(text: str) -> tuple[Thread, ...]:
    """The threads of a process; the main thread is last, because the interpreter lists the newest thread first."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        begin, frame = _THREAD.match(line), _FRAME.match(line)
        if begin:
            threads.append((begin["name"], []))
        elif frame and threads:
            threads[-1][1].append(Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"]))
    return tuple(Thread(name=name, frames=_without_ours(frames)) for name, frames in threads)


def _without_ours(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames above the one that ran the script, without Muster's wrappers."""
    kept: list[Frame] = []
    for frame in frames:
        ours = is_musters(frame.file)
        if ours and frame.name in ("script.py", "function_call.py"):
            break
        if not ours:
            kept.append(frame)
    return tuple(kept)


def clean(text: str) -> str:
    """Format stack traces for display, without Muster's own frames and threads."""
    blocks = [
        "\n".join([f"thread {thread.name}" if thread.name else "thread", *map(_line, thread.frames)])
        for thread in reversed(parse(text))
        if thread.frames
    ]
    return "\n\n".join(blocks)


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first; empty if there is no stack trace."""
    threads = parse(text)
    return threads[-1].frames if threads else ()


def training_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the thread that runs the user's program: the main thread, or the only thread it is joining."""
    threads = parse(text)
    if not threads:
        return ()
    main = threads[-1].frames
    joins = bool(main) and main[0].file.endswith("/threading.py") and not main[0].is_users
    others = [thread.frames for thread in threads[:-1] if any(frame.is_users for frame in thread.frames)]
    return others[0] if joins and len(others) == 1 else main


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code, or of an installed package if the whole program is one."""
    for frame in frames:
        if frame.is_users:
            return frame
    packaged = [frame for frame in frames if "-packages/" in frame.file and not frame.is_torchs]
    return packaged[0] if packaged else None


def short(frames: Sequence[Frame], most: int = 8) -> list[str]:
    """Format the innermost frames, then only the user's own, as one line each."""
    first = next((at for at, frame in enumerate(frames) if frame.is_users), len(frames))
    inner = list(frames[:first])
    if len(inner) > most // 2:
        inner = [*inner[: most // 4], *inner[-(most // 4) :]]
    users = [frame for frame in frames[first:] if frame.is_users]
    return [_line(frame) for frame in [*inner, *users][:most]]


def _line(frame: Frame) -> str:
    return f'  File "{frame.file}", line {frame.line}, in {frame.function}'


def blocking_frame(text: str) -> str:
    """Where a process is whose script has ended: the user's line that keeps it running, if there is one."""
    threads = parse(text)
    for thread in threads:
        frame = users_frame(thread.frames)
        if frame is not None and thread is threads[-1]:
            return f"at {frame}"
        if frame is not None:
            return f"waiting for thread {thread.name or 'of the script'} at {frame}"
    last = threads[-1].frames if threads else ()
    return f"at {last[0]}" if last else "shutting down in C code"
