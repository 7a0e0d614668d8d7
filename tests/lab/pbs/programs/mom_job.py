"""A job on one host of it, as the mom there knows it; `FirstHostJob` also runs the script and ends the job."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import threading
import time

import records
from leftovers import forget, remember
from output import DELIVERED_LATER, Output
from schedule import schedule
from surroundings import clear, furnish, hosts, script_environment, task_environment
from tasks import Task, members, usage
from wire import HOME, SITE, call, dial

POLL = 0.05
KILL_DELAY: float = SITE["kill_delay"]
# Seen on a real OpenPBS with kill_delay 10: SIGKILL came 6 s after SIGTERM where the script had died of it, 9.2 s after
# where only its login shell had, 18 s after where neither had, and 10 s after where the walltime was over.
AFTER_DEATH = 0.6 * KILL_DELAY
AFTER_DEATH_OF_SHELL = 0.92 * KILL_DELAY
AFTER_DEFIANCE = 1.8 * KILL_DELAY
EXITING = 0.3 * KILL_DELAY
"""Seconds for which a job that was deleted stays in state E: 3 to 7 on a real OpenPBS."""
OVER_LIMIT = -29


class HostJob:
    """A job on a host that is not its first."""

    def __init__(self, record: records.Record, host: str) -> None:
        self.record = record
        self.host = host
        self.tasks: dict[int, Task] = {}
        self._numbers = iter(range(1, 1 << 29))
        self._node = hosts(record).index(host)
        self._lock = threading.Lock()
        furnish(record)

    def new_task(self, session: int = 0) -> Task:
        with self._lock:
            task = Task((self._node << 29 | next(self._numbers)) & 0xFFFFFFFF, session=session)
            self.tasks[task.number] = task
        return task

    def spawn(self, argv: list[str], line: int, capture: tuple[str, int] | None) -> Task:
        """Start a task: no shell, nothing of the script's environment, no stdin, output to the job's file."""
        task = self.new_task()
        streams = [self._stream("o", capture), self._stream("e", None)]
        env = task_environment(self.record, self.host, line, task.number)
        task.start(
            argv,
            env=env,
            cwd=SITE["home"],
            streams=(subprocess.DEVNULL, streams[0], streams[1]),
            lingers=self.lingers,
        )
        remember(task.session, self.record["id"])
        for stream in streams:
            os.close(stream)
        return task

    def _stream(self, stream: str, capture: tuple[str, int] | None) -> int:
        if capture is not None:
            return socket.create_connection(capture, timeout=5).detach()
        return self.open_output(stream)

    def open_output(self, stream: str) -> int:
        first = hosts(self.record)[0]
        connection = dial(first, do="demux", job=self.record["id"], stream=stream)
        return connection.detach()

    def lingers(self) -> bool:
        """Whether a session outlives its first process."""
        return False

    def attach(self, session: int) -> Task:
        """Take a session that someone else started into the job."""
        remember(session, self.record["id"])
        return self.new_task(session)

    def signal_all(self, number: int) -> None:
        """Send a signal to the sessions on this host, and only these."""
        for task in list(self.tasks.values()):
            task.signal(number)

    def usage(self) -> tuple[int, int]:
        """CPU seconds and bytes of memory of the sessions on this host."""
        return usage({task.session for task in list(self.tasks.values()) if task.session})

    def kill(self, limit: float = 2) -> None:
        """SIGKILL to all sessions of the job on this host."""
        deadline = time.monotonic() + limit
        tasks = list(self.tasks.values())
        for task in tasks:
            task.kill()
        for task in tasks:
            task.ended.wait(max(0.0, deadline - time.monotonic()))
            forget(task.session)

    def leave(self) -> None:
        """The job is over."""
        self.kill()
        clear(self.record)


class FirstHostJob(HostJob):
    """A job on its first host ("mother superior")."""

    def __init__(self, record: records.Record, host: str) -> None:
        super().__init__(record, host)
        self.output = Output(record)
        self._ending_since: float | None = None
        self._stopped_since: float | None = None
        self._began = time.monotonic()
        self._over_limit = False
        self._script_file = HOME / "mom_priv" / "jobs" / f"{record['id']}.SC"

    def open_output(self, stream: str) -> int:
        """On a job of one host tasks write straight to the file."""
        return super().open_output(stream) if len(hosts(self.record)) > 1 else self.output.open(stream)

    def lingers(self) -> bool:
        return self._ending_since is not None

    def run(self) -> None:
        """The whole life of the job."""
        if self.output.missing:
            comment = "job held, too many failed attempts to run"
            records.change(self.record["id"], state="H", comment=comment, exit_status=-3)
            self.leave()
            return
        self.output.refuse_direct_write()
        for sister in hosts(self.record)[1:]:
            try:
                call(sister, do="join", job=self.record["id"])
            except OSError as error:
                comment = f"job held, too many failed attempts to run: {sister}: {error}"
                records.change(self.record["id"], state="H", comment=comment)
                self.leave()
                return
        script = self._start_script()
        try:
            status = self._watch(script)
        finally:
            self._end_everywhere()
        if records.load(self.record["id"])["rerun"]:
            runs = self.record["runs"] + 1
            records.change(self.record["id"], state="Q", rerun=False, runs=runs, comment="Job requeued")
            schedule()
            return
        records.change(self.record["id"], state="F", exit_status=status, comment="Job run and finished")
        time.sleep(DELIVERED_LATER)
        self.output.deliver()
        records.change(self.record["id"], delivered=True)
        schedule()

    def _start_script(self) -> Task:
        """A login shell that reads the name of the script from its stdin, as mom starts it."""
        self._script_file.parent.mkdir(parents=True, exist_ok=True)
        self._script_file.write_text(self.record["script"])
        self._script_file.chmod(0o700)
        shell = self.record["shell"] or pwd.getpwuid(os.getuid()).pw_shell
        reading, writing = os.pipe()
        os.write(writing, f"{self._script_file}\n".encode())
        os.close(writing)
        out, err = self.output.open("o"), self.output.open("e")
        task = self.new_task()
        task.start(
            [f"-{os.path.basename(shell)}"],
            executable=shell,
            env=script_environment(self.record, shell),
            cwd=SITE["home"],
            streams=(reading, out, err),
            lingers=self.lingers,
        )
        remember(task.session, self.record["id"])
        for descriptor in (reading, out, err):
            os.close(descriptor)
        return task

    def _watch(self, script: Task) -> int:
        self._began = time.monotonic()
        while True:
            since = self._ending_since
            if since is None:
                if script.ended.wait(POLL) and self._ending_since is None:
                    status = script.exit_status or 0
                    if status >= 256:
                        time.sleep(1)  # tasks that got the same signal have a moment: mom is not that quick
                    return status
                used, limit = int(time.monotonic() - self._began), records.load(self.record["id"])["walltime"]
                if self._stopped_since is None and limit is not None and used > limit:
                    self.output.write("e", f"=>> PBS: job killed: walltime {used} exceeded limit {limit}\n")
                    self._over_limit = True
                    self.terminate()
                continue
            time.sleep(POLL)
            waited = time.monotonic() - since
            limit = KILL_DELAY if self._over_limit else AFTER_DEFIANCE
            if script.exit_status is not None:
                limit = min(limit, AFTER_DEATH_OF_SHELL if members(script.session) else AFTER_DEATH)
            if waited >= limit:
                self.kill()
                return OVER_LIMIT if self._over_limit else script.exit_status or 0

    def terminate(self) -> None:
        """SIGTERM to the sessions on this host, and only these; SIGKILL follows."""
        self._ending_since = self._ending_since or time.monotonic()
        self.signal_all(signal.SIGTERM)

    def suspend(self, number: int) -> None:
        """SIGSTOP or SIGCONT to the sessions on this host, then on the others; the walltime waits."""
        self.signal_all(number)
        for sister in hosts(self.record)[1:]:
            call(sister, do="suspend", job=self.record["id"], number=number)
        stopped = number == signal.SIGSTOP
        if stopped and self._stopped_since is None:
            self._stopped_since = time.monotonic()
        elif not stopped and self._stopped_since is not None:
            self._began += time.monotonic() - self._stopped_since
            self._stopped_since = None
        records.change(self.record["id"], state="S" if stopped else "R")

    def _end_everywhere(self) -> None:
        records.change(self.record["id"], state="E")
        self.kill()
        leaving = [
            threading.Thread(target=_tell_leave, args=(sister, self.record["id"]), daemon=True)
            for sister in hosts(self.record)[1:]
        ]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join(4)
        if self._ending_since is not None:
            time.sleep(EXITING)
        self.output.drain(2)
        clear(self.record)
        self._script_file.unlink(missing_ok=True)


def _tell_leave(sister: str, job: str) -> None:
    try:
        call(sister, 1.5, do="leave", job=job)
    except OSError:
        pass  # a dead host has left anyway
