"""pbs_attach, after src/cmds/pbs_attach_sup.c of OpenPBS: makes a session part of a job, then runs a command."""

from __future__ import annotations

import getopt
import os
import socket
import sys

from wire import call

USAGE = """\
usage: pbs_attach [-j jobid] [-m port] -p pid
usage: pbs_attach [-j jobid] [-m port] [-P] [-s] cmd [arg1 ...]
"""


def attach(job: str | None, pid: int) -> None:
    try:
        answer = call(socket.gethostname(), do="attach", job=job, pid=pid)
    except OSError:
        answer = {"error": "TM_ENOTCONNECTED"}
    if answer.get("error") not in (None, "TM_ESESSION"):  # the latter: it is attached already
        print(f"pbs_attach: tm_attach: {answer['error']}", file=sys.stderr)
        sys.exit(1)


def main() -> int:
    try:
        options, command = getopt.getopt(sys.argv[1:], "j:m:p:Ph:cs")
    except getopt.GetoptError:
        options, command = [], []
    given = dict(options)
    if ("-p" in given) == bool(command) or ("-p" in given and "-s" in given):
        sys.stderr.write(USAGE)
        return 2
    if "-s" in given:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 2
        os.setsid()
    attach(given.get("-j"), int(given.get("-p", os.getpid())))
    if "-P" in given:
        attach(given.get("-j"), os.getppid())
    if not command:
        return 0
    os.environ["MPICH_PROCESS_GROUP"] = "no"
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(255)


sys.exit(main())
