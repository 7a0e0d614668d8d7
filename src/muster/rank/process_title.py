"""Sets the command line of this process as shown by `ps`, psutil and nvidia-smi."""

from __future__ import annotations

import os
import sys

from ..shared import processes
from ..shared.light_ctypes import c_size_t, c_void_p, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..shared.spawner_messages import Target

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14

_FIELDS = (26, 27, 45, 46, 47, None, 28, 48, 49, 50, 51)
"""The members of the kernel's `prctl_mm_map` as fields of /proc/self/stat; None is the end of the heap."""

_ARG_START, _ARG_END, _ENV_START = 7, 8, 9

_region: list[int] = []
"""Begin, end and number of this process's arguments, determined before anything changes them."""


def command(config: Target) -> list[str]:
    """The arguments of the python command line that a rank corresponds to, with `${local_rank}` as under torchrun."""
    args = [arg.replace("${local_rank}", os.environ.get("LOCAL_RANK", "")) for arg in config["args"]]
    return [*(["-m"] if config["kind"] == "module" else []), config["target"], *args]


def room_for(argv: Sequence[str]) -> list[str]:
    """Extra arguments for a process that will later show `argv`, to reserve enough space for it."""
    return [*argv, " " * 16]


def set_title(argv: Sequence[str]) -> None:
    """Show `argv` as the command line of this process.

    The memory keeps its original number of strings, with the first one unchanged if `argv` keeps it, because
    setproctitle checks for that. Only the end of the region that the kernel shows moves, so psutil sees exactly `argv`.
    """
    try:
        members = _members()
        if not _region:
            with open("/proc/self/cmdline", "rb") as file:
                _region.extend((members[_ARG_START], members[_ARG_END], file.read().count(b"\0")))
        start, end, began_with = _region
        title = b"".join(os.fsencode(word) + b"\0" for word in argv)
        fillers = began_with - len(argv)
        room = end - start - len(title)
        if not 0 < start < end or fillers < 1 or room < 2 * fillers:
            return
        rest = b" \0" * (fillers - 1)
        rest += b" " * (room - len(rest) - 1) + b"\0"
        function("memmove")(c_void_p(start), title + rest, c_size_t(end - start))
        members[_ARG_START], members[_ARG_END] = start, start + len(title)
        members[_ENV_START] = members[_ARG_END]  # the kernel lets a longer title continue only there
        _show(members)
    except (OSError, ValueError, IndexError):
        pass  # keep the old command line


def _members() -> list[int]:
    fields = processes.stat("self")[1]
    break_at = function("sbrk", c_void_p)
    # The first field after the name is the third of proc(5).
    return [break_at(0) if number is None else int(fields[number - 3]) for number in _FIELDS]


def _show(members: Sequence[int]) -> None:
    """Set the kernel's argument region; without CONFIG_CHECKPOINT_RESTORE it also shows the padding."""
    # Then the address of the auxiliary vector (64 bits), its size and a descriptor of the program (32 each): unchanged.
    parts = [member.to_bytes(8, sys.byteorder) for member in (*members, 0)]
    layout = b"".join((*parts, bytes(4), b"\xff" * 4))
    processes.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, len(layout), 0)
