"""pbs_mom: answers requests on one host, for as long as its stdin is open."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import records
from leftovers import end_leftovers
from mom_job import FirstHostJob, HostJob
from output import write_delivered
from schedule import schedule
from surroundings import lines, write_nodefile
from wire import HOME, PORT, SITE, TORQUE

NAME = sys.argv[1] if len(sys.argv) > 1 else ""
JOBS: dict[str, HostJob] = {}
CONF = Path("/etc/pbs.conf")
PROFILE = Path("/etc/profile.d/pbs.sh")


class Refused(Exception):
    """A request that mom rejects, with the name of the error."""


class Connection(socketserver.StreamRequestHandler):
    """One request of a program or of another mom."""

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        request = json.loads(line)
        do = request.pop("do")
        try:
            if do == "demux":
                _demux(self.rfile, **request)
            elif do == "watch":
                self.rfile.read()
            elif do == "spawn":
                self._spawn(**request)
            else:
                self._answer(REQUESTS[do](**request) or {})
        except Refused as error:
            self._answer({"error": str(error)})
        except OSError:
            pass  # the requester is gone; tasks keep running

    def _answer(self, answer: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _spawn(self, job: str, cookie: str, line: int, argv: list[str], capture: tuple[str, int] | None) -> None:
        task = _job(job, cookie).spawn(argv, line, capture)
        self._answer({"task": task.number})
        task.ended.wait()
        self._answer({"exit": task.exit_status})


class Server(socketserver.ThreadingTCPServer):
    """Listens on this host; every request has a thread."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


def _job(job: str, cookie: str | None = None) -> HostJob:
    if job not in JOBS or cookie not in (None, JOBS[job].record["cookie"]):
        raise Refused("TM_ESYSTEM")
    return JOBS[job]


def _first(job: str) -> FirstHostJob:
    found = _job(job)
    assert isinstance(found, FirstHostJob)
    return found


def _demux(source: BufferedIOBase, job: str, stream: str) -> None:
    _first(job).output.copy_from(source, stream)


def _start(job: str) -> None:
    here = FirstHostJob(records.load(job), NAME)
    JOBS[job] = here

    def live() -> None:
        here.run()
        if JOBS[job] is here:  # it may have been run again at once
            del JOBS[job]

    threading.Thread(target=live, daemon=True).start()


def _join(job: str) -> None:
    JOBS[job] = HostJob(records.load(job), NAME)


def _leave(job: str) -> None:
    if job in JOBS:
        JOBS.pop(job).leave()


def _update(job: str) -> None:
    """The job has fewer hosts from now on (pbs_release_nodes)."""
    here = _job(job)
    here.record = records.load(job)
    write_nodefile(here.record)


def _nodes(job: str, cookie: str) -> dict[str, Any]:
    """tm_init and tm_nodeinfo."""
    return {"nodes": [host for host, _ in lines(_job(job, cookie).record)]}


def _signal(job: str, cookie: str, task: int, number: int) -> None:
    """tm_kill."""
    found = _job(job, cookie).tasks.get(task)
    if found is not None:
        found.signal(number)


def _attach(job: str | None, pid: int) -> dict[str, Any]:
    """tm_attach: the session of a process joins the job, or the only job there is."""
    if job is None and len(JOBS) == 1:
        (job,) = JOBS
    if job is None or job not in JOBS:
        raise Refused("TM_ENOTFOUND")
    try:
        session = os.getsid(pid)
    except ProcessLookupError:
        raise Refused("TM_ENOPROC") from None
    if any(task.session == session for here in JOBS.values() for task in here.tasks.values()):
        raise Refused("TM_ESESSION")
    return {"task": JOBS[job].attach(session).number}


def _terminate(job: str) -> None:
    _first(job).terminate()


def _signal_all(job: str, number: int) -> None:
    _first(job).signal_all(number)


def _suspend(job: str, number: int) -> None:
    here = _job(job)
    (here.suspend if isinstance(here, FirstHostJob) else here.signal_all)(number)


def _usage(job: str) -> dict[str, Any]:
    cpu, memory = _job(job).usage()
    return {"cpu": cpu, "memory": memory}


def _schedule() -> None:
    threading.Thread(target=schedule, daemon=True).start()


REQUESTS: dict[str, Callable[..., dict[str, Any] | None]] = {
    "start": _start,
    "join": _join,
    "leave": _leave,
    "update": _update,
    "nodes": _nodes,
    "signal": _signal,
    "attach": _attach,
    "schedule": _schedule,
    "terminate": _terminate,
    "signal_all": _signal_all,
    "suspend": _suspend,
    "usage": _usage,
    "deliver": write_delivered,
}


def _furnish() -> None:
    """What an installed PBS leaves on a host."""
    HOME.mkdir(parents=True, exist_ok=True)
    programs = Path(SITE["exec"]) / "bin"
    PROFILE.write_text(f"PATH={programs}:$PATH\n")
    if TORQUE:
        (HOME / "server_name").write_text(f"{SITE['server']}\n")
    else:
        CONF.write_text(f"PBS_SERVER={SITE['server']}\nPBS_EXEC={SITE['exec']}\nPBS_HOME={HOME}\nPBS_START_MOM=1\n")


def main() -> None:
    _furnish()
    requeued = end_leftovers(NAME)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # in scripts and tasks too
    with Server(("", PORT), Connection) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print("ready", flush=True)
        if requeued:
            _schedule()
        sys.stdin.buffer.read()
    for job in list(JOBS.values()):
        job.kill()
    CONF.unlink(missing_ok=True)
    PROFILE.unlink(missing_ok=True)
    os._exit(0)  # no thread has anything left to do


main()
