"""What a job does with a host that is to blame, and what later jobs learn about it."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from explaining import end

from muster.controller.diagnosis.rank_end import HostLoss, RankEnd
from muster.controller.diagnosis.verdict import Verdict, judge
from muster.controller.host_blame import HostBlame
from muster.hosts import Host
from muster.job import Job
from muster.jobs import host_history
from muster.spec import RunSpec

ECC = "CUDA error: uncorrectable ECC error encountered"
WHY = "a GPU had an uncorrectable memory error (ECC)"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "muster"


class Recovery:
    """Hosts that can be replaced as often as `spares` says."""

    def __init__(self, spares: int) -> None:
        self.spares = spares
        self.retired: list[str] = []
        self.stuck: list[str] = []

    def can_replace(self, host: str, *, shrink: bool = True) -> bool:
        return self.spares > 0

    def retire(self, host: str, why: str) -> None:
        self.retired.append(host)

    def restore(self, host: str) -> None:
        self.retired.remove(host)


class Trial:
    """A job on h1, h2 and h3 whose attempts end as a test wants."""

    def __init__(self, *, spares: int = 1, engine: str = "ssh", here: str = "", **options: Any) -> None:
        self.recovery = Recovery(spares)
        self.said: list[str] = []
        spec = RunSpec(target="train.py", **{"restarts": 3, **options})
        job = Job(id="20261116-041233-train-3f9a", spec=spec, hosts=(), carried={})
        agents = [SimpleNamespace(name=name, host=Host(name=name), here=name == here) for name in ("h1", "h2", "h3")]
        launch: Any = SimpleNamespace(name=engine, agents=agents)
        self.gpus: dict[str, str] = {}
        self.asked: list[list[str]] = []
        self.blame = HostBlame(job, launch, self.recovery, self.said.append, lambda what: nullcontext(), self.ask)

    async def ask(self, hosts: Any) -> dict[str, str]:
        self.asked.append(list(hosts))
        return self.gpus

    def after(self, *attempts: tuple[RankEnd | HostLoss, ...]) -> Verdict:
        """The verdict of the job after these attempts."""

        async def run() -> Verdict:
            verdict = Verdict(exit_code=0)
            for parts in attempts:
                ends = [part for part in parts if isinstance(part, RankEnd)]
                losses = [part for part in parts if isinstance(part, HostLoss)]
                verdict = judge(ends, losses, start=0.0)
                places = [SimpleNamespace(name=name) for name in ("h1", "h2")]
                attempt: Any = SimpleNamespace(ends=ends, losses=losses, plan=SimpleNamespace(placements=places))
                if not verdict.ok:
                    await self.blame.after_failure(attempt, verdict)
            verdict = self.blame.add_to(verdict)
            await self.blame.save()
            return verdict

        return asyncio.run(run())


def kept() -> dict[str, list[tuple[str, str]]]:
    found = host_history.read(print).hosts
    return {key: [(one.kind, one.what) for one in incidents] for key, incidents in found.items()}


def test_a_host_with_failed_hardware_is_replaced_and_kept_at_once():
    trial = Trial()
    trial.after((end(0, 1, ECC), end(1, 0)))
    assert trial.recovery.retired == ["h1"]
    assert trial.said == [f"h1 runs no more ranks of this job: {WHY}"]
    assert kept() == {"h1": [("hardware", WHY)]}


def test_a_host_that_nothing_can_replace_is_used_again_with_a_warning():
    trial = Trial(spares=0)
    trial.after((end(0, 1, ECC), end(1, 0)))
    assert trial.recovery.retired == []
    assert trial.said == [f"h1 is used again, because no host can replace it: {WHY}"]


def test_a_job_without_restarts_says_at_its_end_what_is_kept():
    trial = Trial(restarts=0)
    verdict = trial.after((end(0, 1, ECC), end(1, 0)))
    assert trial.said == []
    assert verdict.notes[-1] == "Muster remembers h1 as bad for later jobs: use --avoid-bad to leave it out"
    assert kept() == {"h1": [("hardware", WHY)]}


@pytest.mark.parametrize("options", [{"engine": "local"}, {"lab": 3}])
def test_nothing_is_kept_about_this_machine_or_about_hosts_that_end_with_the_job(options: dict[str, Any]):
    verdict = Trial(**options).after((end(0, 1, ECC), end(1, 0)))
    assert kept() == {}
    assert not any("remembers" in note for note in verdict.notes)


def test_nvidia_smi_is_asked_after_an_error_of_cuda_and_blames_the_only_host_whose_gpu_is_lost():
    trial = Trial()
    trial.gpus = {"h2": "a GPU fell off the bus, according to nvidia-smi"}
    trial.after((end(0, 1, "CUDA error: unspecified launch failure"), end(1, -15, stopped=True)))
    assert trial.asked == [["h1", "h2"]]
    assert trial.said == ["h2 runs no more ranks of this job: a GPU fell off the bus, according to nvidia-smi"]


@pytest.mark.parametrize("message", ["bad sample", "CUDA out of memory. Tried to allocate 2.00 GiB.", ECC])
def test_nvidia_smi_is_not_asked_about_an_ordinary_failure_or_a_known_cause(message: str):
    trial = Trial()
    trial.after((end(0, 1, message), end(1, -15, stopped=True)))
    assert trial.asked == []


def crash(host: str = "h2") -> tuple[RankEnd, RankEnd]:
    return end(1, -11, host=host), end(0, -15, stopped=True)


def test_a_suspicion_is_kept_only_if_the_job_succeeds_without_the_host():
    trial = Trial()
    trial.after(crash(), crash(), (end(0, 0), end(1, 0)))
    assert trial.recovery.retired == ["h2"]
    assert kept() == {"h2": [("repeated", "its ranks failed first twice while the other hosts were fine")]}


def test_a_suspicion_that_was_wrong_is_taken_back_and_not_repeated():
    trial = Trial()
    trial.after(crash(), crash(), crash("h3"), crash("h3"), (end(0, 0), end(1, 0)))
    assert trial.recovery.retired == []
    assert trial.said[-1] == "h2 is not to blame, because the same failure happened on h3"
    assert kept() == {}


def test_a_job_that_fails_otherwise_keeps_no_suspicion():
    trial = Trial()
    trial.after(crash(), crash(), (end(0, 1, "bad sample"), end(1, -15, stopped=True)))
    assert kept() == {}


def lost(host: str, *, is_up: bool = False) -> HostLoss:
    return HostLoss(host=host, why="no answer for 5.0 s", time=3.0, is_up=is_up)


def test_a_lost_host_is_kept_and_a_network_that_is_down_is_not():
    Trial().after((lost("h2"),))
    assert kept() == {"h2": [("lost", "no answer for 5.0 s")]}
    Trial().after((lost("h1"), lost("h2")))
    Trial().after((lost("h1", is_up=True),))
    Trial(here="h2").after((lost("h1"),))
    assert list(kept()) == ["h2"]


def test_a_history_that_cannot_be_written_is_a_warning(state: Path):
    state.parent.joinpath("muster").write_text("a file, not a directory")
    trial = Trial(spares=0)
    trial.after((end(0, 1, ECC), end(1, 0)))
    assert trial.said[-1].startswith("could not keep what was learned about h1 (")


def test_a_lock_that_another_command_holds_does_not_delay_the_end_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_history, "_LOCK_LIMIT", 0.2)
    trial = Trial()
    with host_history._locked():
        begin = time.monotonic()
        trial.after((end(0, 1, ECC), end(1, 0)))
    assert time.monotonic() - begin < 5
    assert (
        trial.said[-1] == "could not keep what was learned about h1 (another command has been writing it for too long)"
    )
