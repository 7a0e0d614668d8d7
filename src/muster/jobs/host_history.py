"""What earlier jobs learned about hosts: kept in the state directory, shown at the next start, used by --avoid-bad.

A host is known by what the user types for it (`gpu01`, `me@gpu01`, `ssh://gpu01:2222`), because that is all that is
known before it is connected. Two machines with one name, in two clusters of one user, therefore share a history; the
history shows the job that left each entry.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from muster.home import state_folder
from muster.hosts import Host
from muster.job import JOB_ID
from muster.jobs.kept_files import read_regular
from muster.text import count, tilde

KEPT_FOR = {"hardware": 30 * 86400.0, "repeated": 30 * 86400.0, "lost": 30 * 86400.0, "full": 86400.0}
"""Seconds after which an incident is forgotten, by its kind; a full disk is noticed and cleaned up by people."""

MOST_INCIDENTS = 20
"""Incidents that are kept of one host."""

MOST_HOSTS = 1000
"""Hosts that are kept, those with the newest incidents."""

LOST_OFTEN = 2
"""Jobs that must have lost a host before it counts as bad: once may be a reboot, or the network."""

_LARGEST = 8 << 20
"""Bytes; a larger file is not read."""

_LOCK_LIMIT = 2.0
"""Seconds to wait for another command that writes the history."""

_LONGEST = 200
"""Characters of a sentence that are kept."""

Kind = Literal["hardware", "full", "repeated", "lost"]
"""hardware: a sign of failed hardware; full: its disk was full; repeated: its ranks failed first twice; lost: no answer
for longer than --lost-after."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What happened on a host once."""

    time: float
    """In seconds since 1970."""
    kind: Kind
    what: str
    """A clause about the host: `GPU 3 fell off the bus (Xid 79)`."""
    job: str
    """The id of the job that noticed it."""


@dataclass(frozen=True, kw_only=True)
class History:
    """The incidents of all hosts, the newest last."""

    hosts: Mapping[str, tuple[Incident, ...]] = field(default_factory=dict[str, tuple[Incident, ...]])
    """By the key of the host."""

    def bad(self, host: Host, now: float) -> str:
        """Why a host counts as bad, as `GPU 3 fell off the bus 2 h ago (job train-3f9a)`; empty if it does not."""
        recent = [one for one in self.hosts.get(key_of(host), ()) if _is_recent(one, now)]
        certain = [one for one in recent if one.kind != "lost"]
        losses = {one.job: one for one in recent if one.kind == "lost"}
        if certain:
            last = certain[-1]
            return f"{last.what} {_ago(now - last.time)} ago (job {_short(last.job)})"
        if len(losses) >= LOST_OFTEN:
            last = list(losses.values())[-1]
            jobs = count(len(losses), "job")
            return f"lost in {jobs}, the last time {_ago(now - last.time)} ago (job {_short(last.job)})"
        return ""


def key_of(host: Host) -> str:
    """How a host is known: as typed, without its number of ranks."""
    return str(replace(host, slots=None, gpus=None))


def path() -> Path:
    """The file with the history."""
    return state_folder() / "hosts.json"


def read(warn: Callable[[str], None]) -> History:
    """The history; a damaged file counts as empty, with a warning."""
    try:
        data = json.loads(read_regular(path(), _LARGEST))
        from muster.jobs.decode import decode  # most users have no history

        return decode(History, data)
    except FileNotFoundError:
        return History()
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged"
        warn(f"could not read the history of hosts in {tilde(path())} ({why}); delete the file to start a new one")
        return History()


def remember(host: Host, incident: Incident) -> None:
    """Keep an incident; OSError if that is not possible."""
    if host.pod:
        return  # the next pod of this name may run on another machine
    with _locked():
        known = dict(read(_ignore).hosts)
        before = [one for one in known.get(key_of(host), ()) if (one.job, one.what) != (incident.job, incident.what)]
        known[key_of(host)] = (*before, replace(incident, what=incident.what[:_LONGEST]))
        _write(known, incident.time)


def forget(hosts: Iterable[Host]) -> None:
    """Forget all incidents of these hosts; OSError if that is not possible."""
    keys = {key_of(host) for host in hosts}
    with _locked():
        known = read(_ignore).hosts
        if not keys.isdisjoint(known):
            _write({key: incidents for key, incidents in known.items() if key not in keys}, time.time())


def _write(known: Mapping[str, Sequence[Incident]], now: float) -> None:
    """Replace the file in one step: a reader sees the old or the new one, and so does everybody after a crash."""
    kept = {
        key: [one for one in incidents if _is_recent(one, now)][-MOST_INCIDENTS:] for key, incidents in known.items()
    }
    newest = sorted((key for key, incidents in kept.items() if incidents), key=lambda key: kept[key][-1].time)
    data = {"version": 1, "hosts": {key: [vars(one) for one in kept[key]] for key in newest[-MOST_HOSTS:]}}
    new = path().with_name(f".hosts.json-{os.getpid()}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(data, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, path())
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextmanager
def _locked() -> Generator[None]:
    """Keep other commands of this user from writing meanwhile; OSError if one of them takes too long."""
    path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path().with_name("hosts.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        give_up = time.monotonic() + _LOCK_LIMIT
        while not _has_locked(file):
            if time.monotonic() > give_up:
                raise TimeoutError(None, "another command has been writing it for too long")
            time.sleep(0.01)
        yield
    finally:
        os.close(file)


def _has_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ignore(text: str) -> None:
    """Ignore a damaged file where it is replaced."""


def _is_recent(incident: Incident, now: float) -> bool:
    return now - incident.time < KEPT_FOR[incident.kind]


def _ago(seconds: float) -> str:
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days"
    if seconds >= 5400:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


def _short(job_id: str) -> str:
    """`train-3f9a`: the id of a job without its time, which all commands accept."""
    parts = JOB_ID.fullmatch(job_id)
    return f"{parts['name']}-{parts['end']}" if parts is not None else job_id


def bad_among(hosts: Collection[Host], history: History, now: float) -> dict[Host, str]:
    """The hosts that count as bad, and why."""
    return {host: why for host in hosts if (why := history.bad(host, now))}
