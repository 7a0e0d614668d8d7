"""The attempts of a job: when each began, what ended it, and how long it took until the next one worked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.plan import Plan

if TYPE_CHECKING:
    from muster.jobs.state import AttemptState

_MOST_ATTEMPTS = 200
_FEWEST_ATTEMPTS = 20
_MOST_NAMES = 10_000
"""How many attempts are kept, the newest ones, and how many names of hosts in all of them: a state is sent whole."""


class AttemptLog:
    """The attempts so far, the last one last."""

    def __init__(self) -> None:
        self._attempts: list[AttemptState] = []

    def __len__(self) -> int:
        return len(self._attempts)

    def state(self) -> tuple[AttemptState, ...]:
        """All of them, as they are now."""
        return tuple(self._attempts)

    def take_over(self, earlier: Sequence[AttemptState], why: str, now: float) -> None:
        """Begin with the attempts of an earlier controller of the same job; `why` the last of them ended with it."""
        self._attempts = list(earlier[-_MOST_ATTEMPTS:])
        self.lost(why, now)

    def begins(self, number: int, plan: Plan, swaps: Mapping[str, str], now: float) -> None:
        """All ranks are started; a second call for the same attempt replaces the first."""
        from muster.jobs.state import AttemptState

        hosts = tuple(placement.name for placement in plan.placements)
        if self._attempts and self._attempts[-1].number == number:
            del self._attempts[-1]
        slots = tuple(placement.slots for placement in plan.placements)
        size = plan.world_size
        begun = AttemptState(number=number, begin=now, world_size=size, hosts=hosts, slots=slots, swaps=dict(swaps))
        most = max(_FEWEST_ATTEMPTS, min(_MOST_ATTEMPTS, _MOST_NAMES // len(hosts)))
        self._attempts = [*self._attempts[1 - most :], begun]

    def lost(self, why: str, now: float) -> None:
        """Note what ended the last attempt, unless that is known."""
        if self._attempts and self._attempts[-1].lost_at is None:
            self._attempts[-1] = replace(self._attempts[-1], lost_at=now, lost_to=why)

    def works(self, first_collective: float) -> None:
        """All ranks of the last attempt have finished a collective."""
        lost_at = self._attempts[-2].lost_at if len(self._attempts) > 1 else None
        if lost_at is not None and self._attempts[-1].recovery is None:
            recovery = max(0.0, first_collective - lost_at)
            self._attempts[-1] = replace(self._attempts[-1], recovery=recovery)
