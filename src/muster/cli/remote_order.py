"""A job as it is sent to the host of its controller: everything that its user's machine has decided, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from muster.api.prepared import Prepared
from muster.engines.container.container import container_of
from muster.engines.engine import Choice
from muster.engines.local.engine import local_command
from muster.engines.table import load
from muster.hosts import Host
from muster.job import Job, Script, job_folder
from muster.spec import RunSpec

_SETS = ("only_ranks", "only_local_ranks")
"""Fields of a RunSpec that are sets; JSON writes them as lists."""


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """A job to start."""

    job: Job
    own: Host
    """The host of the controller, as the user named it."""
    notes: tuple[str, ...]
    """Lines that the job's screen shows first."""
    mark: str
    """The mark in remote.json on the user's machine."""
    code_size: int
    """Bytes of the working directory's archive, which follows; 0 without --sync."""

    def as_data(self) -> dict[str, Any]:
        """The order as JSON can hold it."""
        spec = {field.name: getattr(self.job.spec, field.name) for field in fields(RunSpec) if field.name != "call"}
        spec |= {name: None if spec[name] is None else sorted(spec[name]) for name in _SETS}
        spec["hosts"] = [asdict(host) for host in self.job.hosts]
        job = {field.name: getattr(self.job, field.name) for field in fields(Job)}
        job |= {"spec": spec, "hosts": spec["hosts"], "script": self.job.script and asdict(self.job.script)}
        return {**vars(self), "job": job, "own": asdict(self.own)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> JobOrder:
        """The order that `as_data` made, by the same version of Muster."""
        job: dict[str, Any] = dict(data["job"])
        hosts = tuple(map(host_from_data, job["hosts"]))
        spec: dict[str, Any] = {name: _tuple(value) for name, value in job["spec"].items()}
        spec |= {name: None if spec[name] is None else frozenset(spec[name]) for name in _SETS} | {"hosts": hosts}
        script = None if job["script"] is None else Script(**job["script"])
        job |= {"spec": RunSpec(**spec), "hosts": hosts, "script": script}
        job["preload"] = tuple(job["preload"])
        return JobOrder(
            job=Job(**job),
            own=host_from_data(data["own"]),
            notes=tuple(data["notes"]),
            mark=data["mark"],
            code_size=data["code_size"],
        )


def prepared_here(order: JobOrder, job: Job) -> Prepared:
    """The job with the commands that start its agents from this host, whose own agent is a child process."""
    choice = Choice(engine=load("ssh"), hosts=job.hosts)
    folder = str(job_folder(job.id))
    launch = choice.engine.launch(choice, job.spec, folder)
    commands = tuple(
        local_command(agent.host, agent.name, python=job.spec.python_on(agent.host), box=container_of(job.spec, folder))
        if is_same(agent.host, order.own)
        else command
        for command in launch.commands
        for agent in command.agents
    )
    return Prepared(job=job, choice=choice, launch=replace(launch, commands=commands), notes=order.notes)


def host_from_data(data: Mapping[str, Any]) -> Host:
    """A host from its fields."""
    return Host(**{name: _tuple(value) for name, value in data.items()})


def is_same(host: Host, other: Host) -> bool:
    """Whether ssh logs in to the same machine as the same user for both."""
    return (host.name, host.user, host.port) == (other.name, other.user, other.port)


def _tuple(value: Any) -> Any:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value
