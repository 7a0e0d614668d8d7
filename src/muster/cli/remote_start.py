"""`muster run --detach` from a machine that is not one of the hosts: the controller runs on a host, so this may go."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.api.prepared import Prepared
from muster.cli.detach import how_to_follow
from muster.cli.remote_order import JobOrder, is_same
from muster.controller.source_code import archive
from muster.engines.local.engine import is_this_machine
from muster.engines.table import detect
from muster.errors import EXIT_MUSTER, HostError, MusterError, UsageError
from muster.hosts import Host, parse_hosts
from muster.job import make_job_folder
from muster.jobs.job_folders import short_id
from muster.jobs.remote_package import package
from muster.jobs.remote_place import RemotePlace, copy_command, read_place, write_place
from muster.jobs.remote_python import RemotePython
from muster.jobs.remote_states import forget, keep
from muster.spec import RunSpec
from muster.text import names, printable

LOCAL = "local"
"""The value of --controller for this machine."""

_FATAL = ("unknown-name", "changed-key", "unknown-key", "denied", "closed")
"""Failures of ssh that end the job as well; the controller on this machine reports them."""

_CHECK_LIMIT = 60.0
"""Seconds for the host to test its logins to all others."""

_START_LIMIT = 3600.0
"""Seconds for a job to start; its own limits end it long before."""

_STOP_LIMIT = 60.0
"""Seconds for a job to end after Ctrl-C during its start."""


def start_remotely(spec: RunSpec, prepare: Callable[[], Prepared], *, is_typed: bool) -> int | None:
    """Start a job whose controller runs on one of its hosts; None if it must run on this machine.

    With `is_typed`, the user typed --controller, so this is an error.
    """
    if spec.controller == LOCAL:
        return None
    prepared = prepare()
    own = _controller_host(prepared, is_typed=is_typed)
    if own is None:
        return None
    if prepared.job.spec.keep:  # as a default of muster.toml; its agents belong to a controller on another machine
        prepared = replace(prepared, job=replace(prepared.job, spec=replace(prepared.job.spec, keep=0.0)))
    start = _Start(prepared, own)
    try:
        return start.run()
    except HostError as error:
        if start.sent:
            raise
        unfit = _Unfit(error.message, error.hint or "`--controller local` runs it here")
        is_fatal = error.kind in _FATAL and not (spec.spares or spec.min_hosts)
    except _Unfit as error:
        unfit, is_fatal = error, False
    if is_typed:
        raise MusterError(f"--controller {spec.controller}: {unfit.why.removeprefix(f'{own.name}: ')}", hint=unfit.hint)
    if not is_fatal:
        sys.stderr.write(
            f"muster: the controller stays on this machine because {printable(unfit.why)}. "
            f"The job ends if this machine sleeps or goes offline. Fix: {unfit.hint}\n"
        )
    return None


def _controller_host(prepared: Prepared, *, is_typed: bool) -> Host | None:
    """The host that the controller should run on; None for this machine."""
    spec, choice = prepared.job.spec, prepared.choice
    why = ""
    if spec.lab:
        why = "the hosts of --lab live on this machine"
    elif choice.engine.name != "ssh":
        why = f"--engine {choice.engine.name} starts the job from this machine"
    elif detect(os.environ) is not None:
        why = "this machine is part of a scheduler's job"
    elif any(map(is_this_machine, choice.hosts)):
        why = "this machine is one of the hosts"
    if why:
        if is_typed:
            raise UsageError(f"--controller {spec.controller}: {why}", hint="leave --controller out")
        return None
    if not spec.controller:
        return choice.hosts[0]
    found = parse_hosts(spec.controller, source="--controller")
    if len(found) != 1 or found[0].slots is not None:
        raise UsageError(
            f"--controller {spec.controller}: must be one host or `local`",
            hint=f"try `--controller {choice.hosts[0].name}`",
        )
    named = next((host for host in choice.hosts if is_same(host, found[0]) or host.name == found[0].name), found[0])
    return None if is_this_machine(named) else named


class _Unfit(Exception):
    """The host can be reached, but it cannot run the controller."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint
        """What to type, or what to check."""


class _Start:
    """The start of one job on another host."""

    def __init__(self, prepared: Prepared, own: Host) -> None:
        self.prepared = prepared
        self.own = replace(own, slots=None, gpus=None, tasks=None)
        self.sent = False
        """Whether the job may have begun."""
        self.loses_memory = False
        """Whether the host removes the shared memory of users who log out."""
        spec = prepared.job.spec
        self.place = RemotePlace(
            host=self.own,
            ssh=spec.ssh,
            # In a container, --python is a path inside its image.
            python=None if spec.image else spec.python_on(own),
            package=package()[0],
            mark=secrets.token_hex(16),
        )

    def run(self) -> int:
        """Start the job and return the exit code of the command."""
        spec = self.prepared.job.spec
        code = archive(spec.cwd) if spec.sync else b""
        if not spec.quiet:
            sys.stderr.write(f"muster: starting the controller on {self.own.name}\n")
        with RemotePython(self.place, {"do": "start"}) as remote:
            remote.receive()
            self._check(remote)
            return self._send(remote, code)

    def _check(self, remote: RemotePython) -> None:
        """Raise _Unfit if the controller's host cannot log in to all others, or would not keep the controller."""
        hosts = [vars(replace(host, slots=None, gpus=None)) for host in self.prepared.job.hosts]
        remote.send({"own": vars(self.own), "hosts": hosts})
        answer = remote.receive(_CHECK_LIMIT)
        problems: list[Any] = list(answer.get("unreachable", ()))
        if problems:
            said = [(printable(str(name)), printable(str(why))) for name, why in problems]
            every = ",".join(dict.fromkeys(host.destination for host in (self.own, *self.prepared.job.hosts)))
            raise _Unfit(
                f"{self.own.name} cannot log in to {names([name for name, _ in said], 6)} ({said[0][0]}: {said[0][1]})",
                f"`muster setup ssh --between -H {every}`",
            )
        self.loses_memory = bool(answer.get("loses_memory"))
        if answer.get("ends_at_logout"):
            raise _Unfit(
                f"{self.own.name} ends the processes of users who log out",
                f"`ssh {self.own.destination} loginctl enable-linger`",
            )

    def _send(self, remote: RemotePython, code: bytes) -> int:
        job, notes = self.prepared.job, list(self.prepared.notes)
        spec = replace(job.spec, ssh=("ssh",), dashboard=False, notify=self._ways(notes))
        order = JobOrder(
            job=replace(job, spec=spec),
            own=self.own,
            notes=tuple(notes),
            mark=self.place.mark,
            code_size=len(code),
        )
        # Written before the order is sent: whatever happens then, this machine knows where to look for the job.
        folder = make_job_folder(job.id)
        if self.prepared.command is not None:
            self.prepared.command.write(folder)
        write_place(folder, self.place)
        self.sent = True
        remote.send(order.as_data(), code)
        accepted = self._accepted(remote, folder)
        there = f"{self.own.destination}:{printable(str(accepted.get('cwd')))}"
        results = tuple(f"{there}/{pattern}" for pattern in job.spec.fetch)
        self.place = replace(read_place(folder) or self.place, results=results, shared=accepted.get("shared") is True)
        write_place(folder, self.place)
        remote.show_errors()
        answer = self._wait(remote)
        remote.drain_errors()
        keep(folder, answer)
        place = read_place(folder)
        if place is not None and place.shared:
            write_place(folder, replace(place, confirmed=True))
        if "started" not in answer:
            ended: Any = answer.get("ended")
            return ended if isinstance(ended, int) else EXIT_MUSTER
        self._print_how_to_follow()
        return 0

    def _accepted(self, remote: RemotePython, folder: Path) -> dict[str, Any]:
        """The answer of a host that has received the job; one that refuses it leaves no job behind."""
        try:
            return remote.receive(_CHECK_LIMIT)
        except HostError as error:
            if error.kind not in ("broken", "dead"):
                forget(folder)
            raise

    def _ways(self, notes: list[str]) -> tuple[str, ...]:
        """The values of --notify that work on another host."""
        ways = self.prepared.job.spec.notify
        if "desktop" in ways:
            notes.append(f"--notify desktop has no effect: the controller is on {self.own.name}, not on this desktop")
        return tuple(way for way in ways if way != "desktop")

    def _wait(self, remote: RemotePython) -> dict[str, Any]:
        """The message that the job has started, or has ended before; Ctrl-C stops it."""
        job = short_id(self.prepared.job.id)
        try:
            return remote.receive(_START_LIMIT)
        except KeyboardInterrupt:
            remote.send({"stop": True})
            return {**remote.receive(_STOP_LIMIT), "ended": 130}
        except HostError as error:
            if error.kind != "broken":
                raise
            raise HostError(
                self.own.name,
                "the connection broke while the job was starting; the job either runs there or was never started",
                hint=f"`muster ps` shows whether it runs, `muster stop {job}` stops it",
            ) from None

    def _print_how_to_follow(self) -> None:
        spec, job_id = self.prepared.job.spec, self.prepared.job.id
        job, name = short_id(job_id), self.own.name
        print(job_id, flush=True)
        lines = [
            f"job {job_id} is running in the background. Its controller is on {name}, so this machine may sleep or "
            f"disconnect. {how_to_follow(job)}"
        ]
        if (spec.spares or spec.min_hosts) and any(is_same(host, self.own) for host in self.prepared.job.hosts):
            lines.append(
                f"the job ends if {name} is lost, because its controller runs there; "
                "`--controller HOST` with a host that runs no ranks avoids this"
            )
        if self.loses_memory:
            lines.append(
                f"systemd on {name} removes shared memory of users who log out (RemoveIPC); "
                f"`ssh {self.own.destination} loginctl enable-linger` keeps that of the job"
            )
        if spec.dashboard:
            lines.append(f"`muster dashboard {job}` shows the dashboard")
        if spec.fetch:
            lines.append(f"--fetch copies results to {name}; copy them from there with {copy_command(self.place)}")
        sys.stderr.writelines(f"muster: {line}\n" for line in lines)
