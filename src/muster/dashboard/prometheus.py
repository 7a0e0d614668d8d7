"""The state of a job as Prometheus reads it (text format 0.0.4). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, get_args

from muster.jobs.hosts_text import spares
from muster.jobs.state import GpuState, HostPhase, HostState, JobState, Phase, RankPhase, RankState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = Mapping[str, str]
_Sample = tuple[_Labels, float | None]
_Item = TypeVar("_Item")
_Families = Mapping[str, tuple[str, Callable[[_Item], float | None]]]
"""By name: what it is, and its value for one item. Names that end in _total are counters, all others gauges."""

_JOB: _Families[JobState] = {
    "job_begin_timestamp_seconds": ("When the job began.", lambda job: job.begin),
    "job_ranks": ("Number of ranks.", lambda job: job.world_size),
    "job_restarts_total": ("Number of restarts.", lambda job: job.attempt),
    "job_exit_code": ("Exit code, once it has ended.", lambda job: job.exit_code),
    "attempts_total": ("Starts of all ranks.", lambda job: job.attempts[-1].number + 1 if job.attempts else 0),
    "host_losses_total": ("How often a host was lost.", lambda job: job.host_losses),
    "recovery_seconds": (
        "Duration of the last recovery: from the end of an attempt to the first collective of the next one.",
        lambda job: next((one.recovery for one in reversed(job.attempts) if one.recovery is not None), None),
    ),
    "spares": ("Hosts that are ready to replace another one.", spares),
}

_HOST: _Families[HostState] = {
    "host_up": ("1 if the host answers.", lambda host: host.state == "up"),
    "host_cpus": ("CPUs of the host.", lambda host: host.cpus or None),
    "host_cpu_use_ratio": ("Share of its CPUs in use.", lambda host: host.cpu_use),
    "host_load": ("Load average of a minute.", lambda host: host.load),
    "host_memory_used_bytes": ("Memory in use.", lambda host: host.memory_used),
    "host_memory_total_bytes": ("Total memory.", lambda host: host.memory_total),
    "host_disk_wait_ratio": (
        "Share of the time in which some task waited for a disk.",
        lambda host: host.disk_wait,
    ),
    "host_network_receive_bytes_per_second": (
        "Bytes received per second, without loopback.",
        lambda host: host.network_in,
    ),
    "host_network_transmit_bytes_per_second": (
        "Bytes sent per second, without loopback.",
        lambda host: host.network_out,
    ),
}

_GPU: _Families[GpuState] = {
    "gpu_use_ratio": ("Share of the time in which it computed.", lambda gpu: gpu.use),
    "gpu_memory_used_bytes": ("Memory in use.", lambda gpu: gpu.memory_used),
    "gpu_memory_total_bytes": ("Total memory.", lambda gpu: gpu.memory_total),
    "gpu_clock_hertz": ("Current clock.", lambda gpu: None if gpu.clock is None else gpu.clock * 1e6),
    "gpu_temperature_celsius": ("Temperature.", lambda gpu: gpu.temperature),
    "gpu_throttled": ("1 if the driver throttles its clock.", lambda gpu: bool(gpu.throttled)),
}

_RANK: _Families[RankState] = {
    "rank_steps_total": ("Optimizer steps in this attempt.", lambda rank: rank.steps),
    "rank_collectives_total": ("Collectives finished in this attempt.", lambda rank: rank.collectives),
    "rank_steps_per_second": (
        "Steps per second lately; collectives where the script has no optimizer.",
        lambda rank: rank.step_rate,
    ),
    "rank_waiting_ratio": (
        "Share of the time lately in which it waited for other ranks.",
        lambda rank: rank.waiting,
    ),
    "rank_cpus_used": ("CPUs it uses, with its children.", lambda rank: rank.cpu),
    "rank_memory_bytes": ("Its memory (RSS), with its children.", lambda rank: rank.memory),
    "rank_gpu_memory_bytes": ("Its memory on GPUs.", lambda rank: rank.gpu_memory),
    "rank_exit_code": ("Exit code, once it has ended.", lambda rank: rank.exit_code),
}


def metrics(state: JobState) -> str:
    """All gauges and counters of a job; what is not known has no line."""
    job = {"job": state.id}
    about = {**job, "command": state.command, "engine": state.engine, "controller_host": state.host}
    reports = Counter[str](hang=0, straggler=0)
    reports.update(report.kind for report in state.reports)
    by_kind = [({**job, "kind": kind}, number) for kind, number in reports.items()]
    hosts = [({**job, "host": host.name}, host) for host in state.hosts]
    phases = Counter(host.state for host in state.hosts)
    by_phase = [({**job, "state": phase}, phases[phase]) for phase in get_args(HostPhase)]
    gpus = [({**at, "gpu": str(gpu.index)}, gpu) for at, host in hosts for gpu in host.gpus]
    ranks = [({**job, "rank": str(rank.rank), "host": rank.host}, rank) for rank in state.ranks]
    states = [sample for at, rank in ranks for sample in _choice(at, "state", rank.state, RankPhase)]
    lines = [
        *_family("job_info", "Command, engine and host of the controller.", [(about, 1)]),
        *_family("job_phase", "1 for the phase the job is in.", _choice(job, "phase", state.phase, Phase)),
        *_families(_JOB, [(job, state)]),
        *_family("job_reports_total", "What Muster found while the job ran, by kind.", by_kind),
        *_family("hosts", "Number of hosts by state.", by_phase),
        *_families(_HOST, hosts),
        *_family("gpu_info", "The name of the GPU.", [({**at, "name": gpu.name}, 1) for at, gpu in gpus]),
        *_families(_GPU, gpus),
        *_family("rank_state", "1 for the state the rank is in.", states),
        *_families(_RANK, ranks),
    ]
    return "".join(f"{line}\n" for line in lines)


def _families(families: _Families[_Item], items: Sequence[tuple[_Labels, _Item]]) -> list[str]:
    return [
        line
        for name, (about, value) in families.items()
        for line in _family(name, about, [(labels, value(item)) for labels, item in items])
    ]


def _choice(labels: _Labels, name: str, value: str, kind: object) -> list[_Sample]:
    """One sample for each value it may have: 1 for the one it has."""
    return [({**labels, name: choice}, choice == value) for choice in get_args(kind)]


def _family(name: str, about: str, samples: Iterable[_Sample]) -> list[str]:
    """All samples of one name, or nothing if there are none."""
    kind = "counter" if name.endswith("_total") else "gauge"
    known = [f"muster_{name}{_labels(labels)} {_number(value)}" for labels, value in samples if value is not None]
    return [f"# HELP muster_{name} {about}", f"# TYPE muster_{name} {kind}", *known] if known else []


def _labels(labels: _Labels) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    values = {
        name: value.encode("utf-8", "replace").decode("utf-8").translate(escapes) for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"


def _number(value: float) -> str:
    """Digits that lose nothing: an epoch in seconds has ten before the point."""
    return str(int(value)) if isinstance(value, bool | int) or value.is_integer() else repr(value)
