"""From connected hosts to hosts that can start ranks: plan, torch, code, imports."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterator, Mapping, Sequence

from muster.controller import source_code
from muster.controller.links.link import AgentLink, all_or_errors
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.job import Job
from muster.output.screen import Screen
from muster.plan import Plan, check_gpus, default_threads, fill_slots, make_plan
from muster.shared.machine import gpu_count
from muster.spec import Call
from muster.text import count, names, size_text

IMPORT_LIMIT = 600.0
"""Seconds for the imports: torch from a cold network file system takes minutes."""

_PIECE = 1 << 18
_WORTH_A_WORD = 1 << 20
"""Bytes above which it is said that they are sent, because it may take a while."""

_SYNC_HINT = "`--sync` sends this folder to every host before the start"


def what_is_done(job: Job, hosts: int) -> str:
    """What takes the time until ranks can start, in words."""
    if not job.preload and job.spec.call is not None:
        return f"sending {job.spec.call.name} to {count(hosts, 'host')}"
    return f"importing {', '.join(job.preload) or 'nothing'} on {count(hosts, 'host')}"


def plan_for(job: Job, links: Sequence[AgentLink], *, screen: Screen) -> Plan:
    """Place the ranks, now that the hosts have said what they have."""
    user_env = {**job.carried, **job.spec.env}
    hosts: list[Host] = []
    threads: list[int] = []
    for link in links:
        host, gpus = settled(job, link)
        check_gpus(host, gpus)
        if link.spec.host.slots is None and link.spec.host.tasks is None and job.spec.nproc is None and gpus == 0:
            screen.info(f"{link.name} has no GPU: one rank there (`--nproc N` for more)")
        hosts.append(host)
        said = "OMP_NUM_THREADS" in user_env or link.facts["omp"] is not None
        threads.append(0 if said else default_threads(link.facts["cpus"], host.slots or 1))
    visible: list[str | None] = [job.spec.env.get("CUDA_VISIBLE_DEVICES", link.facts["visible"]) for link in links]
    return make_plan(
        job.id,
        hosts,
        threads=threads,
        restarts=job.spec.restarts,
        user_env=user_env,
        visible=visible,
        role=job.spec.role,
        has_store=job.has_store,
    )


def shown_ranks(plan: Plan, only: Collection[int] | None, local: Collection[int] | None) -> Collection[int] | None:
    """The ranks whose output is shown, by --only-rank or by their number on their host; None for all."""
    if local is not None:
        only = {rank for place in plan.placements for rank in place.ranks if rank - place.first_rank in local}
        if not only:
            most = max(place.slots for place in plan.placements) - 1
            have = f"local ranks 0 to {most}" if most else "only local rank 0"
            raise UsageError(
                f"--local-ranks-filter: each host has {have}, none of those named",
                hint="try `--local-ranks-filter 0`",
            )
    elif only and not any(rank < plan.world_size for rank in only):  # none at all is a job without output
        raise UsageError(
            f"--only-rank: the job has ranks 0 to {plan.world_size - 1}, none of those named",
            hint="try `--only-rank 0`",
        )
    return only


def settled(job: Job, link: AgentLink) -> tuple[Host, int]:
    """A host with the number of its ranks, and how many GPUs they have."""
    gpus = link.facts["gpus"]
    if "CUDA_VISIBLE_DEVICES" in job.spec.env:
        gpus = min(gpus, gpu_count(job.spec.env))
    if link.spec.host.tasks and link.facts["visible"] is None:
        gpus = 0  # a scheduler that counts tasks and shows no GPU has given none, whatever the host has
    return fill_slots(link.spec.host, nproc=job.spec.nproc, gpus=gpus), gpus


def check_torch(links: Sequence[AgentLink]) -> None:
    """Hosts must have the same torch; one whose torch is not where files usually lie is left to the import."""
    known = [link for link in links if link.facts["torch"] is not None]
    if len({link.facts["torch"] for link in known}) > 1:
        have = ", ".join(f"{link.name} has {link.facts['torch']}" for link in known)
        raise MusterError(
            f"the hosts have different versions of torch: {have}",
            hint="install the same version everywhere, or name the right Python with `--python PATH`",
        )


async def check_code(job: Job, links: Sequence[AgentLink], folders: Sequence[str], screen: Screen) -> list[str]:
    """Every host must have the script as it is here, in its folder; returns the folders that ranks work in.

    A function that is sent with all its code needs no folder: without ours, its ranks work in the home folder.
    """
    script = job.script
    path, digest = (script.path, script.digest) if script is not None else (None, None)
    answers = await all_or_errors(
        [
            link.request("compare", limit=30, cwd=cwd, script=path, digest=digest)
            for link, cwd in zip(links, folders, strict=True)
        ]
    )
    found: list[str] = []
    for link, cwd, answer in zip(links, folders, answers, strict=True):
        name = script.path if script is not None else job.spec.target
        if not answer["cwd"]:
            if job.spec.kind != "function" or script is not None:
                raise HostError(link.name, f"there is no folder {cwd}", hint=_SYNC_HINT)
            screen.info(f"{link.name} has no folder {cwd}: its ranks work in the home folder there")
        elif answer["script"] == "missing":
            raise HostError(link.name, f"{name} is not in {cwd}", hint=_SYNC_HINT)
        elif answer["script"] == "different":
            raise HostError(link.name, f"its {name} differs from the one here", hint=_SYNC_HINT)
        found.append(cwd if answer["cwd"] else "~")
    return found


def check_python(call: Call, links: Sequence[AgentLink]) -> None:
    """Code that is sent runs only under the version of Python that compiled it."""
    for link in links:
        if call.python is not None and tuple(link.facts["version"]) != call.python:
            theirs, ours = (".".join(map(str, version)) for version in (link.facts["version"], call.python))
            raise HostError(
                link.name,
                f"its Python is {theirs}, and the code of {call.name} can be sent only to Python {ours}, as it is here",
                hint=f"name a Python {ours} there: options=['--python', PATH]; or define it in a module that is there",
            )


async def send_call(call: Call, links: Sequence[AgentLink], screen: Screen) -> None:
    """Send the function and its arguments to every agent."""
    if len(call.data) > _WORTH_A_WORD:
        hosts = list(dict.fromkeys(link.name for link in links))
        screen.info(f"sending {call.name} and its arguments ({size_text(len(call.data))}) to {names(hosts)}")

    async def send(link: AgentLink) -> None:
        for piece, last in _pieces(call.data):
            answer = await link.request("call", limit=300, piece=piece, last=last)
            if answer["problem"]:
                problem = f"{call.name} and its arguments cannot be kept in memory there"
                raise HostError(link.name, f"{problem}: {answer['problem']}")

    await all_or_errors([send(link) for link in links])


def _pieces(data: bytes) -> Iterator[tuple[str, bool]]:
    """Bytes in pieces, and whether each is the last: each is answered before the next, so heartbeats come between."""
    for at in range(0, len(data), _PIECE):
        yield base64.b64encode(data[at : at + _PIECE]).decode(), at + _PIECE >= len(data)


async def sync(job: Job, links: Sequence[AgentLink], screen: Screen) -> list[str]:
    """Send the working directory to every host, into the job's folder there, and return those folders."""
    script = job.script
    if script is not None and not source_code.is_below(script.path, job.spec.cwd):
        raise UsageError(
            f"--sync sends {job.spec.cwd}, and {job.spec.target} is not in it",
            hint="change to the folder of your project first",
        )
    data = await asyncio.to_thread(source_code.archive, job.spec.cwd)  # seconds for a large folder; heartbeats go on
    screen.info(f"sending {job.spec.cwd} ({size_text(len(data))}) to {names([link.name for link in links])}")

    async def send(link: AgentLink) -> str:
        folder = ""
        for piece, last in _pieces(data):
            answer = await link.request("unpack", limit=300, piece=piece, last=last)
            if answer["problem"]:
                raise HostError(link.name, f"the code cannot be written there: {answer['problem']}")
            folder = answer["folder"]
        return folder

    return await all_or_errors([send(link) for link in links])


async def import_everywhere(job: Job, links: Sequence[AgentLink], folders: Mapping[str, str], screen: Screen) -> None:
    """Start every agent's zygote and wait for its imports; `folders` are the working directories by host."""

    async def prepare(link: AgentLink) -> None:
        answer = await link.request(
            "prepare",
            limit=IMPORT_LIMIT,
            # An agent on this machine has inherited the whole environment; others get the default set.
            env={**({} if link.spec.inherits else job.carried), **job.spec.env},
            cwd=folders[link.name],
            preload=list(job.preload),
            kind=job.spec.kind,
            target=job.spec.target,
            args=job.spec.args,
            path=job.spec.call.path if job.spec.call is not None else (),
            grace=job.spec.grace,
        )
        if answer["error"]:
            if answer["missing"] == "torch":
                raise HostError(
                    link.name,
                    f"{link.facts['python']} has no torch",
                    hint="name the Python that has it: `--python PATH`",
                )
            screen.show_block(answer["traceback"])
            where = f"importing {answer['module']} failed: " if answer["module"] else ""
            raise HostError(
                link.name, f"{where}{answer['error']}", hint="`--no-zygote` starts ranks without preloading"
            )
        if answer["unsafe"]:
            screen.info(f"{link.name}: {answer['unsafe']}, so ranks start as fresh interpreters")

    await all_or_errors([prepare(link) for link in links])
