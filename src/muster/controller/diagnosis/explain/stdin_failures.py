"""Scripts that read stdin where there is none: breakpoint() and input(). Pure."""

from __future__ import annotations

import re

from muster.controller.diagnosis.explain.case import Case, Explanation, Why

_AT_THE_END = re.compile(r"EOFError: EOF when reading a line|bdb\.BdbQuit")
"""Errors of input() and of the debugger of breakpoint() when stdin is at its end."""

_ON_ONE_RANK = 'if os.environ["RANK"] == "0": breakpoint()'


def _no_stdin(case: Case) -> Explanation | None:
    """A rank read a stdin that it does not have, or that another rank had read to the end.

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
            return None  # the user left the debugger, or the exception is enough
        return Explanation(
            sentence=f"all ranks on {end.host} share one stdin, and it was at its end when rank {end.rank} read it",
            fix="call input() on one rank only, and send the answer to the others with broadcast_object_list",
        )
    if end.rank and readers:
        return Explanation(
            sentence=f"rank {end.rank} on {end.host} has no stdin, so {call} cannot read there; only rank 0 has stdin",
            fix=f"call it on rank 0 only (`{_ON_ONE_RANK}`), or run on this machine only (`muster run --nproc 2 …`), "
            "where every rank reads the terminal",
        )
    return Explanation(
        sentence=f"this job has no stdin, so {call} cannot read: muster run was started in the background, by "
        "muster.launch(), with --detach or with </dev/null",
        fix="run it in the foreground of a terminal: `muster run --nproc 1 …`",
    )


ROWS: tuple[Why, ...] = (_no_stdin,)
