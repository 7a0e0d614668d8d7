"""Runs inside a lab host and starts `muster` commands as forks of itself: loading Muster takes most of a round's CPU.

Reads one JSON object per line: {"argvs": [[...]], "cwd": ..., "env": {...}, "out": PATH, "exec": BOOL}. A child runs
the commands one after the other, each with its own output file (PATH, PATH.1, …), and ends with the code of the last;
with "exec" it becomes the first one. Prints `started PID` for each request and `ended PID CODE` for each end.
"""

import json
import os
import signal
import sys
from importlib import import_module

from muster.cli import COMMANDS, main

WARM = ("run", "ps", "show", "logs")


def report_ends(number: int, frame: object) -> None:
    """Reap all children that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        os.write(1, f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


def run(request: dict[str, object]) -> int:
    """In the child: run all commands of a request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # pyright: ignore[reportCallIssue, reportArgumentType]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    argvs: list[list[str]] = request["argvs"]  # pyright: ignore[reportAssignmentType]
    code = 0
    for number, argv in enumerate(argvs):
        file = os.open(f"{request['out']}{f'.{number}' if number else ''}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        if request.get("exec"):
            os.execvp(argv[0], argv)
        sys.argv = ["muster", *argv]
        code = main(argv)
        sys.stdout.flush()
        sys.stderr.flush()
    return code


for name in WARM:
    import_module(COMMANDS[name][0])
import_module("muster.api.execution")
import_module("muster.controller.controller")
signal.signal(signal.SIGCHLD, report_ends)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.exit(run(json.loads(line)))
    os.write(1, f"started {child}\n".encode())
