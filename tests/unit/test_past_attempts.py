"""What `muster.init()` says about the attempts before."""

from __future__ import annotations

import json

from muster.hosts import parse_hosts
from muster.plan import make_plan, rank_environment
from muster.rank.world.past_attempts import attempt_number, lost_before


def test_a_rank_knows_its_attempt_and_what_ended_the_one_before() -> None:
    plan = make_plan("job", parse_hosts("a:1"), threads=[0], restarts=3, user_env={})
    first = rank_environment(plan, 0)
    assert attempt_number(first) == 0
    assert lost_before(first) == ()
    lost = ("b: connection lost", 'c: "quoted", ünusual')
    later = rank_environment(type(plan)(**{**vars(plan), "lost": lost}), 0, attempt=2)
    assert attempt_number(later) == 2
    assert lost_before(later) == lost


def test_other_launchers_and_odd_values_say_nothing() -> None:
    assert attempt_number({}) == 0
    assert attempt_number({"TORCHELASTIC_RESTART_COUNT": "x"}) == 0
    for value in ("", "{", json.dumps({"a": 1}), "3"):
        assert lost_before({"MUSTER_LOST": value}) == ()
