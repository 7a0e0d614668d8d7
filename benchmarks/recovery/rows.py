"""The rows of the table: what is injected into a job of Muster, and what the same fault does to a peer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.commands import BIN
from benchmarks.experiment import Failed
from benchmarks.recovery import moments
from benchmarks.recovery.faults import FAULT, now
from benchmarks.recovery.peers import Peer, how_it_went
from benchmarks.recovery.stage import Stage, Trial

WORKERS = 5
"""Hosts beside that of the controller: four with two ranks each, and a spare."""
RANKS = 2
RECOVERY_LIMIT = 90.0
"""Seconds after which a row of Muster has failed."""

Outcome = float | None
"""Seconds until the job had recovered; None in rows that only succeed or fail."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One event."""

    name: str
    event: str
    until: str
    play: Callable[[Stage], Outcome]
    """Run one job and return its figure; raise Failed if anything is wrong."""
    must: float | None = None
    """Maximum number of seconds."""
    goal: float | None = None
    peer: Callable[[Stage, Peer], str] | None = None
    """Run the same with a peer, and describe the result."""


COMPLETE = "the job ends with 0, output complete"
FIRST = "first all_reduce of the new world"


# --- outages ----------------------------------------------------------------------------------------------


def undisturbed(trial: Trial) -> None:
    """Let the job end; it must have had one attempt, and printed every line once."""
    seen = trial.saved(4)
    trial.wait_for("more steps", lambda: trial.saved(4) >= seen + 8, RECOVERY_LIMIT)
    if code := trial.finish():
        raise trial.controller.failed(f"ended with code {code}")
    found = trial.moments()
    if attempts := {moment.attempt for moment in found} - {0}:
        raise Failed(f"the ranks were restarted {len(attempts)} times")
    if wrong := moments.incomplete(trial.words, found):
        raise Failed(wrong)
    for rank in range(4):
        (log,) = trial.folder.glob(f"muster/jobs/*/attempt-0/rank-{rank}.log")
        text = "".join(f"[h {rank}] {line}\n" for line in log.read_text().splitlines())
        mine = [moment for moment in found if moment.rank == rank]
        if f"[h {rank}] step {mine[-1].step}\n" not in text or text.count(" step ") != mine[-1].step:
            raise Failed(f"the log of rank {rank} has {text.count(' step ')} of {mine[-1].step} lines")


def cut(trial: Trial, seconds: float) -> None:
    """Unplug the cable of a host for a while."""
    trial.stage.lab.cut("h2")
    trial.read_for(seconds)
    trial.stage.lab.heal("h2")


def cut_for(seconds: float) -> Callable[[Stage], Outcome]:
    """Run a job and unplug the cable of one host meanwhile."""

    def play(stage: Stage) -> Outcome:
        with stage.muster(ranks=2, hosts=2) as trial:
            trial.wait_for_start(4)
            cut(trial, seconds)
            undisturbed(trial)
        return None

    return play


def cut_peer(seconds: float) -> Callable[[Stage, Peer], str]:
    """The same for a peer."""

    def play(stage: Stage, peer: Peer) -> str:
        with peer.start(stage, nodes="2", hosts=2, ranks=2, timeout=False) as trial:
            trial.wait_for_start(4)
            cut(trial, seconds)
            try:
                seen = trial.saved(4)
                trial.wait_for("more steps", lambda: trial.saved(4) >= seen + 8, RECOVERY_LIMIT)
                code = trial.finish()
            except Failed as error:
                return str(error).partition(":")[0]
            restarted = len({moment.group for moment in trial.moments()} - {0}) > 1
            return f"code {code}{', restarted' if restarted else ''}"

    return play


def stopped_controller(stage: Stage) -> Outcome:
    """Stop the controller for 14 s, as Ctrl-Z or a suspended job does."""
    with stage.muster(ranks=2, hosts=2) as trial:
        trial.wait_for_start(4)
        pid = trial.muster_pid()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(14)
        os.kill(pid, signal.SIGCONT)
        trial.controller.wake()
        undisturbed(trial)
    return None


def sleeping_laptop(stage: Stage) -> Outcome:
    """Freeze the whole machine of the controller for 14 s."""
    with stage.muster(ranks=2, hosts=2) as trial:
        trial.wait_for_start(4)
        stage.lab.freeze(stage.controller)
        time.sleep(14)
        stage.lab.thaw(stage.controller)
        undisturbed(trial)
    return None


def break_connection(trial: Trial) -> float:
    """Kill the ssh that connects the controller to an agent; seconds until a later step of that host is shown."""
    pid = trial.ssh_pid("h2")
    begin = now(lambda: os.kill(pid, signal.SIGKILL))
    # The ranks have recorded their step at most 50 ms ago, so two steps more were made after the kill.
    later = trial.last("h2").step + 2
    trial.wait_for("output from h2", lambda: trial.shown("h2") >= later, RECOVERY_LIMIT)
    return time.time() - begin


def broken_connection(stage: Stage) -> Outcome:
    """Run a job and kill one ssh connection; return the seconds until output arrives again."""
    with stage.muster(ranks=2, hosts=2) as trial:
        trial.wait_for_start(4)
        seconds = break_connection(trial)
        undisturbed(trial)
    return seconds


# --- losses -----------------------------------------------------------------------------------------------


def recovered(trial: Trial, begin: float) -> float:
    """Seconds until the new world works; the job must then end well, and no old rank may have written."""
    seconds = trial.wait_for_recovery(begin, RECOVERY_LIMIT)
    trial.wait_for("more steps", lambda: trial.moments()[-1].time > begin + seconds + 1, RECOVERY_LIMIT)
    if code := trial.finish():
        raise trial.controller.failed(f"ended with code {code}")
    if old := moments.stale(trial.moments()):
        raise Failed(f"rank {old[0].rank} of attempt {old[0].attempt} wrote after the next attempt had started")
    return seconds


def loss(fault: str, victim: str, *options: str, hosts: int) -> Callable[[Stage], Outcome]:
    """Inject a fault that costs a host."""

    def play(stage: Stage) -> Outcome:
        ranks = RANKS * 4
        with stage.muster(*options, ranks=RANKS, hosts=hosts) as trial:
            trial.wait_for_start(ranks)
            return recovered(trial, FAULT[fault].strike(trial, victim))

    return play


def peer_loss(fault: str, *, nodes: str, hosts: int, first: bool = False) -> Callable[[Stage, Peer], str]:
    """The same for a peer; which host is its spare is known only when it runs."""

    def play(stage: Stage, peer: Peer) -> str:
        with peer.start(stage, nodes=nodes, hosts=hosts, ranks=RANKS) as trial:
            trial.wait_for_start(RANKS * 4)
            others = [host for host in (trial.host_of(rank) for rank in range(RANKS * 4)) if host != "h1"]
            return how_it_went(trial, FAULT[fault].strike(trial, "h1" if first else others[0]))

    return play


def drained(stage: Stage) -> Outcome:
    """`muster drain` with a script that needs 1 s to save; no step may be lost."""
    with stage.muster("--spares", "1", "--restarts", "20", ranks=RANKS) as trial:
        trial.wait_for_start(8)
        job = next(trial.folder.glob("muster/jobs/*")).name
        begin = time.time()
        with trial.beside([str(BIN / "muster"), "drain", job, "h2", "--in", "30s"]) as command:
            trial.wait_for("the spare", lambda: moments.begun(trial.moments(), begin) is not None, RECOVERY_LIMIT)
            if command.finish(30)[1]:
                raise command.failed("ended with an error")
        seconds = recovered(trial, begin)
        found = trial.moments()
        last = max(moment.step for moment in found if moment.attempt == 0)
        went_on = min(moment.step for moment in found if moment.attempt == 1 and moment.what == "first")
        if went_on < last:
            raise Failed(f"{last - went_on} steps were lost")
    return seconds


SPARE = ("--spares", "1", "--restarts", "20")
SHRINK = ("--min-hosts", "3", "--restarts", "20")

ROWS = (
    Row(
        name="cut_6",
        event="network of a host cut for 6 s",
        until=COMPLETE,
        play=cut_for(6),
        peer=cut_peer(6),
    ),
    Row(name="cut_15", event="network of a host cut for 15 s", until=COMPLETE, play=cut_for(15), peer=cut_peer(15)),
    Row(name="stopped", event="controller stopped for 14 s", until=COMPLETE, play=stopped_controller),
    Row(name="lid", event="machine of the controller frozen for 14 s", until=COMPLETE, play=sleeping_laptop),
    Row(
        name="ssh",
        event="ssh connection to an agent killed",
        until="output of that host again, complete",
        play=broken_connection,
        goal=1.0,
    ),
    Row(
        name="power",
        event="power of a host cut, one spare",
        until=FIRST,
        play=loss("power", "h2", *SPARE, hosts=5),
        must=7.5,
        goal=6.5,
        peer=peer_loss("power", nodes="4", hosts=5),
    ),
    Row(
        name="first",
        event="power of the host of rank 0 cut, one spare",
        until=FIRST,
        play=loss("power", "h1", *SPARE, hosts=5),
        must=7.5,
        goal=6.5,
        peer=peer_loss("power", nodes="4", hosts=5, first=True),
    ),
    Row(
        name="agent",
        event="agent killed, one spare",
        until=FIRST,
        play=loss("agent", "h2", *SPARE, hosts=5),
        must=1.0,
        goal=0.6,
        peer=peer_loss("agent", nodes="4", hosts=5),
    ),
    Row(
        name="shrink",
        event="power of a host cut, no spare, shrink",
        until=FIRST,
        play=loss("power", "h2", *SHRINK, hosts=4),
        must=7.5,
        goal=6.5,
        peer=peer_loss("power", nodes="3:4", hosts=4),
    ),
    Row(name="drain", event="`muster drain`, the script saves in 1 s", until=FIRST, play=drained, must=2.5),
)
