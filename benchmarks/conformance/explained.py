"""Intended differences between torchrun and Muster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Explained:
    """An intended difference, with its reason."""

    lines: str
    """A regular expression that each line of the difference matches."""
    why: str
    always: bool = True
    """Whether it occurs in every run."""


_NOT_STARTED = Explained(
    lines="rank that failed first: torchrun 0, Muster None|rank 0 stderr: torchrun: ",
    why="Muster reports an error that would hit every rank once, before it starts any.",
)

EXPLAINED: dict[str, Explained] = {
    "failure_import_error": _NOT_STARTED,
    "failure_syntax_error": _NOT_STARTED,
    "environment_of_ranks": Explained(
        lines="MASTER_ADDR (localhost|127.0.0.1)|MUSTER_(JOB|DEADLINE_FILE)|"
        "TORCHELASTIC_(ERROR_FILE|SIGNALS_TO_HANDLE)",
        why="Muster gives an address that it has tested, the job's id for `muster logs` and the like, and where a rank "
        "finds the deadline of a drain. It needs no error file, because ranks report exceptions themselves.",
    ),
    "elastic_helpers": Explained(
        lines="ErrorHandler (True|False)",
        why="There is no error file: ranks report exceptions themselves, with and without @record.",
    ),
    "failure_record": Explained(
        lines="stdout: torchrun: .*RuntimeError: recorded",
        why="There is no error file: ranks report exceptions themselves, with and without @record.",
    ),
    "failure_recursion": Explained(
        lines=r"stdout: (torchrun: 1|Muster: 1\d)$",
        why="Muster runs the script from a few calls of its own, which count towards the limit of 1000.",
    ),
    "torch_threads_of_one_rank": Explained(
        lines=r"stdout: (torchrun: 2 2|Muster: 3 2)$",
        why="Muster sets the number of OpenMP threads, and torch starts them then, not at the first operation.",
    ),
    "signals_caught": Explained(
        lines=r"\[2\]|\[2, 4, 6, 7, 8, 11, 47\]",
        why="faulthandler shows the Python line of a crash, and signal 47 the stack of a rank that hangs.",
    ),
    "start_hooks": Explained(
        lines=r"stdout: (torchrun: faulthandler False|Muster: faulthandler True|\S+ True \(\d+, \d+, \d+\) \[\] \d+ 0"
        r"|\w+: \[\('(default|ignore)', .*)",
        why="faulthandler shows the Python line of a crash; the zygote froze its objects, so that memory stays shared, "
        "and torch has added its filters to the warnings.",
    ),
    "start_modules": Explained(
        lines=r"stdout: \w+: \[('__mp_main__')?\]$",
        why="The zygote has imported multiprocessing, which gives the script's module this second name.",
    ),
    "start_main_module": Explained(
        lines=r"stdout: \w+: (True|False)$",
        why="The zygote has imported multiprocessing, which gives the script's module a second name.",
    ),
    "start_file_descriptors": Explained(
        lines=r"\[0, 1, 2(, \d+, \d+)?\]",
        why="Two descriptors that no child inherits carry reports and stack traces of the rank to the agent.",
    ),
    "start_finders": Explained(
        lines="finder|Finder|Importer",
        why="The zygote has imported torch already: finders of Muster keep it out of sys.modules until it is imported.",
    ),
    "start_modules_loaded": Explained(
        lines=r"stdout: \w+: \[",
        why="The zygote has imported torch, and with it numpy and many modules of the standard library.",
    ),
    "end_raising_del": Explained(
        lines=r'stderr: Muster:     raise ValueError\("in __del__"\)',
        why="Python itself can no longer read the source then, Muster can: one line more.",
    ),
}
"""Programs with intended differences. Any other difference is a bug."""
