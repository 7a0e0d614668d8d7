"""From the options of `muster run` to a job, its engine and its screen: what `muster.launch` shares with it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from muster.cli.options import make_means, places
from muster.cli.torchrun import explain, refuse
from muster.engines.build import build
from muster.engines.choice import Choice
from muster.engines.engine import Engine
from muster.environment import carried, of_whole_job, parse_env
from muster.errors import UsageError
from muster.job import Call, Job, make_job_folder, new_job_id

if TYPE_CHECKING:
    from typing import TextIO

    from muster.controller.controller import Controller
    from muster.controller.links.link import AgentLink
    from muster.controller.startup_check import Check
    from muster.output.screen import Screen


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """All that is settled before anything is started."""

    job: Job
    engine: Engine
    choice: Choice
    notes: tuple[str, ...] = ()
    """Sentences about the command line, for the screen."""


@contextmanager
def assembled(options: argparse.Namespace, command: list[str], call: Call | None = None) -> Generator[Assembly]:
    """Settle hosts, engine and job; the hosts of --lab live until the end of the `with`."""
    with places(options) as where:
        job = make_job(options, command, where.choice, call)
        engine = build(where.choice, make_means(options, job, where))
        notes = explain(options, where.choice.hosts)
        yield Assembly(job=job, engine=engine, choice=where.choice, notes=notes)


def make_job(options: argparse.Namespace, command: list[str], choice: Choice, call: Call | None = None) -> Job:
    """The job, with what to preload settled; `command` is the script with its arguments, or the function's name."""
    from muster.controller.script_text import chooses_port
    from muster.controller.source_code import find_script, is_below

    refuse(options)
    target, *args = command
    cwd = os.getcwd()
    if options.sync and os.path.isabs(target) and is_below(target, cwd):
        target = os.path.relpath(target, cwd)  # the copy is run, not the file it was made from
    job = Job(
        id=new_job_id(target),
        target=target,
        kind="function" if call is not None else "module" if options.module else "script",
        args=tuple(args),
        call=call,
        cwd=cwd,
        hosts=choice.hosts,
        env={**parse_env(options.env, os.environ), **({"MUSTER_WATCH": "0"} if options.no_watch else {})},
        # The hosts of a PBS job are set up alike, and its script's exports are meant for all; not so in a container.
        carried=of_whole_job(os.environ) if choice.engine == "pbs" and not options.image else carried(os.environ),
        grace=options.grace,
        restarts=options.restarts,
        role=options.role,
        hang_after=options.hang_after,
        on_hang=options.on_hang,
        master_addr=options.master_addr,
        master_port=options.master_port,
        interface=options.interface,
        sync=options.sync,
        debug=options.debug,
    )
    script = find_script(job)
    text = call.text if call is not None else script.text if script is not None else ""
    job = replace(job, has_store=not chooses_port(text))
    return settle_preload(job, options, choice, text)


def settle_preload(job: Job, options: argparse.Namespace, choice: Choice, text: str) -> Job:
    """What the zygote of each host imports, if there is one; `text` is the source that will run."""
    from muster.controller.script_text import sets_before_torch, uses_dynamo

    if options.no_zygote:
        if options.preload:
            raise UsageError("--preload is for the zygote, which --no-zygote leaves out", hint="give one of them")
        return job.with_preload(())
    if choice.engine == "mpi":
        # mpirun starts each rank by itself and once, so nothing can be shared by a fork or started again.
        if options.preload:
            raise UsageError("--preload is for the zygote, which mpirun's ranks do not have", hint="leave it out")
        if job.restarts:
            raise UsageError("--restarts: the ranks of an mpirun cannot be started again", hint="leave it out")
        return job.with_preload(())
    variable = sets_before_torch(text)
    if variable and not options.preload:
        reason = f"{job.target} sets {variable} before it imports torch, so each rank starts as a fresh interpreter"
        return job.with_preload((), reason)
    preload = ["torch", "torch.distributed", *options.preload]
    word = uses_dynamo(text)
    if not word or "torch._dynamo" in preload:
        return job.with_preload(tuple(preload))
    reason = f"torch._dynamo is imported beforehand, because {job.target} mentions {word}"
    return job.with_preload((*preload, "torch._dynamo"), reason)


@contextmanager
def staged(
    assembly: Assembly,
    options: argparse.Namespace,
    begin: float,
    streams: Mapping[int, TextIO | None] | None = None,
    screen: Screen | None = None,
) -> Generator[Callable[[], Controller]]:
    """A screen, log files and a folder for the job, and what makes its controller; all is written out at the end."""
    from muster.controller.controller import Controller
    from muster.output.log_files import LogFiles
    from muster.output.screen import Screen

    screen = screen or Screen(quiet=options.quiet, streams=streams)
    logs = LogFiles(screen.warning)
    try:
        folder = make_job_folder(assembly.job.id)
        for sentence in (*assembly.notes, *assembly.choice.said):
            screen.info(sentence)
        yield lambda: Controller(
            assembly.job,
            engine=assembly.engine,
            nproc=options.nproc,
            folder=folder,
            screen=screen,
            logs=logs,
            only=options.only_rank,
            only_local=options.only_local,
            begin=begin,
            check=None if options.no_check else _look(assembly, options, screen),
        )
    finally:
        logs.close()
        screen.close()


@contextmanager
def shown(
    make_controller: Callable[[], Controller], options: argparse.Namespace
) -> Generator[Callable[[], Controller]]:
    """The same with a page that shows the job, if that is wanted; its server is a process of its own."""
    if not options.page:
        yield make_controller
        return
    from muster.dashboard.dashboard_process import LINGER, start

    last_words: list[Callable[[], None]] = []

    def make() -> Controller:
        controller = make_controller()
        try:
            address = start(controller.folder, options.page_port)
        except OSError as error:
            controller.screen.warning(
                f"the page cannot be started: {error.strerror or error}; the job goes on without it"
            )
            return controller
        controller.screen.warning(f"page: {address}")
        stays = f"the page {address} stays for {LINGER / 60:.0f} minutes after its last reader"
        again = f"`muster page {controller.job.id}` brings it back"
        last_words.append(lambda: controller.screen.info(f"{stays}; {again}"))
        return controller

    yield make
    for say in last_words:
        say()


def _look(assembly: Assembly, options: argparse.Namespace, screen: Screen) -> Check:
    """The quick check of the hosts; its modules are loaded beside the first requests, on which the start waits."""
    import asyncio

    async def look(job: Job, links: Sequence[AgentLink]) -> None:
        module = await asyncio.to_thread(import_module, "muster.check.beforehand")
        beforehand = module.Beforehand(assembly.engine, screen, nproc=options.nproc, image=options.image)
        await beforehand.look(job, links)

    return look
