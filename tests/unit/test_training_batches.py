"""muster.Batches: whatever happens to the number of ranks within an epoch, each of its samples is used exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from muster.rank.world.context import World
    from muster.training.batches import Batches

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@dataclass
class Place:
    """As much of a world as Batches needs."""

    rank: int
    size: int


def of_all_ranks(length: int, size: int, *, drop_last: bool = True) -> list[Batches]:
    from muster.training.batches import Batches  # imports torch, which other workers need not

    return [Batches(length, 3, cast("World", Place(rank, size)), seed=5, drop_last=drop_last) for rank in range(size)]


def train(ranks: list[Batches], steps: int) -> list[int]:
    """Let all ranks go on for this many steps, or to the end of the epoch; the samples they have used."""
    seen: list[int] = []
    for batches in ranks:
        for number, batch in enumerate(batches, 1):
            seen += batch.indices.tolist() if batch.weight else []
            if number == steps:
                break
    return seen


@given(
    length=st.integers(24, 200),
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=4),
    drop_last=st.booleans(),
)
@settings(max_examples=60)
def test_each_sample_of_an_epoch_is_used_once_however_often_the_world_changes(length, sizes, drop_last):
    seen: list[int] = []
    state = None
    undisturbed = of_all_ranks(length, sizes[0][0], drop_last=drop_last)
    for size, steps in [*sizes, (2, 1000)]:
        ranks = of_all_ranks(length, size, drop_last=drop_last)
        for batches in ranks:
            if state:
                batches.load_state_dict(state)
        if state and state["epoch"] == 1:  # the epoch ended just before this change
            break
        seen += train(ranks, steps)
        state = ranks[0].state_dict()
    assert sorted(seen) == sorted(train(undisturbed, 1000))


def test_the_epoch_after_a_change_is_as_if_nothing_had_happened():
    before = of_all_ranks(100, 4)
    train(before, 3)
    after = of_all_ranks(100, 3)
    for batches in after:
        batches.load_state_dict(before[0].state_dict())
    train(after, 1000)
    assert train(after, 1000) == train(of_all_ranks_in_epoch_1(100, 3), 1000)


def of_all_ranks_in_epoch_1(length: int, size: int) -> list[Batches]:
    ranks = of_all_ranks(length, size)
    train(ranks, 1000)
    return ranks


def test_a_position_saved_by_an_older_version_is_understood():
    (batches,) = of_all_ranks(100, 1)
    batches.load_state_dict({"epoch": 2, "position": 90, "seed": 5, "length": 100})
    assert len(batches) == 3


def test_a_run_that_an_older_version_began_keeps_its_order():
    import torch

    (batches,) = of_all_ranks(100, 1)
    batches.load_state_dict({"epoch": 2, "position": 90, "seed": 5, "length": 100, "end": 99})
    old = torch.randperm(100, generator=torch.Generator().manual_seed((5 << 32) + 2))
    (again,) = of_all_ranks(100, 1)
    again.load_state_dict(batches.state_dict())
    assert train([batches], 1000) == train([again], 1000) == old[90:99].tolist()


def test_each_seed_and_each_epoch_has_its_own_order():
    from muster.training.batches import Batches

    def order(seed: int, epoch: int = 0) -> tuple[int, ...]:
        batches = Batches(99, 99, cast("World", Place(0, 1)), seed=seed)
        batches.epoch = epoch
        return tuple(next(iter(batches)).indices.tolist())

    assert len({order(0), order(1), order(2), order(1, 1), order(2**63 - 1)}) == 5
    assert order(1) == order(1)
