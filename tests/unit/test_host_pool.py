"""Which hosts run the next attempt after some were lost."""

from __future__ import annotations

from dataclasses import replace

from muster.controller.host_pool import Member, Seating, Shortage, first_seats, next_seating, spares_of, what_changes
from muster.hosts import parse_hosts
from muster.plan import Plan, make_plan

HOSTS = [Member(name=name, slots=2) for name in ("a", "b", "c", "d")]


def away(*names: str) -> list[Member]:
    return [replace(host, standing="away") if host.name in names else host for host in HOSTS]


def test_the_last_hosts_are_spares() -> None:
    seats = first_seats(HOSTS, 1)
    assert [seat.host for seat in seats] == ["a", "b", "c"]
    assert [spare.name for spare in spares_of(HOSTS, seats)] == ["d"]


def test_a_spare_takes_the_place_of_a_lost_host_and_the_others_keep_theirs() -> None:
    whole = first_seats(HOSTS, 1)
    found = next_seating(away("a"), whole, whole=whole)
    assert isinstance(found, Seating)
    assert [seat.host for seat in found.seats] == ["d", "b", "c"]
    assert found.swaps == (("a", "d"),)


def test_without_a_spare_and_min_hosts_the_job_cannot_continue() -> None:
    whole = first_seats(HOSTS, 0)
    assert next_seating(away("b"), whole, whole=whole) == Shortage(missing=("b",))


def test_the_job_shrinks_to_the_remaining_hosts_but_not_below_min_hosts() -> None:
    whole = first_seats(HOSTS, 0)
    found = next_seating(away("b"), whole, whole=whole, min_hosts=3)
    assert isinstance(found, Seating)
    assert [seat.host for seat in found.seats] == ["a", "c", "d"]
    assert found.dropped == ("b",)
    assert isinstance(next_seating(away("b", "c"), found.seats, whole=whole, min_hosts=3), Shortage)


def test_a_returned_host_fills_its_place_only_when_the_job_may_grow() -> None:
    whole = first_seats(HOSTS, 0)
    small = next_seating(away("b"), whole, whole=whole, min_hosts=2)
    assert isinstance(small, Seating)
    same = next_seating(HOSTS, small.seats, whole=whole, min_hosts=2)
    grown = next_seating(HOSTS, small.seats, whole=whole, min_hosts=2, grow=True)
    assert isinstance(same, Seating)
    assert isinstance(grown, Seating)
    assert [seat.host for seat in same.seats] == ["a", "c", "d"]
    assert grown.seats == whole


def test_a_spare_with_too_few_slots_is_not_used() -> None:
    members = [*HOSTS[:2], Member(name="small", slots=1)]
    whole = first_seats(members, 1)
    lost = [replace(members[0], standing="away"), *members[1:]]
    assert next_seating(lost, whole, whole=whole) == Shortage(missing=("a",))


def test_a_retired_host_runs_no_ranks_although_its_agent_is_up() -> None:
    whole = first_seats(HOSTS, 1)
    members = [replace(HOSTS[0], standing="retired"), *HOSTS[1:]]
    found = next_seating(members, whole, whole=whole)
    assert isinstance(found, Seating)
    assert [seat.host for seat in found.seats] == ["d", "b", "c"]


def plan(*hosts: str) -> Plan:
    return make_plan("job", parse_hosts(",".join(hosts)), threads=[0] * len(hosts), restarts=0, user_env={})


def test_a_restart_says_which_spare_replaces_which_ranks() -> None:
    changes = what_changes([("b", "d")], plan("a:2", "b:2", "c:2"), plan("a:2", "d:2", "c:2"), None)
    assert changes == "spare d replaces b (ranks 2, 3)"


def test_a_restart_says_how_the_world_shrinks_and_grows() -> None:
    whole, small = plan("a:2", "b:2"), plan("a:2")
    assert what_changes([], whole, small, 1) == "1 host left, world size 4 -> 2 (--min-hosts 1)"
    assert what_changes([], small, whole, 1) == "2 hosts again, world size 2 -> 4"
    assert what_changes([], whole, whole, 1) == ""
