"""Runs the probes of `muster check` on this host, in children that may hang or die.

One child runs them one after the other and reports each answer at once. If a probe is slow, a second child continues
with the rest; a probe that takes too long is killed without affecting the others.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from ..rank.kept_errors import traceback_of
from ..shared import light_selectors as selectors
from ..shared import processes
from ..shared.wire import LineReader, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..shared.replies import ProbeOutcome
    from ..shared.requests import Probe, Question, RunProbes

_OVERTAKE = 0.2
"""Seconds that a probe may delay the others."""

_MOST_CHILDREN = 8
"""Maximum number of children at a time; if all of them hang, further probes wait until the first is killed."""


class _Child:
    """A child that runs the probes from one of them on."""

    def __init__(self, pid: int, read: int, first: int) -> None:
        self.pid = pid
        self.read = read
        self.number = first
        """The probe that it is running."""
        self.since = time.monotonic()
        self.overtaken = False
        self.lines = LineReader()


class Probing:
    """Runs the probes of one request; replies when each has an outcome: a value, an error, or a hang."""

    def __init__(
        self,
        selector: selectors.Selector,
        send: Callable[[Mapping[str, object]], None],
        request: int,
        message: RunProbes,
        nofile: int,
    ) -> None:
        self.selector = selector
        self.send = send
        self.request = request
        self.probes = message["probes"]
        self.ask = message["ask"]
        self.nofile = nofile
        self.outcomes: dict[int, ProbeOutcome] = {}
        self.children: list[_Child] = []
        self.is_over = False
        self._go_on(0)
        self.step()

    def step(self) -> None:
        """Start another child if a probe is slow, kill probes that take too long, and reply when all are done."""
        now = time.monotonic()
        for child in list(self.children):
            waited = now - child.since
            if waited > self.probes[child.number]["limit"] and not select.select([child.read], [], [], 0)[0]:
                # Only if there is no unread answer, which may exist after this host was frozen.
                self.outcomes.setdefault(child.number, {"hung": waited})
                self._end(child)
                self._after(child)
            elif waited > _OVERTAKE and len(self.children) < _MOST_CHILDREN:
                self._after(child)
        if not self.children and not self.is_over:
            self.is_over = True
            names = [probe["name"] for probe in self.probes]
            self.send({"re": self.request, "answers": {names[i]: out for i, out in self.outcomes.items()}})

    def drop(self) -> None:
        """Kill all children without a reply."""
        self.is_over = True
        for child in list(self.children):
            self._end(child)

    def _after(self, child: _Child) -> None:
        """Continue with the probes after the current one of this child."""
        if not child.overtaken:
            child.overtaken = True
            self._go_on(child.number + 1)

    def _go_on(self, first: int) -> None:
        if first >= len(self.probes):
            return
        read, write = os.pipe()
        child = _Child(processes.fork(lambda: self._work(first, write), write), read, first)
        os.close(write)
        self.children.append(child)
        self.selector.register(read, selectors.EVENT_READ, lambda: self._on_answer(child))

    def _on_answer(self, child: _Child) -> None:
        data = os.read(child.read, 1 << 16)
        if not data:  # it died during a probe; a child without further probes is ended below
            self.outcomes.setdefault(child.number, {"error": "its process died"})
            self._end(child)
            self._after(child)
        for outcome in child.lines.feed(data):
            self.outcomes.setdefault(child.number, outcome)
            if child.overtaken or child.number + 1 == len(self.probes):
                self._end(child)
                break
            child.number += 1
            child.since = time.monotonic()
        self.step()

    def _end(self, child: _Child) -> None:
        if child in self.children:
            self.children.remove(child)
            self.selector.unregister(child.read)
            os.close(child.read)
            processes.kill_session(child.pid)

    # --- in the child ---------------------------------------------------------------------------------------

    def _work(self, first: int, write: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.nofile, hard))  # what ranks get, not the agent's own
        os.environ.update(self.ask["env"])
        try:
            os.chdir(self.ask["cwd"])
        except OSError:
            pass  # a probe reports that
        for probe in self.probes[first:]:
            begin = time.monotonic()
            try:
                outcome: ProbeOutcome = {"value": _run(probe, self.ask)}
            except Exception as error:
                outcome = {"error": f"{type(error).__name__}: {error}", "traceback": traceback_of(error)}
            outcome["seconds"] = time.monotonic() - begin
            view = memoryview(encode(outcome))
            while view:
                view = view[os.write(write, view) :]


def _run(probe: Probe, ask: Question) -> Any:
    module, _, function = probe["probe"].partition(".")
    name = f"{__package__}.probes.{module}"
    __import__(name)
    return getattr(sys.modules[name], function)(ask)
