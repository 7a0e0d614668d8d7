"""pbs_tmrsh, after src/cmds/pbs_tmrsh.c of OpenPBS: one task on a host, whose exit status it returns."""

from __future__ import annotations

import os
import signal
import socket
import sys

from tm import Failed, TaskManager


def complain(message: str) -> int:
    print(f"pbs_tmrsh: {message}", file=sys.stderr)
    return 255


def read_command(arguments: list[str]) -> tuple[str, list[str]] | None:
    """Host and command; `-n` and `-l user` may stand before and behind the host, and mean nothing."""
    host = ""
    rest = list(arguments)
    while rest and (rest[0].startswith("-") or not host):
        word = rest.pop(0)
        if word == "-l":
            rest = rest[1:]
        elif not word.startswith("-"):
            host = word
        elif word != "-n" and not word.startswith("-l"):
            return None
    return (host, rest) if rest else None


def line_of(host: str, nodefile: str) -> int | None:
    """The first line of the nodefile that names this host, or has this address."""
    with open(nodefile) as file:
        for index, line in enumerate(file):
            if host in (line.strip(), socket.gethostbyname(line.strip())):
                return index
    return None


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = read_command(sys.argv[1:])
    if command is None:
        print("usage: pbs_tmrsh [-n][-l username] host [-n][-l username] command", file=sys.stderr)
        return 255
    host, program = command
    if "PBS_ENVIRONMENT" not in os.environ:
        return complain("not executing under PBS")
    try:
        manager = TaskManager()
    except Failed as error:
        return complain(f"tm_init: {error}")
    nodefile = os.environ.get("PBS_NODEFILE")
    if nodefile is None:
        return complain("cannot find PBS_NODEFILE")
    line = line_of(host, nodefile)
    if line is None:
        return complain(f'host "{host}" is not a node in job <{os.environ["PBS_JOBID"]}>')
    try:
        task = manager.spawn(line, program)
    except Failed as error:
        return complain(f'tm_poll(spawn): host "{host}" err {error} 17000')
    status = task.exit_status()
    while status is None:  # its host has died, of which PBS hears nothing
        signal.pause()
    return status & 0xFF


sys.exit(main())
