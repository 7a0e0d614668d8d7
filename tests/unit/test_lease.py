"""The lease: an agent ends its ranks before its controller replaces them, whatever happens to their messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.lease import Lease

SECONDS = 5.0
DELAYS = st.floats(0.0, 8.0) | st.just(float("inf"))


@dataclass
class Wire:
    """A direction of a connection: messages arrive in order, late or never."""

    under_way: list[tuple[float, object]] = field(default_factory=list[tuple[float, object]])

    def send(self, now: float, delay: float, message: object) -> None:
        last = self.under_way[-1][0] if self.under_way else 0.0
        self.under_way.append((max(now + delay, last), message))

    def arrived(self, now: float) -> list[object]:
        found = [message for when, message in self.under_way if when <= now]
        self.under_way = [(when, message) for when, message in self.under_way if when > now]
        return found


@given(
    st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=60),
    st.floats(-1000, 1000),
    st.floats(-1e-4, 1e-4),
)
def test_the_lease_of_the_agent_ends_before_that_of_the_controller(
    delays: list[tuple[float, float]], offset: float, drift: float
):
    lease = Lease(SECONDS, 0.0)
    there, back = Wire(), Wire()
    heard, got, count = 0.0, 0, 0  # of the controller, by the agent's clock
    for step, (to_agent, to_controller) in enumerate(delays):
        now = step * 0.5

        def controllers(when: float) -> float:
            return when * (1 + drift) + offset

        for number in back.arrived(now):
            heard, got = now, int(str(number))
        there.send(now, to_agent, (got, controllers(now), controllers(heard)))
        for ping in there.arrived(now):
            lease.confirmed(*ping, now)  # type: ignore[misc]
            count += 1
            back.send(now, to_controller, count)
            lease.sent(count, now)
        assert lease.granted <= heard + 0.02, "the controller has heard the agent since the lease was granted"


def test_a_connection_that_works_keeps_the_lease_however_long_its_queue_is():
    lease = Lease(SECONDS, 0.0)
    lease.sent(1, 0.0)
    lease.confirmed(1, 100.0, 100.0, 0.01)
    for second in range(1, 60):  # nothing new is acknowledged, because much output is before it
        lease.confirmed(1, 100.0 + second, 99.9 + second, second + 0.01)
        assert not lease.is_over(second + 0.4)


def test_a_controller_that_hears_nothing_does_not_extend_the_lease():
    lease = Lease(SECONDS, 0.0)
    lease.sent(1, 0.0)
    lease.confirmed(1, 100.0, 100.0, 0.01)
    for second in range(1, 10):
        lease.confirmed(1, 100.0 + second, 100.0, float(second))
    assert lease.granted == pytest.approx(0.0, abs=0.01)
    assert not lease.is_over(4.4)
    assert lease.is_over(4.6)
    assert lease.end == pytest.approx(SECONDS, abs=0.01)


def test_an_agent_that_slept_holds_its_ranks_until_the_controller_confirms_them():
    lease = Lease(SECONDS, 0.0)
    lease.sent(1, 0.0)
    lease.turn(0.0)
    lease.turn(60.0)
    assert lease.is_held(60.0)
    assert not lease.is_over(60.0)
    lease.confirmed(1, 100.0, 100.0, 60.1)  # an old message that had waited in the buffers
    assert lease.is_held(60.2)
    lease.sent(2, 60.2)
    lease.confirmed(2, 160.3, 160.3, 60.4)
    assert not lease.is_held(60.5)
    assert not lease.is_over(60.5)


def test_an_agent_that_slept_and_hears_nothing_ends_its_ranks_soon():
    lease = Lease(SECONDS, 0.0)
    for now in range(60, 70):  # a scheduler may continue the controller later
        lease.turn(now)
        assert lease.is_held(now)
    lease.turn(70.1)
    assert lease.is_over(70.1)


def test_a_short_sleep_holds_nothing():
    lease = Lease(SECONDS, 0.0)
    lease.turn(0.0)
    lease.turn(3.0)
    assert not lease.is_held(3.0)
