"""Judges whether a host is to blame for a failed attempt: its hardware failed, or its ranks keep failing first. Pure.

A wrong accusation is worse than none: it takes a good host out of use, and hides the cause. So a host is blamed only

- if a sign of failed hardware is on it and on no other host: in the kernel's log, in a message that only hardware
  causes, in the answer of nvidia-smi after an error of CUDA, on a local disk, or by a process that the kernel does not
  let go;
- or if its ranks failed first in two attempts in a row, while all other hosts were fine. Here chance and the script
  must be ruled out, since a rank keeps its number and its data when the job restarts:

  1. Rank 0 lives on the first host, and often runs code of its own (checkpoints, logging, evaluation). What fails
     there fails on that host each time. So the same rank with an ordinary exception says nothing about its host; what
     counts is a crash in native code or an error of CUDA that no program causes.
  2. A bug that depends on the data or on the step returns at the same place after the same number of collectives
     (`is_same_failure`): that is the script, and the job is not restarted anyway. Not so before the first collective,
     where the host decides as often: a driver that does not start, a CPU without an instruction.
  3. A bug that hits ranks at random hits the same one of n hosts again in one of n cases; for two hosts that is a
     coin toss. So this is a suspicion until the host has been replaced. If the same failure then happens on another
     host (`is_cleared`), it was not the host: it may be used again and nothing is kept about it. For the same
     reason only a spare replaces such a host; without its ranks, a bug of one of them would not return.
  4. Ranks killed from outside or by the OOM killer say nothing about hardware, and neither do ranks that only lost
     their connection to another one.

Not a sign: a disk quota, a full or failing file system that other hosts share, and a full /dev/shm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from muster.controller.diagnosis import hardware_signs
from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.diagnosis.verdict import Verdict, is_same_failure


@dataclass(frozen=True, kw_only=True)
class BadHost:
    """A host that should not run ranks, and why."""

    host: str
    why: str
    """A clause about the host: `GPU 3 fell off the bus (Xid 79)`."""
    kind: Literal["hardware", "full", "repeated"] = "hardware"
    """hardware: a sign of failed hardware was seen; full: its disk was full; repeated: its ranks failed first twice."""
    signatures: tuple[str, ...] = ()
    """How its ranks failed, if nothing is proven."""

    @property
    def is_proven(self) -> bool:
        """Whether more than a suspicion is known."""
        return self.kind != "repeated"


def bad_host_of(
    verdict: Verdict,
    ends: Sequence[RankEnd],
    earlier: Sequence[Verdict],
    *,
    stuck: Collection[str] = (),
    gpus: Mapping[str, str] | None = None,
) -> BadHost | None:
    """The host to blame for a failed attempt, if there is one.

    `ends` are those of all its ranks, `earlier` the verdicts of the attempts before it, `stuck` the hosts on which the
    kernel does not let a killed process end, and `gpus` what nvidia-smi reports where `asks_gpus`, by host.
    """
    if verdict.ok:
        return None
    return _proven(verdict, ends, stuck, gpus or {}) or _failed_first_twice(verdict, ends, earlier)


def asks_gpus(verdict: Verdict) -> bool:
    """Whether a failed GPU may be the cause, so that nvidia-smi should be asked."""
    return not verdict.ok and (verdict.first is None or hardware_signs.may_be_gpus(verdict.first))


def is_cleared(suspect: BadHost, verdict: Verdict) -> bool:
    """Whether a later attempt without a suspected host shows that the host was not to blame."""
    if suspect.is_proven or verdict.ok or verdict.first is None or verdict.first.host == suspect.host:
        return False
    return verdict.signature in suspect.signatures


# --- signs of failed hardware -------------------------------------------------------------------------------------


def _proven(
    verdict: Verdict, ends: Sequence[RankEnd], stuck: Collection[str], gpus: Mapping[str, str]
) -> BadHost | None:
    first = verdict.first
    # If the script failed, what a kernel logged meanwhile is not the cause.
    is_scripts = first is not None and not first.is_symptom and hardware_signs.is_ordinary(first)
    signs = {end.host: sign for end in reversed(ends) if (sign := _sign(end, with_log=not is_scripts))}
    signs = signs or gpus
    if len(signs) == 1:
        ((host, sign),) = signs.items()
        return BadHost(host=host, why=sign, kind="full" if " was full" in sign else "hardware")
    # All hosts that wait for one file server have stuck processes; only one of them has a broken disk or driver.
    if len(stuck) == 1 and not signs and any(end.host not in stuck for end in ends):
        return BadHost(host=next(iter(stuck)), why="a process was blocked in the kernel (disk or driver)")
    return None


def _sign(end: RankEnd, *, with_log: bool) -> str:
    """The sign of failed hardware that the end of a rank shows; empty if there is none."""
    logged = hardware_signs.in_kernel_log(end) if with_log else ""
    if not end.failed or end.is_symptom:
        return logged  # it was stopped, or it lost its connection to a rank, which may be on this host
    return logged or hardware_signs.in_message(end) or hardware_signs.of_disk(end)


# --- the same host twice ------------------------------------------------------------------------------------------


def _failed_first_twice(verdict: Verdict, ends: Sequence[RankEnd], earlier: Sequence[Verdict]) -> BadHost | None:
    before = earlier[-1] if earlier else None
    first, last = verdict.first, before.first if before is not None else None
    if before is None or first is None or last is None or first.host != last.host:
        return None
    others = [end for end in ends if end.host != first.host]
    if not others or any(end.failed and not end.is_symptom for end in others):
        return None
    if (verdict.progress and is_same_failure(before, verdict)) or not (
        _says_something(first) and _says_something(last)
    ):
        return None
    machine = [hardware_signs.may_be_hardware(end) for end in (first, last)]
    if not any(machine) or (first.rank == last.rank and not all(machine)):
        return None
    return BadHost(
        host=first.host,
        why="its ranks failed first twice while the other hosts were fine",
        kind="repeated",
        signatures=(before.signature, verdict.signature),
    )


def _says_something(end: RankEnd) -> bool:
    """Whether the end of a rank may depend on its host: it was not killed from outside, and did not lose another."""
    return not end.is_symptom and (end.status > 0 or hardware_signs.may_be_hardware(end))
