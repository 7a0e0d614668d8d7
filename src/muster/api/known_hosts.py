"""Applies what earlier jobs learned about hosts to a new one: shows it, and leaves bad hosts out with --avoid-bad."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from muster.engines.engine import Choice
from muster.errors import UsageError
from muster.hosts import Host
from muster.jobs import host_history
from muster.spec import RunSpec
from muster.text import count, names

_MOST_LINES = 8
"""Hosts that get a line of their own."""


def apply_history(spec: RunSpec, choice: Choice) -> tuple[Choice, tuple[str, ...]]:
    """The hosts to use, and the lines to show about those that are known to be bad."""
    if spec.lab:
        return choice, ()  # its hosts are new
    damaged: list[str] = []
    history = host_history.read(damaged.append)
    bad = host_history.bad_among(choice.hosts, history, time.time())
    if not spec.avoid_bad:
        return choice, (*damaged, *_lines(bad, "{}: {}; use --avoid-bad to leave it out"))
    kept = tuple(host for host in choice.hosts if host not in bad)
    _check_enough(spec, kept, bad)
    return replace(choice, hosts=kept), (*damaged, *_lines(bad, "{} is left out (--avoid-bad): {}"))


def _lines(bad: Mapping[Host, str], sentence: str) -> list[str]:
    lines = [sentence.format(host_history.key_of(host), why) for host, why in list(bad.items())[:_MOST_LINES]]
    more = [host_history.key_of(host) for host in list(bad)[_MOST_LINES:]]
    return [*lines, *([f"and {count(len(more), 'more bad host')}: {names(more, 20)}"] if more else [])]


def _check_enough(spec: RunSpec, kept: tuple[Host, ...], bad: Mapping[Host, str]) -> None:
    needed = max(spec.spares + 1, spec.min_hosts or 1)
    if not bad or len(kept) >= needed:
        return
    left = names([f"{host_history.key_of(host)} ({why})" for host, why in bad.items()], 4)
    why = f"--min-hosts {spec.min_hosts}" if needed == spec.min_hosts else f"--spares {spec.spares}"
    need = f", but {why} needs {needed}" if needed > 1 else ""
    typed = ",".join(host_history.key_of(host) for host in bad)
    raise UsageError(
        f"--avoid-bad leaves {count(len(kept), 'host') if kept else 'no host'}{need}: it leaves out {left}",
        hint=f"add hosts, or check these: hosts that pass `muster check --deep -H {typed}` are used again",
    )
