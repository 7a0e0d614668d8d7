"""How a batch is divided among unequal ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.training.shares import check_shares, split

shares = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(lambda s: sum(s) > 1e-3)


@given(st.integers(0, 100_000), shares)
def test_the_parts_add_up_and_none_is_a_whole_sample_off(total, given_shares):
    parts = split(total, given_shares)
    assert sum(parts) == total
    for part, share in zip(parts, given_shares, strict=True):
        assert abs(part - total * share / sum(given_shares)) < 1 + 1e-6


@pytest.mark.parametrize(
    ("total", "given_shares", "parts"),
    [
        (10, (8, 2), [8, 2]),
        (512, (8, 2), [410, 102]),
        (7, (1, 1, 1), [3, 2, 2]),
        (1, (1, 1), [1, 0]),
        (5, (0, 1), [0, 5]),
        (0, (1, 2), [0, 0]),
    ],
)
def test_samples_are_split_by_shares(total, given_shares, parts):
    assert split(total, given_shares) == parts


def test_without_shares_all_ranks_take_the_same():
    assert check_shares(None, 3) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given_shares", "words"),
    [
        ((8, 2, 1), "got 3 shares for 2 ranks"),
        ((0, 0), "invalid shares 0,0"),
        ((-1, 2), "invalid shares -1,2"),
        ((float("nan"), 2), "invalid shares nan,2"),
        ((float("inf"), 2), "invalid shares inf,2"),
    ],
)
def test_shares_that_make_no_sense_are_refused(given_shares, words):
    with pytest.raises(UsageError, match=words):
        check_shares(given_shares, 2)
