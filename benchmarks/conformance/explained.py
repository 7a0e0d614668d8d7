"""The differences between torchrun and Muster that are meant to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A difference that has a reason."""

    lines: str
    """A pattern that each line of the difference matches."""
    why: str
    always: bool = True
    """Whether it shows in every run."""


EXPLAINED: dict[str, Explained] = {
    "environment_of_ranks": Explained(
        lines="MASTER_ADDR (localhost|127.0.0.1)|MUSTER_JOB",
        why="Muster gives an address that it has tested, and the job's id for `muster logs` and the like.",
    ),
    "signals_caught": Explained(
        lines=r"\[2\]|\[2, 4, 6, 7, 8, 11, 47\]",
        why="faulthandler shows the Python line of a crash, and signal 47 the stack of a rank that hangs.",
    ),
    "start_hooks": Explained(
        lines=r"stdout: (torchrun: faulthandler False|Muster: faulthandler True)",
        why="faulthandler shows the Python line of a crash in C code.",
    ),
}
"""The programs that differ for a reason. Any other difference is a bug of Muster."""
