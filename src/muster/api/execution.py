"""Runs a prepared job with its screen output, its log files and, with --dashboard, its dashboard."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from muster.api.prepared import Prepared
from muster.controller.controller import Controller
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.links.link import AgentLink
from muster.controller.startup_check import Check
from muster.job import Job, make_job_folder
from muster.output.log_files import LogFiles
from muster.output.screen import Screen
from muster.text import tilde

Result = TypeVar("Result")


def in_foreground(
    controller: Controller, on_started: Callable[[], None] | None = None, *, stdin: bool = False
) -> Verdict:
    """Run a controller in this process and let it handle the process's signals.

    `on_started` is called when all ranks have started. With `stdin`, the ranks can read this process's stdin.
    """

    async def main() -> Verdict:
        if stdin:
            controller.agents.give_stdin()
        controller.status.on_started = on_started
        controller.listen_to_signals()
        return await controller.run()

    return asyncio.run(main())


def execute(
    prepared: Prepared,
    drive: Callable[[Controller], Result],
    *,
    screen: Screen | None = None,
    begin: float | None = None,
    summary: bool = True,
) -> Result:
    """Run the job to its end and return the result of `drive`, which runs its controller.

    `begin` is the time at which the user started the command. Without `summary` the screen does not show how the job
    ended.
    """
    job = prepared.job
    screen = screen or Screen(quiet=job.spec.quiet)
    logs = LogFiles(screen.warning)
    try:
        folder = make_job_folder(job.id)
        if prepared.launch.requeue is not None:
            from muster.jobs.requeue_marks import leave_mark  # most jobs are not requeued

            leave_mark(folder, prepared.launch.requeue.mark, prepared.launch.requeue.count or 0)
        if prepared.command is not None:
            prepared.command.write(folder)
        for sentence in prepared.notes:
            screen.info(sentence)
        for sentence in prepared.warnings:
            screen.warning(sentence)
        controller = Controller(
            job,
            launch=prepared.launch,
            folder=folder,
            screen=screen,
            logs=logs,
            begin=begin or time.time(),
            check=_check(prepared, screen) if job.spec.check else None,
            summary=summary,
        )
        if job.first_attempt:
            from muster.jobs.job_folders import read_job

            earlier = read_job(folder).state
            if earlier is not None:
                controller.status.take_over(earlier)
        last_line = _show_dashboard(controller) if job.spec.dashboard else ""
        result = drive(controller)
        if last_line:
            screen.info(last_line)
    finally:
        logs.close()
        screen.close()
    controller.requeue.carry_out()
    return result


def _show_dashboard(controller: Controller) -> str:
    """Start the process that serves the dashboard; returns the line to print about it at the end of the job."""
    from muster.dashboard.dashboard_process import LINGER, start

    try:
        address = start(controller.folder, controller.job.spec.dashboard_port)
    except OSError as error:
        why = error.strerror or error
        controller.screen.warning(f"could not start the dashboard ({why}); the job continues without it")
        return ""
    if _others_can_read(2):
        controller.screen.notice(f"dashboard: its address is in {_keep_address(controller.folder, address)}")
        address = "of this job"
    else:
        controller.screen.notice(f"dashboard: {address}")
    return (
        f"the dashboard {address} stops {LINGER / 60:.0f} minutes after its last reader leaves; "
        f"`muster dashboard {controller.job.id}` starts it again"
    )


def _others_can_read(descriptor: int) -> bool:
    """Whether this is a file that other users can read, such as the output of a batch job."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False  # closed
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o044)


def _keep_address(folder: Path, address: str) -> str:
    """Write the address with its secret token into the job directory; returns the path to print."""
    path = folder / "dashboard-address"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{address}\n")
    return tilde(path)


def _check(prepared: Prepared, screen: Screen) -> Check:
    """Return the quick check of the hosts; its modules load in a thread while the first requests are under way."""

    def load() -> Check:
        from muster.check.beforehand import Beforehand

        return Beforehand(prepared.launch, screen).look

    async def look(job: Job, links: Sequence[AgentLink]) -> None:
        await (await asyncio.to_thread(load))(job, links)

    return look
