"""Starts commands of tests from a process that has imported their modules: `import torch` is most of a rank's cost.

`WarmPython` imports modules once, in a server for all workers of xdist. `warm.shims(folder)` is a directory with a
`python3` for mpirun, srun, torchrun or a shell, or with a `muster`: it hands its arguments, environment, directory and
open files to the server through a socket in that folder. The server forks, and the copy enters the namespaces of
whoever called (so lab hosts that share the folder need no server of their own) and runs the command line. The shim
passes signals on and ends as the command ends; if it is killed, so is the command. Differences from the real commands:
parent, process group and command line; resource limits, priority, control group, locale and variables that Python reads
at its start are those of the server; modules are already imported; these and their open files are left as they are at
the end (taking torch apart costs 0.25 s of CPU time each time). So one test of each launcher uses a real Python, and
whatever is typed into a shell or gets signals is the real `muster`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHIM = """#!{python} -IS
import json, os, signal, socket, sys
argv = sys.argv[1:]
fresh = not argv or argv[0].startswith("-") and argv[0] not in ("-u", "-m", "-c")
if fresh and not sys.argv[0].endswith("/muster"):  # options that only a fresh interpreter understands
    os.execv("{python}", ["{python}", *argv])
def inherited(number):
    try:
        return os.get_inheritable(number)
    except OSError:  # that of the listing
        return False
files = [number for number in map(int, os.listdir("/proc/self/fd")) if inherited(number)]
os.umask(umask := os.umask(0))
request = dict(python=sys.argv[0], argv=argv, env=dict(os.environ), cwd=os.getcwd(), umask=umask, files=files,
               cpus=list(os.sched_getaffinity(0)))
body = json.dumps(request).encode()
server = socket.socket(socket.AF_UNIX)
os.chdir("{folder}")  # a socket's path may be too long
server.connect("socket")
socket.send_fds(server, [len(body).to_bytes(4, "big")], files)
server.sendall(body)
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    number = getattr(signal, "SIG" + name)
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
status = server.recv(4)
if not status:
    sys.exit("the warm Python has ended")
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

# What the recipes, torchrun and mp.spawn import of others, at once or later (an optimizer imports torch._dynamo).
FOR_TORCH = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.run", "torch._dynamo")
FOR_MUSTER = (
    "muster.api.execution",
    "muster.cli.run",
    "muster.cli.suspend",
    "muster.engines.kubernetes.job_engine",
    *(f"muster.engines.{name}.engine" for name in ("kubernetes", "local", "mpi", "pbs", "slurm", "ssh")),
    "muster.jobs.state",
)

NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mount, UTS, IPC, PID and network (linux/sched.h)."""
PR_SET_PDEATHSIG = 1
FIRST_FREE = 512
"""Above all numbers of files that launchers pass on."""

MUSTER = os.path.join(os.path.dirname(sys.executable), "muster")
Request = dict[str, Any]


class WarmPython:
    """A user of the server whose socket is in a folder; the first one starts it, and it ends with the last one."""

    modules = FOR_TORCH
    programs = ("python", "python3", "torchrun")

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._own = folder / folder.name
        folder.mkdir(exist_ok=True)
        with locked(folder):
            users = folder / "users"
            if not users.exists():
                os.mkfifo(users)
            self._user = os.open(users, os.O_RDWR)  # the server reads its end when nobody has it open any more
            if not (folder / "socket").exists():
                shutil.rmtree(self._own, ignore_errors=True)  # of a server that has ended
                argv = [sys.executable, __file__, str(folder), *self.modules]
                with users.open("rb") as stdin:
                    self._server = subprocess.Popen(
                        argv, env=env, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True
                    )
                assert self._server.stdout is not None
                with self._server.stdout as stdout:
                    assert stdout.readline() == b"ready\n", f"could not import {self.modules}; see stderr"

    def shims(self, folder: Path | None = None) -> Path:
        """A directory with the commands, perhaps in a folder on the same disk that lab hosts share."""
        place = folder / self._folder.name if folder else self._own
        with locked(self._folder):  # all workers may ask for the same one
            if not place.exists():
                self._write_shims(place)
        return place

    def _write_shims(self, place: Path) -> None:
        place.mkdir()
        (place / "socket").hardlink_to(self._folder / "socket")
        shim = SHIM.format(python=sys.executable, folder=place)
        torchrun = f'#!/bin/sh\nexec {place}/python3 -m torch.distributed.run "$@"\n'
        for name in self.programs:
            (place / name).write_text(torchrun if name == "torchrun" else shim)
            (place / name).chmod(0o755)

    def close(self) -> None:
        """Let the server end if nobody else uses it; commands that still run end with their shims."""
        os.close(self._user)


class WarmMuster(WarmPython):
    """The same for a `muster` that has imported what `muster run` needs."""

    modules = FOR_MUSTER
    programs = ("muster",)


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Nobody else starts or ends the server or writes shims meanwhile."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def serve(folder: str, modules: Sequence[str]) -> list[str]:
    """Import modules, then fork for each request; returns, in a copy, the command line that it must run."""
    for name in modules:
        importlib.import_module(name)
    os.chdir(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")  # after the imports, which may fail
    listener.listen(128)
    gc.collect()
    gc.freeze()  # a collection in a copy need not touch, and so copy, all this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            with locked(Path()):
                if select.select([sys.stdin], [], [], 0)[0]:  # and nobody has come since
                    os.unlink("socket")
                    os._exit(0)
            continue
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return supervise(connection)
        connection.close()


def supervise(connection: socket.socket) -> list[str]:
    """Start a command for a shim, pass its signals on and report the end; returns in the command's process only."""
    head, files, _, _ = socket.recv_fds(connection, 4, 64)
    request: Request = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
    peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.setns(os.pidfd_open(peer), NAMESPACES):
        raise OSError(ctypes.get_errno(), "setns")
    child = os.fork()
    if child == 0:
        connection.detach()  # else its destructor closes the command's file of the same number
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        take_over(request, files)
        return request["argv"]
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    while ended not in select.select([connection, ended], [], [])[0]:
        number = connection.recv(1)
        if not number:
            os.killpg(child, signal.SIGKILL)
            break
        os.kill(child, number[0])
    status = os.waitpid(child, 0)[1]
    try:
        connection.sendall(status.to_bytes(4, "big"))
    finally:
        os._exit(0)


def take_over(request: Request, files: list[int]) -> None:
    """Give this process the open files and surroundings of the shim, and nothing else of the server's."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_FREE) for file in files]
    os.closerange(0, FIRST_FREE)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    if os.path.basename(request["python"]) == "muster":
        request["argv"] = [MUSTER, *request["argv"]]
    else:
        sys.executable = request["python"]  # for the ranks that torchrun starts
        multiprocessing.set_executable(sys.executable)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cpus"])


def run(argv: list[str]) -> dict[str, Any]:
    """Run a command line as the interpreter would, and return the variables of the script."""
    sys.orig_argv[1:] = argv
    if argv[0] == MUSTER:
        sys.path[0], sys.argv = os.path.dirname(MUSTER), argv
        sys.exit(importlib.import_module("muster.cli").main())
    if argv[0] == "-u":
        argv = argv[1:]
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    if argv[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), argv[1:]
        sys.modules.pop(argv[1], None)  # preloaded; runpy warns about it
        return runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    if argv[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *argv[2:]]
        variables: dict[str, Any] = {"__name__": "__main__"}
        exec(argv[1], variables)
        return variables
    sys.path[0], sys.argv = os.path.dirname(os.path.abspath(argv[0])), argv
    return runpy.run_path(argv[0], run_name="__main__")


def leave(variables: dict[str, Any], codes: list[int]) -> None:
    """End as Python does after all exit handlers, if the exit code is known, but leave the modules as they are."""
    if codes:
        try:
            variables.clear()
            gc.collect()
            for stream in (sys.stdout, sys.stderr):
                if not getattr(stream, "closed", True):
                    stream.flush()
        finally:
            os._exit(codes[0])


if __name__ == "__main__":
    kept: dict[str, Any] = {}  # until the interpreter ends, as those of __main__ are
    code: list[int] = []
    atexit.register(leave, kept, code)  # before anybody else, so that it is the last handler
    try:
        kept.update(run(serve(sys.argv[1], sys.argv[2:])))
        code.append(0)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code.append(ended.code or 0)
