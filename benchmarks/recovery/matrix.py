"""Every fault with every way to continue: a spare, fewer hosts, fewer hosts until it returns, and on the first host."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiment import Failed
from benchmarks.recovery import moments
from benchmarks.recovery.faults import FAULTS, Fault, now
from benchmarks.recovery.stage import Stage, Trial

HOSTS = 3
"""Hosts that run a rank each."""
THAW_LIMIT = 1.0
"""Seconds in which the old ranks of a thawed host must be gone."""
LIMIT = 90.0
"""Seconds in which a job must have recovered, and in which a host that returned must have joined."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to continue without a host."""

    name: str
    title: str
    options: tuple[str, ...]
    victim: int
    """Position of the host with the fault."""
    spare: bool = False
    worlds: tuple[int, ...] = (HOSTS,)
    """Numbers of ranks of the attempts after the loss of a host."""


SPARE = ("--spares", "1")
WAYS = (
    Way(name="spare", title="spare", options=SPARE, victim=1, spare=True),
    Way(name="shrink", title="shrink", options=("--min-hosts", "2"), victim=1, worlds=(HOSTS - 1,)),
    Way(
        name="rejoin",
        title="shrink, then rejoin",
        options=("--min-hosts", "2", "--rejoin", "2s"),
        victim=1,
        worlds=(HOSTS - 1, HOSTS),
    ),
    Way(name="first", title="first host, spare", options=SPARE, victim=0, spare=True),
)

SLURM_FAULTS = ("power", "agent", "zygote", "frozen", "rank")
NOT_ON_SLURM = ("power-rejoin",)
"""Slurm cancels the whole job when a node of it has rebooted."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault with one way to continue."""

    fault: Fault
    way: Way

    @property
    def name(self) -> str:
        """`power-spare`."""
        return f"{self.fault.name}-{self.way.name}"


CASES = tuple(Case(fault=fault, way=way) for fault in FAULTS for way in WAYS)


def matrix(folder: Path, rounds: int, only: Sequence[str] | None, *, slurm: bool) -> tuple[str, bool]:
    """Run all cases this often; return the table, and whether any failed."""
    chosen = [
        case
        for case in CASES
        if (not only or {case.name, case.fault.name, case.way.name} & set(only))
        and (not slurm or (case.fault.name in SLURM_FAULTS and case.name not in NOT_ON_SLURM))
    ]
    results: dict[str, list[float]] = {case.name: [] for case in chosen}
    problems: list[str] = []
    with Stage(HOSTS + 1, folder, slurm=slurm) as stage:
        for _ in range(rounds):
            for case in chosen:
                begin = time.monotonic()
                try:
                    results[case.name].append(play(stage, case))
                    said = f"{results[case.name][-1]:.2f} s"
                except Failed as error:
                    said = str(error).replace("|", "/")
                    problems.append(f"- {case.fault.title}, {case.way.title}: {said}")
                stage.restore()
                print(f"{case.name}: {said} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
    return table(chosen, results, rounds, problems), bool(problems)


def play(stage: Stage, case: Case) -> float:
    """Run one job with one fault; return the seconds until the first all_reduce of the new world."""
    way, fault = case.way, case.fault
    hosts = HOSTS + way.spare
    with stage.muster(*way.options, "--restarts", "5", hosts=hosts) as trial:
        trial.wait_for_start(HOSTS)
        victim = stage.workers[way.victim]
        begin = fault.strike(trial, victim)
        seconds = trial.wait_for_recovery(begin, LIMIT)
        thawed = None
        if fault.name == "frozen":
            thawed = now(lambda: fault.undo(trial, victim))
            trial.read_for(3)
        if way.name == "rejoin" and fault.loses_host and fault.returns:
            if not thawed:
                fault.undo(trial, victim)
            trial.wait_for(f"{victim} has joined again", lambda: has_joined(trial, victim, begin + seconds), LIMIT)
        check_worlds(trial, case, begin)
        trial.wait_for("more steps", lambda: trial.moments()[-1].time > begin + seconds + 1, LIMIT)
        if code := trial.finish():
            raise trial.controller.failed(f"ended with code {code}")
        check_old_ranks(trial, victim, thawed)
    return seconds


def has_joined(trial: Trial, host: str, since: float) -> bool:
    """Whether a whole world has begun after this time, with this host."""
    firsts = [moment for moment in trial.moments() if moment.what == "first" and moment.time > since]
    return len(firsts) >= HOSTS and any(moment.host == host for moment in firsts)


def check_old_ranks(trial: Trial, victim: str, thawed: float | None) -> None:
    """No rank of an older attempt may have written anything after a newer one had begun."""
    found = trial.moments()
    if old := moments.stale(found, thawed=thawed):
        first = old[0]
        raise Failed(f"rank {first.rank} of attempt {first.attempt} on {first.host} wrote `{first.what}` too late")
    if thawed:
        lived = moments.afterlife(found, victim, thawed)
        print(f"the old rank lived for {lived:.2f} s after the thaw", file=sys.stderr)
        if lived > THAW_LIMIT:
            raise Failed(f"the old rank of {victim} was alive {lived:.1f} s after the thaw")


def check_worlds(trial: Trial, case: Case, begin: float) -> None:
    """The attempts after the fault must have had the expected number of ranks, and not run on the lost host."""
    starts = [moment for moment in trial.moments() if moment.what == "first" and moment.time > begin]
    worlds = tuple(dict.fromkeys(moment.world for moment in starts))
    expected = case.way.worlds if case.fault.loses_host else (HOSTS,)
    if not case.fault.returns:
        expected = expected[:1]
    if worlds != expected:
        raise Failed(f"the attempts had {worlds} ranks instead of {expected}")
    if case.way.spare and case.fault.loses_host:
        victim = trial.stage.workers[case.way.victim]
        if any(moment.host == victim for moment in starts):
            raise Failed(f"ranks were started on {victim} again")


def table(cases: Sequence[Case], results: dict[str, list[float]], rounds: int, problems: Sequence[str]) -> str:
    """Faults in rows, ways in columns: how many jobs recovered, and the slowest."""
    ways = [way for way in WAYS if any(case.way is way for case in cases)]
    lines = [f"| fault | {' | '.join(way.title for way in ways)} |", "|---" * (1 + len(ways)) + "|"]
    for fault in dict.fromkeys(case.fault for case in cases):
        cells = [fault.title]
        for way in ways:
            times = results.get(Case(fault=fault, way=way).name)
            slowest = f", at most {max(times):.1f} s" if times else ""
            cells.append("" if times is None else f"{len(times)} of {rounds}{slowest}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", *problems] if problems else [])])
