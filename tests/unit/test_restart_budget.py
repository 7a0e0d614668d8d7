"""How many restarts are left after which failures."""

from __future__ import annotations

from muster.controller.diagnosis.verdict import Verdict
from muster.controller.restart_budget import RestartBudget


def failure(*, place: str = "train.py:8", progress: int = 0) -> Verdict:
    return Verdict(exit_code=1, signature=f"{place} RuntimeError", progress=progress, can_restart=True)


def test_failures_without_progress_use_the_restarts_up() -> None:
    budget = RestartBudget(limit=2)
    budget.note(0, has_saved=False)
    assert budget.spend(None)
    budget.note(0, has_saved=False)
    assert budget.spend(None)
    budget.note(0, has_saved=False)
    assert not budget.spend(None)


def test_a_failure_after_more_steps_than_ever_is_free() -> None:
    budget = RestartBudget(limit=1)
    for steps in (10, 20, 30):
        budget.note(steps, has_saved=False)
        assert budget.spend(None)
        assert budget.used == 1
    budget.note(30, has_saved=False)
    assert not budget.spend(None)


def test_a_failure_after_a_new_checkpoint_is_free_however_few_steps_were_made() -> None:
    budget = RestartBudget(limit=1)
    budget.note(1000, has_saved=False)
    assert budget.spend(None)
    budget.note(5, has_saved=True)
    assert budget.spend(None)


def test_a_checkpoint_before_the_first_step_is_no_progress() -> None:
    budget = RestartBudget(limit=1)
    assert budget.spend(None)
    budget.note(0, has_saved=True)
    assert not budget.spend(None)


def test_the_same_failure_at_the_same_step_is_repeated_whatever_was_lost_in_between() -> None:
    budget = RestartBudget(limit=9)
    budget.spend(failure(progress=7))
    assert budget.is_repeated(failure(progress=7))
    assert not budget.is_repeated(failure(progress=8))
    assert not budget.is_repeated(failure(place="train.py:9", progress=7))
    budget.spend(None)  # the loss of a host
    assert budget.is_repeated(failure(progress=7))
