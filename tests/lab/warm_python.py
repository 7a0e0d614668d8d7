"""Starts commands of tests from a process that has imported their modules: `import torch` is most of a rank's cost.

`WarmPython` imports modules once, in a server for all workers of xdist. `warm.shims(folder)` is a directory with a
`python3` for mpirun, srun, torchrun or a shell, or with a `muster`: it hands its arguments, environment, directory and
open files to the server through a socket in that folder. The server forks, and the copy enters the namespaces of
whoever called (so lab hosts that share the folder need no server of their own) and runs the command line. The shim
passes signals on and ends as the command ends; if it is killed, so is the command. Differences from the real commands:
parent, process group, command line and environment in /proc; resource limits, priority, control group, ignored signals,
locale and variables that Python reads at its start are those of the server; modules are already imported; these and
their open files are left as they are at the end (taking torch apart costs 0.25 s of CPU time each time). So one test of
each launcher uses a real Python, and whatever is typed into a shell or gets signals is the real `muster`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import marshal
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
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Avoids `json`, `signal` and `socket`, because importing them takes twice as long as the rest.
SHIM = """#!{python} -IS
import _signal, _socket, marshal, os, sys
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
os.write(body := os.memfd_create("request"), marshal.dumps(request))
numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in (body, *files))
server = _socket.socket(_socket.AF_UNIX)
os.chdir("{folder}")  # a socket's path may be too long
server.connect("socket")
server.sendmsg([b"-"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
def pass_on(number, _):
    try:
        server.send(bytes([number]))
    except OSError:
        pass  # the command has ended
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    number = getattr(_signal, "SIG" + name)
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, pass_on)
status = server.recv(4)
if not status:
    sys.exit("the warm Python has ended, or could not start this; see its stderr")
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
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

LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000
"""Mount, UTS, IPC and network (linux/sched.h)."""
PID_NAMESPACE = 0x20000000
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


@dataclass
class Command:
    """What the server has started for a shim."""

    process: int
    shim: socket.socket | None

    def pass_signal_on(self) -> None:
        """Send it the signal that its shim has got; if the shim was killed, kill it and what it has started."""
        assert self.shim is not None
        try:
            number = self.shim.recv(1)
        except OSError:
            number = b""
        if number:
            with suppress(OSError):  # not a signal, or not a process of this user any more
                os.kill(self.process, number[0])
        else:
            try:
                os.killpg(self.process, signal.SIGKILL)
            except ProcessLookupError:  # it does not lead a group yet
                os.kill(self.process, signal.SIGKILL)
            self._close()

    def report_end(self) -> None:
        """Send its exit status to the shim, which ends in the same way."""
        status = os.waitpid(self.process, 0)[1]
        if self.shim is not None:
            with suppress(OSError):
                self.shim.sendall(status.to_bytes(4, "big"))
            self._close()

    def _close(self) -> None:
        assert self.shim is not None
        self.shim.close()
        self.shim = None


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
    print("ready", flush=True)
    commands: dict[int, Command] = {}  # keyed by pidfd, readable once the process exits
    silent: list[socket.socket] = []  # shims that have not sent a request yet
    while True:
        shims = [command.shim for command in commands.values() if command.shim is not None]
        users = [] if commands else [sys.stdin]
        ready = select.select([listener, *users, *silent, *shims, *commands], [], [])[0]
        for ended, command in list(commands.items()):
            if ended in ready:
                command.report_end()
                os.close(ended)
                del commands[ended]
            elif command.shim in ready:
                command.pass_signal_on()
        for shim in [shim for shim in silent if shim in ready]:
            silent.remove(shim)
            try:
                process, argv = start(shim)
            except OSError as error:  # the shim was killed, for example
                print(f"the warm Python could not start a command: {error}", file=sys.stderr)
                shim.close()
                continue
            if process == 0:
                for inherited in (listener, shim, *silent, *(command.shim for command in commands.values())):
                    if inherited is not None:
                        inherited.detach()  # else its destructor closes the command's file of the same number
                return argv
            commands[os.pidfd_open(process)] = Command(process, shim)
        if listener in ready:
            silent.append(listener.accept()[0])
        elif sys.stdin in ready and not commands:
            with locked(Path()):
                if select.select([sys.stdin], [], [], 0)[0]:  # and nobody has come since
                    os.unlink("socket")
                    os._exit(0)


def start(shim: socket.socket) -> tuple[int, list[str]]:
    """Fork a process as a shim requests, in its namespaces; returns the process, which is 0 in itself, and its argv."""
    message, files, _, _ = socket.recv_fds(shim, 1, 64)
    if not message:
        raise ConnectionResetError("the shim has ended")
    argv: list[str] = []
    with ExitStack() as received:
        for file in files:
            received.callback(os.close, file)
        caller = struct.unpack("3i", shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        received.callback(os.close, peer := os.pidfd_open(caller))
        enter(peer, PID_NAMESPACE)  # of the next process, not of this one
        process = os.fork()
        if process == 0:
            received.pop_all()
            try:
                enter(peer, NAMESPACES)
                os.setsid()
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                argv = take_over(files)
            except Exception:
                try:
                    traceback.print_exc()
                finally:
                    os._exit(1)
    return process, argv


def enter(process: int, namespaces: int) -> None:
    """Join namespaces of a process, of which this is a descriptor; only root has others."""
    if os.geteuid() == 0 and LIBC.setns(process, namespaces):
        raise OSError(ctypes.get_errno(), "setns")


def take_over(files: list[int]) -> list[str]:
    """Give this process the open files and surroundings of the shim, nothing else of the server's; returns its argv."""
    with open(files[0], "rb") as body:
        body.seek(0)
        request: Request = marshal.load(body)
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_FREE) for file in files[1:]]
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
    return request["argv"]


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
            # torch has unloaded its operators by now, which takes 35 ms, in which gloo's threads can end. Without that
            # pause, 9 of 25 DDP trainings hung here (torch 2.13, 20 Nov 2026): a model's destructor waits for them.
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
