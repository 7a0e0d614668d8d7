"""A Python on another host that runs Muster: over the user's own ssh, with nothing secret on a command line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import IO, Any, cast

from muster.engines.kubernetes.kubectl import explain_kubectl
from muster.engines.kubernetes.submitted import FirstPod, SubmittedJob
from muster.engines.ssh.engine import explain_ssh_failure, ssh_command
from muster.errors import HostError
from muster.jobs.remote_package import GREETING, STAGE, package
from muster.jobs.remote_place import RemotePlace
from muster.output.escapes import TerminalStream
from muster.text import printable

CONNECT_LIMIT = 20.0
"""Seconds for a host to answer: to connect, to log in and to start Python."""

_OPTIONS = (
    "-oConnectTimeout=8",
    "-oServerAliveInterval=5",  # a connection that is cut ends after 15 s
    "-oServerAliveCountMax=3",
    "-oForwardAgent=no",  # the controller must not depend on an agent of this machine
)

_STALLED = 20.0
"""Seconds in which a host must take some of what is sent to it."""

_PIECE = 1 << 15
"""Bytes that are written at a time."""

_LARGEST = 256 << 20
"""Bytes; a longer message does not come from Muster."""

_MOST_NOISE = 1 << 20
"""Bytes that a shell profile may print before the first message."""

_MOST_ERRORS = 1 << 16
"""Bytes of stderr that are kept to explain a failure."""


class RemotePython:
    """One connection: requests go out as frames, messages come back as lines; stderr is kept or passed on."""

    def __init__(self, place: RemotePlace, request: dict[str, Any]) -> None:
        self.place = place
        """With the digest of the package that runs there."""
        self.greeted = False
        """Whether Muster runs there; before that, errors are those of ssh."""
        self.shows_errors = False
        """Whether stderr is passed on as it comes."""
        self.mark = b""
        """What precedes the stderr of a command and, at its end, the exit code, if the request is a command."""
        self._out = b""
        self._errors = b""
        self._filter = TerminalStream()
        argv = _connection(place)
        pipe = subprocess.PIPE
        try:
            # A session of its own: Ctrl-C is for us, and we end it.
            self.process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
            )
        except FileNotFoundError:
            hint = "install the OpenSSH client" if place.submitted is None else "install kubectl"
            raise HostError(place.host.name, f"could not run {argv[0]}", hint=hint) from None
        self._open: list[IO[bytes]] = [stream for stream in (self.process.stdout, self.process.stderr) if stream]
        try:
            self._write(STAGE + _frame({"package": place.package, "request": request}))
        except HostError:
            self.close()
            raise

    def __enter__(self) -> RemotePython:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, message: dict[str, Any], data: bytes = b"") -> None:
        """Send a frame, and bytes after it."""
        self._write(_frame(message) + data)

    def receive(self, limit: float = CONNECT_LIMIT) -> dict[str, Any]:
        """The next message; HostError if none comes, or if it is an error. Sends the package if the host needs it."""
        deadline = time.monotonic() + limit
        while True:
            message = self._message()
            while message is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._silent(limit)
                if not self.read(left):
                    raise self.failure()
                message = self._message()
            self.greeted = True
            if message.get("error"):
                hint: Any = message.get("hint")
                raise HostError(
                    self.place.host.name, printable(str(message["error"])), hint=printable(str(hint)) if hint else None
                )
            if "need" not in message:
                return message
            digest, data = package()
            self.send({"package": digest, "size": len(data)}, data)
            deadline = time.monotonic() + limit

    def read(self, limit: float) -> bool:
        """Wait for output at most this long and keep it; False if it has closed its stdout."""
        for stream in select.select(self._open, [], [], limit)[0]:
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                self._open.remove(stream)
            elif stream is self.process.stdout:
                self._out += data
            else:
                self._keep_errors(data)
        if len(self._out) > (_LARGEST if self.greeted else _MOST_NOISE):
            raise HostError(self.place.host.name, "sent too much output before an answer")
        return self.process.stdout in self._open

    def show_errors(self) -> None:
        """Pass stderr on from now on, beginning with what has come already."""
        self.shows_errors = True
        sys.stderr.buffer.write(self._errors)
        sys.stderr.flush()

    def drain_errors(self, limit: float = 2.0) -> None:
        """Read the rest of stderr: its last lines can arrive after the last message."""
        deadline = time.monotonic() + limit
        while self.has_errors and (left := deadline - time.monotonic()) > 0:
            self.read(left)

    @property
    def has_errors(self) -> bool:
        """Whether more of its stderr may come."""
        return self.process.stderr in self._open

    def discard_errors(self, until: bytes, limit: float = CONNECT_LIMIT) -> None:
        """Discard stderr up to and including these bytes: what ssh and the login there have printed."""
        deadline = time.monotonic() + limit
        while until not in self._errors:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent(limit)
            if not self.has_errors:
                raise self.failure()
            self.read(left)
        self._errors = self._errors.partition(until)[2]

    def taken_output(self) -> bytes:
        """What it has printed since the last message."""
        data, self._out = self._out, b""
        return data

    def taken_errors(self) -> bytes:
        """What it has printed to stderr."""
        data, self._errors = self._errors, b""
        return data

    def end_of_input(self) -> None:
        """Close its stdin: a command there ends as after Ctrl-C."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """End the connection; what runs there sees the end of its input."""
        self.end_of_input()
        try:
            self.process.wait(0.2)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(2.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def failure(self) -> HostError:
        """Why the connection has ended."""
        try:
            code = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        while self.process.stderr in self._open and select.select([self.process.stderr], [], [], 0.2)[0]:
            self.read(0.0)
        host = self.place.host
        if self.greeted:
            last = self._errors.decode(errors="replace").strip().splitlines()[-1:]
            why = f": {printable(last[0])}" if last else ""
            return HostError(host.name, f"the connection to it broke{why}", hint="try again", kind="broken")
        text = self._errors.decode(errors="replace")
        if self.place.submitted is not None:
            error = explain_kubectl(text)
            return HostError(host.name, error.message, hint=error.hint)
        return explain_ssh_failure(host, code, text)

    def _silent(self, limit: float) -> HostError:
        submitted = self.place.submitted
        login = f"ssh {self.place.host.destination} true"
        if submitted is not None:
            login = f"kubectl exec {' '.join(submitted.where)} {self.place.host.name} -- true"
        hint = f"check that `{login}` works from here"
        return HostError(self.place.host.name, f"no answer within {limit:g} s", hint=hint, kind="dead")

    def _keep_errors(self, data: bytes) -> None:
        if self.shows_errors:
            sys.stderr.buffer.write(self._filter.feed(data) if sys.stderr.isatty() else data)
            sys.stderr.flush()
        self._errors = (self._errors + data)[-_MOST_ERRORS:]

    def _message(self) -> dict[str, Any] | None:
        _, mark, rest = self._out.partition(GREETING)
        if not mark or b"\n" not in rest:
            return None
        line, _, self._out = rest.partition(b"\n")
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise HostError(self.place.host.name, "sent an invalid message")
        return cast("dict[str, Any]", message)

    def _write(self, data: bytes) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        os.set_blocking(stdin.fileno(), False)
        rest = memoryview(data)
        try:
            while rest:
                if not select.select([], [stdin], [], _STALLED)[1]:
                    raise self._silent(_STALLED)
                rest = rest[os.write(stdin.fileno(), rest[:_PIECE]) :]
        except (BrokenPipeError, ValueError):
            pass  # it has ended; the next `receive` says why


def _connection(place: RemotePlace) -> tuple[str, ...]:
    """The command line that runs Python on the host of the controller."""
    if place.submitted is None:
        return ssh_command(place.host, python=place.python, ssh=(*place.ssh, *_OPTIONS)).argv
    pod = running_pod(place.submitted)
    return place.submitted.exec_argv(pod.name)


def running_pod(submitted: SubmittedJob) -> FirstPod:
    """The first pod of a job, or HostError if it does not run."""
    pod = submitted.first_pod()
    if pod is None:
        raise HostError(submitted.name, "has no first pod, yet or any more", hint=f"see `{_describe(submitted)}`")
    if pod.phase != "Running":
        why = f" ({pod.reason})" if pod.reason else ""
        what = "has not started yet" if pod.phase in ("Pending", "Unknown") else "has ended"
        raise HostError(pod.name, f"{what}{why}", hint=f"see `{_describe(submitted)}`")
    return pod


def _describe(submitted: SubmittedJob) -> str:
    return f"kubectl describe {' '.join(submitted.where)} {submitted.kind} {submitted.name}"


def _frame(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"%016x" % len(data) + data
