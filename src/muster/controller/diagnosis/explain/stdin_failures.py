"""Scripts that ask the user something where nobody can answer: breakpoint() and input() without a stdin. Pure."""

from __future__ import annotations

import re

from muster.controller.diagnosis.explain.case import Case, Explanation, Why

_AT_THE_END = re.compile(r"EOFError: EOF when reading a line|bdb\.BdbQuit")
"""How input() and the debugger of breakpoint() fail when there is nothing to read."""

_ON_ONE_RANK = 'if os.environ["RANK"] == "0": breakpoint()'


def _no_stdin(case: Case) -> Explanation | None:
    """A rank that read a stdin it does not have, or one that another rank had read to its end.

    Symptom: EOFError: EOF when reading a line; bdb.BdbQuit
    Source: Python 3.11 with an empty stdin on 2026-11-16
    """
    end = case.first
    asked = _AT_THE_END.match(end.summary)
    if asked is None:
        return None
    call = "breakpoint()" if "Bdb" in asked[0] else "input()"
    readers = [other for other in case.ends if other.has_stdin]
    if end.has_stdin:
        if len(readers) == 1 or call != "input()":
            return None  # the user left the debugger, or the exception says it all
        return Explanation(
            sentence=f"all ranks on {end.host} share one stdin, which was at its end when rank {end.rank} read it",
            fix="call input() on one rank only, and send the answer to the others with broadcast_object_list",
        )
    if end.rank and readers:
        return Explanation(
            sentence=f"rank {end.rank} on {end.host} has no stdin, so {call} reads nothing there: only rank 0 has it",
            fix=f"call it on rank 0 only (`{_ON_ONE_RANK}`), or run on this machine alone (`muster run --nproc 2 …`), "
            "where every rank has the terminal",
        )
    return Explanation(
        sentence=f"this job has no stdin, so {call} reads nothing: muster run was started in the background, by "
        "muster.launch(), with --detach or with </dev/null",
        fix="run it in the foreground of a terminal: `muster run --nproc 1 …`",
    )


ROWS: tuple[Why, ...] = (_no_stdin,)
