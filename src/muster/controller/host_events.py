"""Reports what happens to the hosts of a job: silent, back, lost, or signaled by a scheduler."""

from __future__ import annotations

import signal

from muster.controller.agents import Agents
from muster.controller.events import EventStream, HostChange
from muster.controller.links.link import AgentLink
from muster.controller.recovery import Recovery
from muster.output.screen import Screen
from muster.shared.events import Broken, NewZygote, Signaled
from muster.shared.wire import ProtocolError
from muster.text import printable


class HostEvents:
    """Handles the events of hosts; an attempt handles those of ranks."""

    def __init__(self, agents: Agents, events: EventStream, screen: Screen, recovery: Recovery) -> None:
        self._agents = agents
        self._warn, self._info = screen.warning, screen.info
        self._recovery = recovery
        self.signals: set[signal.Signals] = set()
        """The signals that ranks have received from outside."""
        events.subscribe(HostChange, self._on_change)
        events.subscribe(Signaled, self._on_signal)
        events.subscribe(Broken, self._on_broken)
        events.subscribe(NewZygote, self._on_new_zygote)
        recovery.signals = self.signals

    def _on_change(self, link: AgentLink, event: HostChange) -> None:
        """Report a host that is silent, back or lost; before ranks start, a loss fails the pending request."""
        if link.lost is not None:
            if sum(other.lost is not None for other in self._agents.links if other.name == link.name) == 1:
                self._warn(f"lost {link.lost.message}")
            self._recovery.on_loss(link.name, link.lost.why, ends_all=bool(link.killed))
        elif link in self._agents.leaders:
            silent = f"has been silent for {link.silence:.1f} s"
            back = f"is back after {link.outage:.1f} s, nothing was lost"
            self._warn(f"{link.name} {silent if event['state'] == 'silent' else back}")

    def _on_new_zygote(self, link: AgentLink, event: NewZygote) -> None:
        self._info(f"{link.name}: starting a new zygote instead of the kept one: {printable(event['why'])}")

    def _on_broken(self, link: AgentLink, event: Broken) -> None:
        self._recovery.on_broken(link)

    def _on_signal(self, link: AgentLink, event: Signaled) -> None:
        """Report once that ranks received a signal from outside; all hosts report it within a moment."""
        try:
            number = signal.Signals(event["number"])
        except ValueError:
            raise ProtocolError(f"message `signal`: {event['number']} is not a signal") from None
        if number not in self.signals:
            self.signals.add(number)
            self._warn(f"the ranks on {link.name} received {number.name} from {self._agents.scheduler or 'outside'}")
