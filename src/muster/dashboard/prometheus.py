"""The state of a job as Prometheus reads it (text format 0.0.4). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import get_args

from muster.jobs.state import GpuState, HostState, JobState, Phase, RankPhase, RankState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = Mapping[str, str]
_Sample = tuple[_Labels, float | None]


def metrics(state: JobState) -> str:
    """All gauges and counters of a job; what is not known has no line."""
    job = {"job": state.id}
    lines = [
        *_job(state, job),
        *_hosts(state.hosts, job),
        *_gpus([(host.name, gpu) for host in state.hosts for gpu in host.gpus], job),
        *_ranks(state.ranks, job),
    ]
    return "".join(f"{line}\n" for line in lines)


def _job(state: JobState, job: _Labels) -> list[str]:
    kinds = Counter[str](hang=0, straggler=0)
    kinds.update(report.kind for report in state.reports)
    about = {**job, "command": state.command, "engine": state.engine, "controller_host": state.host}
    return [
        *_family("job_info", "gauge", "What runs, and where its controller is.", [(about, 1)]),
        *_family("job_phase", "gauge", "1 for the phase the job is in.", _choice(job, "phase", state.phase, Phase)),
        *_family("job_begin_timestamp_seconds", "gauge", "When the job began.", [(job, state.begin)]),
        *_family("job_ranks", "gauge", "How many ranks it has.", [(job, state.world_size)]),
        *_family("job_restarts_total", "counter", "How often all ranks were started again.", [(job, state.attempt)]),
        *_family(
            "job_reports_total",
            "counter",
            "What Muster found while the job ran, by kind.",
            [({**job, "kind": kind}, number) for kind, number in kinds.items()],
        ),
        *_family("job_exit_code", "gauge", "Its exit code, once it has ended.", [(job, state.exit_code)]),
    ]


def _hosts(hosts: Iterable[HostState], job: _Labels) -> list[str]:
    of = [({**job, "host": host.name}, host) for host in hosts]
    return [
        *_family("host_up", "gauge", "1 if the host answers.", [(at, host.state == "up") for at, host in of]),
        *_family("host_cpus", "gauge", "CPUs of the host.", [(at, host.cpus or None) for at, host in of]),
        *_family("host_cpu_use_ratio", "gauge", "Share of its CPUs in use.", [(at, host.cpu_use) for at, host in of]),
        *_family("host_load", "gauge", "Load average of a minute.", [(at, host.load) for at, host in of]),
        *_family("host_memory_used_bytes", "gauge", "Memory in use.", [(at, host.memory_used) for at, host in of]),
        *_family("host_memory_total_bytes", "gauge", "Memory it has.", [(at, host.memory_total) for at, host in of]),
        *_family(
            "host_disk_wait_ratio",
            "gauge",
            "Share of the time in which some task waited for a disk.",
            [(at, host.disk_wait) for at, host in of],
        ),
        *_family(
            "host_network_receive_bytes_per_second",
            "gauge",
            "Bytes that came in, loopback left out.",
            [(at, host.network_in) for at, host in of],
        ),
        *_family(
            "host_network_transmit_bytes_per_second",
            "gauge",
            "Bytes that went out, loopback left out.",
            [(at, host.network_out) for at, host in of],
        ),
    ]


def _gpus(gpus: Iterable[tuple[str, GpuState]], job: _Labels) -> list[str]:
    of = [({**job, "host": host, "gpu": str(gpu.index)}, gpu) for host, gpu in gpus]
    mega = 1e6
    return [
        *_family("gpu_info", "gauge", "The name of the GPU.", [({**at, "name": gpu.name}, 1) for at, gpu in of]),
        *_family(
            "gpu_use_ratio", "gauge", "Share of the time in which it computed.", [(at, gpu.use) for at, gpu in of]
        ),
        *_family("gpu_memory_used_bytes", "gauge", "Memory in use.", [(at, gpu.memory_used) for at, gpu in of]),
        *_family("gpu_memory_total_bytes", "gauge", "Memory it has.", [(at, gpu.memory_total) for at, gpu in of]),
        *_family(
            "gpu_clock_hertz",
            "gauge",
            "Clock now.",
            [(at, None if gpu.clock is None else gpu.clock * mega) for at, gpu in of],
        ),
        *_family("gpu_temperature_celsius", "gauge", "Temperature.", [(at, gpu.temperature) for at, gpu in of]),
        *_family(
            "gpu_throttled", "gauge", "1 if its clock is held down.", [(at, bool(gpu.throttled)) for at, gpu in of]
        ),
    ]


def _ranks(ranks: Iterable[RankState], job: _Labels) -> list[str]:
    of = [({**job, "rank": str(rank.rank), "host": rank.host}, rank) for rank in ranks]
    states = [sample for at, rank in of for sample in _choice(at, "state", rank.state, RankPhase)]
    return [
        *_family("rank_state", "gauge", "1 for the state the rank is in.", states),
        *_family(
            "rank_steps_total", "counter", "Optimiser steps in this attempt.", [(at, rank.steps) for at, rank in of]
        ),
        *_family(
            "rank_collectives_total",
            "counter",
            "Collectives finished in this attempt.",
            [(at, rank.collectives) for at, rank in of],
        ),
        *_family(
            "rank_steps_per_second",
            "gauge",
            "Steps per second lately; collectives where the script has no optimiser.",
            [(at, rank.step_rate) for at, rank in of],
        ),
        *_family(
            "rank_waiting_ratio",
            "gauge",
            "Share of the time lately in which it waited for other ranks.",
            [(at, rank.waiting) for at, rank in of],
        ),
        *_family("rank_cpus_used", "gauge", "CPUs it uses, with its children.", [(at, rank.cpu) for at, rank in of]),
        *_family(
            "rank_memory_bytes", "gauge", "Its memory (RSS), with its children.", [(at, rank.memory) for at, rank in of]
        ),
        *_family("rank_gpu_memory_bytes", "gauge", "Its memory on GPUs.", [(at, rank.gpu_memory) for at, rank in of]),
        *_family(
            "rank_exit_code", "gauge", "Its exit code, once it has ended.", [(at, rank.exit_code) for at, rank in of]
        ),
    ]


def _choice(labels: _Labels, name: str, value: str, kind: object) -> list[_Sample]:
    """One sample for each value it may have: 1 for the one it has."""
    return [({**labels, name: choice}, choice == value) for choice in get_args(kind)]


def _family(name: str, kind: str, about: str, samples: Iterable[_Sample]) -> list[str]:
    """All samples of one name, or nothing if there are none."""
    known = [f"muster_{name}{_labels(labels)} {_number(value)}" for labels, value in samples if value is not None]
    return [f"# HELP muster_{name} {about}", f"# TYPE muster_{name} {kind}", *known] if known else []


def _labels(labels: _Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Digits that lose nothing: an epoch in seconds has ten before the point."""
    return str(int(value)) if isinstance(value, bool | int) or value.is_integer() else repr(value)
