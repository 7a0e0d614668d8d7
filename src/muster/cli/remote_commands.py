"""Commands about a job whose controller is on another host: they run there, and this machine shows their output."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.errors import EXIT_MUSTER, HostError, MusterError
from muster.jobs.job_folders import OnlyJob, see_only, short_id
from muster.jobs.remote_place import RemotePlace, copy_command, read_place
from muster.jobs.remote_python import RemotePython, running_pod
from muster.jobs.remote_states import keep
from muster.output.escapes import TerminalStream
from muster.text import printable

_BETWEEN_STATES = 1.0
"""Seconds between two states of `muster top`."""

_SILENT = 10.0
"""Seconds without a state after which `muster top` connects again."""

_AFTER_CTRL_C = 10.0
"""Seconds for a command there to end after Ctrl-C."""

_FORWARD_LIMIT = 15.0
"""Seconds for the port of the dashboard to be forwarded."""

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d{1,5})/([\w-]{10,64})/\s")


def forward(name: str, argv: Sequence[str], folder: str) -> int:
    """Run a command about the job in this directory on the host of its controller; returns its exit code."""
    path = Path(folder)
    place = read_place(path)
    if place is None:
        raise MusterError(f"{path / 'remote.json'} was removed", hint="try again")
    if place.submitted is not None:
        from muster.cli.submitted_commands import without_pod

        code = without_pod(name, argv, path, place.submitted)
        if code is not None:
            return code
    if name == "top":
        return _top(argv, path, place)
    if name == "dashboard":
        return _dashboard(argv, path, place)
    with _command([name, *argv], path, place) as remote:
        code = _Output(remote).copy()
    if name == "show" and code == 0 and place.results:
        print(f"Results: on {place.host.name}, {copy_command(place)} copies them")
    return code


@contextmanager
def _command(argv: Sequence[str], folder: Path, place: RemotePlace) -> Generator[RemotePython]:
    """A command that runs there."""
    job = short_id(folder.name)
    mark = f"\x01{secrets.token_hex(16)} "
    request: dict[str, Any] = {
        "do": "command",
        "argv": list(argv),
        "job": folder.name,
        "shown": job,
        "env": _environment(),
        "size": [*shutil.get_terminal_size()] if _is_terminal() else None,
        "mark": mark,
    }
    with RemotePython(place, request) as remote:
        remote.mark = mark.encode()
        try:
            if remote.receive().get("marked"):
                remote.discard_errors(remote.mark)
            else:  # a job of an older Muster, whose commands do not mark where their stderr begins
                remote.taken_errors()
        except HostError as error:
            if remote.greeted and error.kind != "broken":
                raise
            raise HostError(
                place.host.name,
                f"could not reach the controller of job {folder.name} ({error.why})",
                hint=f"{error.hint or 'try again'}; the job keeps running meanwhile",
            ) from None
        yield remote


def _environment() -> dict[str, str]:
    """Environment variables with which a command there prints what it would print here."""
    given = {name: os.environ[name] for name in ("TERM", "NO_COLOR", "FORCE_COLOR") if name in os.environ}
    east = time.localtime().tm_gmtoff
    sign = "-" if east >= 0 else "+"  # POSIX counts to the west
    zone = (
        f"<UTC{'+' if east >= 0 else '-'}{abs(east) // 3600:02}>{sign}{abs(east) // 3600:02}:{abs(east) // 60 % 60:02}"
    )
    return {**given, "TZ": zone}


def _is_terminal() -> bool:
    """Whether a command there should print as to a terminal."""
    return sys.stdout.isatty() and sys.stderr.isatty()


class _Output:
    """The output of a command there, copied to ours; stderr is between two marks, the exit code after the second."""

    def __init__(self, remote: RemotePython) -> None:
        self._remote = remote
        self._errors = b""
        self._filters = {fd: TerminalStream() if os.isatty(fd) else None for fd in (1, 2)}

    def copy(self) -> int:
        """Copy until the command ends, and return its exit code; Ctrl-C ends it there."""
        remote = self._remote
        deadline = None
        size = shutil.get_terminal_size()
        while True:
            try:
                if _is_terminal() and size != (size := shutil.get_terminal_size()):
                    remote.send({"size": [*size]})
                is_open = remote.read(0.5)
                self._write(1, remote.taken_output())
                self._errors += remote.taken_errors()
                self._pass_errors_on()
                if not is_open and not remote.has_errors:
                    return self._exit_code()
                if deadline is not None and time.monotonic() > deadline:
                    return 130
            except KeyboardInterrupt:
                if deadline is not None:
                    return 130
                deadline = time.monotonic() + _AFTER_CTRL_C
                remote.end_of_input()

    def _pass_errors_on(self) -> None:
        """Copy stderr, except for what may be the mark."""
        at = self._errors.rfind(b"\x01")
        ready = self._errors if at < 0 or not self._may_be_mark(self._errors[at:]) else self._errors[:at]
        self._write(2, ready)
        self._errors = self._errors[len(ready) :]

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write output of the host; a terminal gets colors and progress bars, but no other escape sequences."""
        clean = self._filters[descriptor]
        data = data if clean is None else clean.feed(data)
        while data:
            data = data[os.write(descriptor, data) :]

    def _may_be_mark(self, data: bytes) -> bool:
        mark = self._remote.mark
        return data.startswith(mark) or mark.startswith(data)

    def _exit_code(self) -> int:
        found = re.fullmatch(re.escape(self._remote.mark) + rb"(\d{1,3})\n", self._errors)
        if found is not None:
            return int(found[1])
        self._write(2, self._errors)
        name = self._remote.place.host.name
        sys.stderr.write(f"muster: the connection to {name} broke. The job keeps running; type the command again\n")
        return EXIT_MUSTER


# --- top: drawn here, so that the keyboard and the size of the terminal are ours -----------------------------------


def _top(argv: Sequence[str], folder: Path, place: RemotePlace) -> int:
    from muster.cli import top

    see_only(OnlyJob(id=folder.name, shown=short_id(folder.name)))
    with _States(folder, place):
        return top.main(list(argv))


class _States:
    """Keeps the copy of a job's state up to date, in a thread, until the `with` block ends."""

    def __init__(self, folder: Path, place: RemotePlace) -> None:
        self._folder = folder
        self._place = place
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote-states", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        self._first.wait(_SILENT)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except (HostError, OSError):
                self._first.set()  # the copy has its age
            self._stop.wait(_BETWEEN_STATES)

    def _follow(self) -> None:
        request: dict[str, Any] = {"do": "states", "jobs": [self._folder.name], "every": _BETWEEN_STATES}
        with RemotePython(self._place, request) as remote:
            while not self._stop.is_set():
                keep(self._folder, remote.receive(_SILENT))
                self._first.set()


# --- dashboard: served there, behind a port of this machine ---------------------------------------------------------


def _dashboard(argv: Sequence[str], folder: Path, place: RemotePlace) -> int:
    from muster.cli.dashboard import parser
    from muster.dashboard.address import listen

    port: int = parser().parse_args(list(argv)).port
    with listen(port) as free:  # an error if the port is in use
        port = free.getsockname()[1]
    with _command(["dashboard", folder.name], folder, place) as remote:
        there, token = _address(remote)
        with _forwarded(place, port, there):
            sys.stderr.write(f"muster: dashboard of {folder.name} on {place.host.name}, Ctrl-C to stop it\n")
            print(f"http://127.0.0.1:{port}/{token}/", flush=True)
            return _Output(remote).copy()


def _address(remote: RemotePython) -> tuple[int, str]:
    """The port and the token of the dashboard that a command there has started."""
    deadline = time.monotonic() + _FORWARD_LIMIT
    printed = b""
    while (found := _ADDRESS.search(printed)) is None:
        if time.monotonic() > deadline or not remote.read(1.0):
            raise remote.failure()
        printed += remote.taken_output()
    remote.taken_errors()  # its own notes are for the user of that host
    return int(found[1]), found[2].decode()


@contextmanager
def _forwarded(place: RemotePlace, port: int, there: int) -> Generator[None]:
    """Forward a port of this machine to one of 127.0.0.1 on the host."""
    argv = _forward_argv(place, port, there)
    program = os.path.basename(argv[0])
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody reads would block it
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            deadline = time.monotonic() + _FORWARD_LIMIT
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    errors.seek(0)
                    said = errors.read(1 << 16).decode(errors="replace").strip().splitlines()[-1:]
                    why = f" ({printable(said[0])})" if said else ""
                    raise HostError(
                        place.host.name,
                        f"{program} could not forward port {port} to the dashboard there{why}",
                        hint="run `muster dashboard` on that host, if it forbids forwarding",
                    )
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _forward_argv(place: RemotePlace, port: int, there: int) -> tuple[str, ...]:
    """The command line that forwards a port, by ssh or kubectl."""
    if place.submitted is not None:
        return place.submitted.forward_argv(running_pod(place.submitted).name, port, there)
    options = ("-N", "-T", "-oBatchMode=yes", "-oConnectTimeout=8", "-oExitOnForwardFailure=yes", "-oControlMaster=no")
    alive = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3", "-oControlPath=none", "-oRemoteCommand=none")
    login = (*(("-p", str(place.host.port)) if place.host.port else ()), place.host.destination)
    return (*place.ssh, *options, *alive, f"-L127.0.0.1:{port}:127.0.0.1:{there}", *login)


def _answers(port: int) -> bool:
    with socket.socket() as peer:
        peer.settimeout(1.0)
        return peer.connect_ex(("127.0.0.1", port)) == 0
