"""What runs on the host of a controller that another machine has sent there: the start, and commands about its jobs."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, TimeoutExpired, run
from typing import Any, NoReturn

from muster.api.prepared import Prepared
from muster.cli.detach import Background, detached, ends_at_logout, loses_memory_at_logout
from muster.cli.remote_order import JobOrder, host_from_data, is_same, prepared_here
from muster.cli.remote_terminal import RemoteTerminal
from muster.controller.debug_log import internal_error
from muster.controller.source_code import RECEIVED
from muster.engines.local.engine import is_this_machine
from muster.engines.ssh.engine import explain_ssh_failure, login_argv
from muster.errors import EXIT_MUSTER, MusterError
from muster.hosts import Host
from muster.job import JOB_ID, job_folder, make_job_folder
from muster.jobs.job_folders import OnlyJob, fresh, read_job, see_only
from muster.jobs.remote_package import GREETING
from muster.jobs.remote_place import read_place, write_place

_LOGIN_LIMIT = 12.0
"""Seconds for the test of one login."""

_AT_ONCE = 32
"""Logins that are tested at a time."""


def main(request: dict[str, Any]) -> int:
    """Do what the other machine asks for, and return the exit code."""
    match request["do"]:
        case "states":
            return _states([str(job) for job in request["jobs"]], request.get("every"))
        case "command":
            return _command(request)
        case "start":
            return _start()
        case _:
            _send(error=f"unknown request {request['do']}")
            return EXIT_MUSTER


# --- messages ----------------------------------------------------------------------------------------------------


def _send(**message: Any) -> None:
    data = GREETING + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _take(size: int) -> bytes:
    """Bytes of stdin; ends this process if the other machine goes before they are complete."""
    parts = bytearray()
    while len(parts) < size:
        data = os.read(0, min(size - len(parts), 1 << 20))
        if not data:
            raise SystemExit(EXIT_MUSTER)
        parts += data
    return bytes(parts)


def _frame() -> Any:
    return json.loads(_take(int(_take(16), 16)))


# --- commands about jobs -----------------------------------------------------------------------------------------


def _states(jobs: Sequence[str], every: float | None) -> int:
    """Send the states of jobs, once or again and again."""
    if every is not None:
        _interrupt_at_end_of_input()
    try:
        while True:
            kept = {job: _kept(job) for job in jobs if JOB_ID.fullmatch(job)}
            _send(jobs=kept)
            if every is None:
                return 0
            time.sleep(max(0.2, float(every)))
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


def _kept(job_id: str) -> tuple[dict[str, Any] | None, str]:
    """The state of a job and whether it lives."""
    folder = job_folder(job_id)
    if not folder.is_dir():
        return None, "gone"
    job = fresh(read_job(folder))
    state = job.state.cut(since=float("inf"), stacks=False).as_data() if job.state is not None else None
    return state, job.life


def _command(request: dict[str, Any]) -> int:
    """Run a command about one job, as its user typed it on the other machine.

    Its stderr is between two marks, and its exit code follows the second.
    """
    from muster import cli

    see_only(OnlyJob(id=request["job"], shown=request["shown"]))
    os.environ.update(request["env"])
    os.environ.pop("SSH_CONNECTION", None)  # the user does not sit at the other end of it
    time.tzset()
    if not job_folder(request["job"]).is_dir():
        _send(
            error=f"job {request['job']} is not there: it never started, or its job directory was removed",
            hint="`muster ps` shows its last known state",
        )
        return EXIT_MUSTER
    _send(ready=True, marked=True)
    errors = os.dup(2)
    os.write(errors, request["mark"].encode())  # what precedes it comes from the login, not from the command
    terminal = RemoteTerminal(*request["size"]) if request["size"] else None
    _interrupt_at_end_of_input(terminal)
    code = cli.main([str(word) for word in request["argv"]])
    if terminal is not None:
        terminal.close()
    try:
        sys.stderr.flush()
        os.write(errors, f"{request['mark']}{code}\n".encode())
    except OSError:
        pass  # the other machine has gone
    os._exit(code)


def _interrupt_at_end_of_input(terminal: RemoteTerminal | None = None) -> None:
    """Act as after Ctrl-C when the other machine closes our stdin: its user pressed it, or the connection broke.

    What comes before that are the sizes of its terminal.
    """

    def watch() -> None:
        try:
            while True:
                size = _frame()["size"]
                if terminal is not None:
                    terminal.resize(*size)
        except SystemExit:
            pass
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)
        os._exit(130)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=watch, name="end-of-input", daemon=True).start()


# --- the start ---------------------------------------------------------------------------------------------------


def _start() -> int:
    """Check whether this host can run the controller, then start the job, all on request."""
    _send(ready=True)
    asked = _frame()
    own = host_from_data(asked["own"])
    hosts = [host for host in map(host_from_data, asked["hosts"]) if not is_same(host, own)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        problems = [problem for problem in pool.map(_login_problem, hosts) if problem is not None]
    _send(unreachable=problems, ends_at_logout=ends_at_logout(), loses_memory=loses_memory_at_logout())
    order = JobOrder.from_data(_frame())
    code = _take(order.code_size)
    try:
        return _run(order, code)
    except MusterError as error:
        _send(error=error.message, hint=error.hint)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        _send(error=f"could not write {error.filename or 'the job directory'} ({why})", hint="make room there")
    return EXIT_MUSTER


def _login_problem(host: Host) -> tuple[str, str] | None:
    """The name of a host to which this one cannot log in, and why."""
    if is_this_machine(host):
        return None
    try:
        argv = [*login_argv(host, connect_timeout=5), "exit 0"]
        done = run(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, timeout=_LOGIN_LIMIT)
    except TimeoutExpired:
        return host.name, f"no answer within {_LOGIN_LIMIT:g} s"
    except OSError as error:
        return host.name, f"could not run ssh ({error.strerror})"
    if done.returncode == 0:
        return None
    return host.name, explain_ssh_failure(host, done.returncode, done.stderr.decode(errors="replace")).why


def _run(order: JobOrder, code: bytes) -> int:
    """Run the job in a process of its own, and report its start or its end."""
    begin = time.time()
    folder = make_job_folder(order.job.id)
    place = read_place(folder)
    shared = place is not None and place.mark == order.mark
    if place is not None and shared:
        write_place(folder, replace(place, shared=True))
    job = order.job
    if job.spec.sync:
        job = replace(job, spec=replace(job.spec, cwd=_unpack(folder, code)))
    # The agent of this host inherits our environment; the others get these variables from us.
    os.environ.update(job.carried)
    prepared = prepared_here(order, job)
    _send(accepted=True, shared=shared, folder=str(folder), cwd=job.spec.cwd)

    is_started = False

    def report(**how: Any) -> None:
        _send(**how, jobs={job.id: _kept(job.id)})

    def announce(job_id: str) -> None:
        nonlocal is_started
        is_started = True
        report(started=True)

    exit_code = detached(lambda background: _in_background(prepared, begin, background), announce, orders=0)
    if not is_started:
        report(ended=exit_code)
    return exit_code


def _in_background(prepared: Prepared, begin: float, background: Background) -> NoReturn:
    """Run the job in the new process, which ends here: the frames below it belong to the connection."""
    from muster.cli import print_error
    from muster.cli.run import run as run_prepared

    try:
        code = run_prepared(prepared, begin, background)
    except MusterError as error:
        print_error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        print_error(MusterError(internal_error(error)))
        code = EXIT_MUSTER
    sys.exit(code)


def _unpack(folder: Path, code: bytes) -> str:
    """Unpack the working directory of the other machine, and keep its archive for the other hosts."""
    path = folder / RECEIVED
    archive = path.with_name(f"{RECEIVED}.tar.gz")
    archive.write_bytes(code)
    path.mkdir(mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(code)) as tar:
        # The archive is the user's own, as in agent/code_sync.py.
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extraction_filter = tarfile.fully_trusted_filter
        tar.extractall(path)
    return str(path)
