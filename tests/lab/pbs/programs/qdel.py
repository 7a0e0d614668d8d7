"""qdel and qsig: end a job, or send it a signal; both reach the first host only."""

from __future__ import annotations

import getopt
import signal
import sys
import time
from pathlib import Path
from typing import Any

import records
from wire import SITE, call

FINISHED = 15139 % 256
UNKNOWN = 15001 % 256
BAD_STATE = 15018 % 256
SUSPENSION: dict[str, int] = {"suspend": signal.SIGSTOP, "resume": signal.SIGCONT}
"""What qsig sends under names of its own, to the sessions on all hosts."""


def main() -> int:
    program = Path(sys.argv[1]).name
    try:
        options, ids = getopt.getopt(sys.argv[2:], "s:" if program == "qsig" else "")
    except getopt.GetoptError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    name = dict(options).get("-s", "SIGTERM")
    number = SUSPENSION.get(name) or signal_number(name)
    request = {"do": "terminate"} if program == "qdel" else {"do": "signal_all", "number": number}
    if name in SUSPENSION:
        request["do"] = "suspend"
    return max((one(program, text, request) for text in ids), default=2)


def signal_number(name: str) -> int:
    return int(name) if name.isdigit() else signal.Signals[f"SIG{name.removeprefix('SIG')}"].value


def one(program: str, text: str, request: dict[str, Any]) -> int:
    record = records.named(text)
    if record is None or (record["state"] == "F" and not SITE["history"]):
        print(f"{program}: Unknown Job Id {text if '.' in text else f'{text}.' + SITE['server']}", file=sys.stderr)
        return UNKNOWN
    job = record["id"]
    if record["state"] == "F":
        print(f"{program}: Job has finished {job}", file=sys.stderr)
        return FINISHED
    if record["state"] in "QH":
        if program == "qsig":
            print(f"qsig: Request invalid for state of job {job}", file=sys.stderr)
            return BAD_STATE
        records.change(job, state="F", comment="Job deleted", delivered=True)
        return 0
    deadline = time.monotonic() + 20
    try:
        # The first host may not have heard yet of a job that is just being started: it answers with an error.
        while call(record["chunks"][0]["host"], job=job, **request) and time.monotonic() < deadline:
            time.sleep(0.1)
    except OSError:
        print(f"{program}: Server could not connect to MOM {job}", file=sys.stderr)
        return 15070 % 256
    return 0


sys.exit(main())
