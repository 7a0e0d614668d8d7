"""gloo's threads at the end of a process: they must rest before the interpreter goes."""

from __future__ import annotations

import os
import time

THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")
"""What torch 2.13 calls those that carry out collectives."""


def wait_until_at_rest(limit: float) -> None:
    """Return when none of gloo's threads has anything left to do, at the latest after `limit` seconds.

    A collective that is over, or has just failed, is dropped by such a thread, for which it takes the GIL. Where the
    interpreter is about to end by then, that ends the process with SIGABRT, whatever its exit code was to be (Python
    below 3.14; seen in three of ten failing ranks on a busy machine).
    """
    give_up = time.monotonic() + limit
    seen = _times_run()
    while time.monotonic() < give_up:
        time.sleep(0.005)  # gives them the GIL
        before, seen = seen, _times_run()
        if seen is not None and seen == before:
            return


def _times_run() -> dict[str, str] | None:
    """How often each thread has run, where all of them sleep; a thread that wants to run counts as awake."""
    times: dict[str, str] = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            if _read(thread, "comm").strip() not in THREADS:
                continue
            state = _read(thread, "stat").rpartition(")")[2].split()[0]
            if state != "S":
                return None
            times[thread] = _read(thread, "schedstat").split()[2]
    except OSError:  # no /proc, no such figures, or a thread that has just ended
        return None
    return times


def _read(thread: str, file: str) -> str:
    with open(f"/proc/self/task/{thread}/{file}") as stream:
        return stream.read()
