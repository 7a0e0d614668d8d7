"""Prepares connected hosts to start ranks: plan, torch, code, imports."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from muster.controller import preflight, source_code
from muster.controller.links.all_or_errors import all_or_errors
from muster.controller.links.link import AgentLink
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.job import Job
from muster.output.screen import Screen
from muster.plan import Plan, check_gpus, default_threads, fill_slots, make_plan
from muster.shared.machine import gpu_count
from muster.spec import Call
from muster.text import count, names, size_text

IMPORT_LIMIT = 600.0
"""Timeout of the imports in seconds: torch from a cold network file system takes minutes."""

_PIECE = 1 << 18
_REPORTED_SIZE = 1 << 20
"""Bytes above which sending is reported, because it may take a while."""

_SYNC_HINT = "use `--sync` to copy the working directory to every host before the start"


def what_is_done(job: Job, hosts: int) -> str:
    """What takes the time until ranks can start."""
    if not job.preload and job.spec.call is not None:
        return f"sending {job.spec.call.name} to {count(hosts, 'host')}"
    return f"importing {', '.join(job.preload) or 'nothing'} on {count(hosts, 'host')}"


def plan_for(job: Job, links: Sequence[AgentLink], slots: Sequence[int] | None = None) -> Plan:
    """Place the ranks on these hosts, whose facts are known; `slots` are their ranks if they could run more."""
    user_env = {**job.carried, **job.spec.env}
    hosts: list[Host] = []
    threads: list[int] = []
    for position, link in enumerate(links):
        host = _with_slots(settled(job, link)[0], None if slots is None else slots[position])
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
        names=[link.name for link in links],
    )


def _with_slots(host: Host, slots: int | None) -> Host:
    """A host that runs this number of ranks, on its first GPUs if it has more of them."""
    if slots is None:
        return host
    return replace(host, slots=slots, gpus=None if host.gpus is None else host.gpus[:slots])


def check_slots(job: Job, links: Sequence[AgentLink], screen: Screen) -> None:
    """Reject hosts with fewer GPUs than ranks, spare ones too, and report hosts without any."""
    for link in links:
        host, gpus = settled(job, link)
        check_gpus(host, gpus)
        if link.spec.host.slots is None and link.spec.host.tasks is None and job.spec.nproc is None and gpus == 0:
            screen.info(f"{link.name} has no GPU, starting one rank there (use `--nproc N` for more)")


def shown_ranks(plan: Plan, only: Collection[int] | None, local: Collection[int] | None) -> Collection[int] | None:
    """The ranks whose output is shown, by --only-rank or by local rank; None for all."""
    if local is not None:
        only = {rank for place in plan.placements for rank in place.ranks if rank - place.first_rank in local}
        if not only:
            most = max(place.slots for place in plan.placements) - 1
            have = f"local ranks 0 to {most}" if most else "only local rank 0"
            raise UsageError(
                f"--local-ranks-filter matches no rank: each host has {have}",
                hint="try `--local-ranks-filter 0`",
            )
    elif only and not any(rank < plan.world_size for rank in only):  # an empty list shows no output
        raise UsageError(
            f"--only-rank matches no rank: the job has {_rank_range(plan.world_size)}",
            hint="try `--only-rank 0`",
        )
    return only


def _rank_range(ranks: int) -> str:
    return f"ranks 0 to {ranks - 1}" if ranks > 1 else "only rank 0"


def settled(job: Job, link: AgentLink) -> tuple[Host, int]:
    """A host with its number of ranks, and its number of GPUs."""
    gpus = link.facts["gpus"]
    if "CUDA_VISIBLE_DEVICES" in job.spec.env:
        gpus = min(gpus, gpu_count(job.spec.env))
    if link.spec.host.tasks and link.facts["visible"] is None:
        gpus = 0  # a scheduler that counts tasks and shows no GPU has allocated none
    return fill_slots(link.spec.host, nproc=job.spec.nproc, gpus=gpus), gpus


def check_torch(links: Sequence[AgentLink]) -> None:
    """Require the same torch on all hosts; where torch was not found beforehand, the import decides."""
    known = [link for link in links if link.facts["torch"] is not None]
    if len({link.facts["torch"] for link in known}) > 1:
        have = ", ".join(f"{link.name} has {link.facts['torch']}" for link in known)
        raise MusterError(
            f"the hosts have different versions of torch: {have}",
            hint="install the same version everywhere, or choose a Python with `--python PATH`",
        )


async def check_code(
    job: Job, links: Sequence[AgentLink], folders: Sequence[str], look: preflight.Preflight, screen: Screen
) -> list[str]:
    """Require the same script in the working directory of every host; returns the working directories.

    A function that is sent with all its code needs no directory: without ours, its ranks run in the home directory.
    """
    preflight.check_syntax(job, look, [link.facts["version"] for link in links])
    script = job.script
    imports = [name for name, _ in look.imports]
    path, digest = (script.path, script.digest) if script is not None else (None, None)
    answers = await all_or_errors(
        [
            link.request("compare", limit=30, cwd=cwd, script=path, digest=digest, imports=imports)
            for link, cwd in zip(links, folders, strict=True)
        ]
    )
    found: list[str] = []
    for link, cwd, answer in zip(links, folders, answers, strict=True):
        name = script.path if script is not None else job.spec.target
        if not answer["cwd"]:
            if job.spec.kind != "function" or script is not None:
                raise HostError(link.name, f"the working directory {cwd} does not exist", hint=_SYNC_HINT)
            screen.info(f"{link.name}: {cwd} does not exist, so its ranks run in the home directory")
        elif answer["script"] == "missing":
            raise HostError(link.name, f"{name} does not exist in {cwd}", hint=_SYNC_HINT)
        elif answer["script"] == "different":
            raise HostError(link.name, f"{name} differs from the one on this machine", hint=_SYNC_HINT)
        found.append(cwd if answer["cwd"] else "~")
    lacking = [(link, answer["missing"]) for link, answer in zip(links, answers, strict=True) if answer["missing"]]
    preflight.check_imports(job, look, [(link.name, link.facts["python"], module) for link, module in lacking])
    return found


def check_python(call: Call, links: Sequence[AgentLink]) -> None:
    """Require the Python version that compiled the code to be sent."""
    for link in links:
        if call.python is not None and tuple(link.facts["version"]) != call.python:
            theirs, ours = (".".join(map(str, version)) for version in (link.facts["version"], call.python))
            raise HostError(
                link.name,
                f"it has Python {theirs}, but {call.name} can be sent only to Python {ours}, as on this machine",
                hint=f"choose a Python {ours} with options=['--python', PATH], or define it in a module on that host",
            )


async def send_call(call: Call, links: Sequence[AgentLink], screen: Screen) -> None:
    """Send the function and its arguments to every agent."""
    if len(call.data) > _REPORTED_SIZE:
        hosts = list(dict.fromkeys(link.name for link in links))
        screen.info(f"sending {call.name} and its arguments ({size_text(len(call.data))}) to {names(hosts)}")

    async def send(link: AgentLink) -> None:
        for piece, last in _pieces(call.data):
            answer = await link.request("call", limit=300, piece=piece, last=last)
            if answer["problem"]:
                problem = f"could not store {call.name} and its arguments in memory"
                raise HostError(link.name, f"{problem}: {answer['problem']}")

    await all_or_errors([send(link) for link in links])


def _pieces(data: bytes) -> Iterator[tuple[str, bool]]:
    """Split bytes into pieces, each with whether it is the last; each is acknowledged, so heartbeats fit in between."""
    for at in range(0, len(data), _PIECE):
        yield base64.b64encode(data[at : at + _PIECE]).decode(), at + _PIECE >= len(data)


async def archive(job: Job) -> bytes:
    """The working directory as it is now."""
    script = job.script
    if script is not None and not source_code.is_below(script.path, job.spec.cwd):
        raise UsageError(
            f"--sync sends the working directory {job.spec.cwd}, but {job.spec.target} is not in it",
            hint="change to the directory of your project first",
        )
    # Takes seconds for a large directory; heartbeats continue.
    return await asyncio.to_thread(source_code.archive, job.spec.cwd)


async def sync(job: Job, data: bytes, links: Sequence[AgentLink], screen: Screen) -> list[str]:
    """Send an archive of the working directory to the job directory of every host, and return the paths there."""
    screen.info(f"sending {job.spec.cwd} ({size_text(len(data))}) to {names([link.name for link in links])}")

    async def send(link: AgentLink) -> str:
        folder = ""
        for piece, last in _pieces(data):
            answer = await link.request("unpack", limit=300, piece=piece, last=last)
            if answer["problem"]:
                raise HostError(link.name, f"could not write the code: {answer['problem']}")
            folder = answer["folder"]
        return folder

    return await all_or_errors([send(link) for link in links])


async def import_everywhere(job: Job, links: Sequence[AgentLink], folders: Mapping[str, str], screen: Screen) -> None:
    """Start the zygote of every agent and wait for its imports; `folders` are the working directories by host."""

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
            keep=bool(job.spec.keep) or link.is_kept,
        )
        if answer["error"]:
            if answer["missing"] == "torch":
                raise HostError(
                    link.name,
                    f"{link.facts['python']} has no torch",
                    hint="choose a Python that has torch with `--python PATH`",
                )
            screen.show_block(answer["traceback"])
            if "facts" in answer:
                from muster.controller.diagnosis.explain.host_failures import killed_importer  # hardly ever happens

                raise killed_importer(link.name, answer["facts"])
            where = f"importing {answer['module']} failed: " if answer["module"] else ""
            raise HostError(
                link.name, f"{where}{answer['error']}", hint="use `--no-zygote` to start ranks without preloading"
            )
        if answer["unsafe"]:
            screen.info(f"{link.name}: {answer['unsafe']}, so ranks start as fresh interpreters")

    await all_or_errors([prepare(link) for link in links])
