"""pbsdsh, after src/cmds/pbsdsh.c of OpenPBS; with Torque's -u, -h and other -o where the site is Torque."""

from __future__ import annotations

import getopt
import os
import selectors
import signal
import socket
import sys
import threading

from tm import Failed, RemoteTask, TaskManager
from wire import SITE, TORQUE

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
USAGE = """\
Usage: pbsdsh [-c copies][-s][-v][-o] -- program [args...]
       pbsdsh [-n node_index][-s][-v][-o] -- program [args...]
       pbsdsh --version
"""


class Fired(Exception):
    """A signal that is to be passed on to the tasks."""


class MomGone(Exception):
    """The mom of this host has died; the tasks run on."""


def usage() -> int:
    sys.stderr.write(USAGE)
    return 1


def main() -> int:
    try:
        # glibc's getopt looks for options among the program's arguments, too: hence the `--`.
        options, program = getopt.gnu_getopt(sys.argv[1:], "c:n:svouh:" if TORQUE else "c:n:svo")
        given = dict(options)
        copies, node = int(given.get("-c", -1)), int(given.get("-n", -1))
    except (getopt.GetoptError, ValueError):
        return usage()
    if not program or ("-c" in given and "-n" in given) or copies < -1 or node < -1:
        return usage()
    if "PBS_ENVIRONMENT" not in os.environ:
        print("pbsdsh: not executing under PBS", file=sys.stderr)
        return 1
    try:
        manager = TaskManager()
    except Failed as error:
        print(f"pbsdsh: tm_init failed, rc = {error} (17000)", file=sys.stderr)
        return 1
    return Run(manager, given, program).all(targets(manager.nodes, given, copies, node))


def targets(nodes: list[str], given: dict[str, str], copies: int, node: int) -> list[int]:
    """The nodefile lines to run on; an index beyond the last wraps around."""
    if "-h" in given:
        return [nodes.index(given["-h"])] if given["-h"] in nodes else []
    if "-u" in given:
        return [nodes.index(host) for host in dict.fromkeys(nodes)]
    if node >= 0:
        return [node % len(nodes)]
    return [number % len(nodes) for number in range(copies if copies >= 0 else len(nodes))]


class Run:
    """The tasks of one call."""

    def __init__(self, manager: TaskManager, given: dict[str, str], program: list[str]) -> None:
        self.manager = manager
        self.program = program
        self.verbose = "-v" in given
        self.one_by_one = "-s" in given
        self.waits = TORQUE or "-o" not in given
        self.capture = Capture() if TORQUE and "-o" in given else None
        self.tasks: dict[int, RemoteTask] = {}
        for number in ENDING:
            signal.signal(number, _fire)

    def all(self, lines: list[int]) -> int:
        """Start everything and wait; 0 whatever became of the tasks, 1 if a signal was passed on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            for index, line in enumerate(lines):
                self._spawn(index, line)
                if self.one_by_one:
                    self._wait()
            self._wait()
        except MomGone:
            return 2
        except Fired as fired:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            number = fired.args[0]
            for task in self.tasks.values():
                print(f"pbsdsh: killing task 0x{task.number:08X} signal {number}", flush=True)
                self.manager.signal(task, number)
            return 1
        if self.capture:
            self.capture.finish()
        return 0

    def _spawn(self, index: int, line: int) -> None:
        try:
            self.tasks[index] = self.manager.spawn(line, self.program, self.capture and self.capture.place)
        except (Failed, OSError):
            print("error 17000 on spawn", file=sys.stderr)
            return
        if self.capture:
            self.capture.accept()
        if self.verbose:
            print(f"pbsdsh: spawned task 0x{index:08X} on logical node {line} event {index + 1}", flush=True)

    def _wait(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.manager.mom, selectors.EVENT_READ)
        for index, task in self.tasks.items() if self.waits else ():
            selector.register(task.connection, selectors.EVENT_READ, index)
        left = len(self.tasks) if self.waits else 0
        while left:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            ready = selector.select()
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            if any(key.fileobj is self.manager.mom for key, _ in ready):
                raise MomGone
            for key, _ in ready:
                selector.unregister(key.fileobj)
                status = self.tasks[key.data].exit_status()
                if status is None:
                    continue  # its host has died; the end of the task is never reported, and we keep waiting
                left -= 1
                del self.tasks[key.data]
                if self.verbose or status != 0:
                    print(f"pbsdsh: task 0x{key.data:08X} exit status {status}", flush=True)


class Capture:
    """Torque's -o: the tasks' stdout comes to this process."""

    def __init__(self) -> None:
        self._listener = socket.create_server((SITE["hosts"][socket.gethostname()]["address"], 0))
        self._readers: list[threading.Thread] = []
        self.place: tuple[str, int] = self._listener.getsockname()

    def accept(self) -> None:
        """Read from a task that was started: its mom has connected before it answers."""
        connection, _ = self._listener.accept()
        reader = threading.Thread(target=self._copy, args=(connection,), daemon=True)
        reader.start()
        self._readers.append(reader)

    @staticmethod
    def _copy(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            os.write(1, data)

    def finish(self) -> None:
        for reader in self._readers:
            reader.join(1)


def _fire(number: int, _: object) -> None:
    raise Fired(number)


# At once, as a C program does: a task that left its session may keep a connection of Capture open.
os._exit(main())
