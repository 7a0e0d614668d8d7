"""Numbers, lists and paths as they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from muster.text import (
    age,
    bit_rate_text,
    clock,
    count,
    cut,
    duration,
    names,
    printable,
    rank_list,
    rate_text,
    short_size,
    size_text,
    tilde,
)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([2, 0, 1], "ranks 0, 1, 2"),
        ([0, 1, 2, 3, 5], "ranks 0-3, 5"),
        (range(12), "ranks 0-11"),
        (range(0, 64, 2), "ranks " + ", ".join(map(str, range(0, 32, 2))) + ", …"),
    ],
)
def test_many_ranks_are_listed_shortly(ranks: Iterable[int], words: str):
    assert rank_list(ranks) == words


def test_counts_and_names():
    assert [count(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert names(["a", "b"]) == "a, b"
    assert names([f"h{number}" for number in range(9)]) == "h0, h1, h2, h3, h4, h5 and 3 more"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (64 << 20, "64 MB"),
        (3 << 29, "1.5 GB"),
        (1023 << 20, "1023 MB"),
        (65536, "64 KB"),
    ],
)
def test_sizes_are_written_as_people_say_them(number: int, words: str):
    assert size_text(number) == words


def test_sizes_in_two_digits_are_the_same_on_hosts_of_one_kind():
    assert [size_text(number << 20, 2) for number in (31_900, 32_000, 64, 1024)] == ["31 GB", "31 GB", "64 MB", "1 GB"]


def test_rates_and_durations():
    assert [rate_text(1.183e9), rate_text(4.776e6), rate_text(4.78e11)] == ["1.18 GB/s", "4.78 MB/s", "478 GB/s"]
    assert [bit_rate_text(1e10), bit_rate_text(2.5e9), bit_rate_text(1e8)] == ["10 Gbit/s", "2.5 Gbit/s", "100 Mbit/s"]
    assert [duration(seconds) for seconds in (42.13e-6, 0.0032, 0.25, 9.1)] == ["42.1 us", "3.2 ms", "0.25 s", "9.1 s"]
    assert [age(seconds) for seconds in (0.2, 90, 150, 7300, 200_000)] == ["0s", "90s", "2m", "2h", "2d"]
    assert [clock(seconds) for seconds in (0, 59.6, 200, 90000)] == ["0:00:00", "0:01:00", "0:03:20", "25:00:00"]


def test_what_fits_a_terminal():
    assert [short_size(number) for number in (None, 12, 512 << 10, 2.1 * 2**30)] == ["", "12", "512K", "2.1G"]
    assert [cut("abcdef", width) for width in (6, 4, 1, 0)] == ["abcdef", "abc…", "…", ""]
    assert printable("a\x1b[2Jb\n") == "a [2Jb "


def test_the_home_directory_is_a_tilde():
    assert tilde(Path.home() / "runs" / "1") == "~/runs/1"
    assert tilde(Path("/nowhere")) == "/nowhere"
