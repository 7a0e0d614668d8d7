"""`muster bench`: sizes, bandwidths, tables and figures, from synthetic measurements."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.bench.bandwidth import OPERATIONS, bus_bandwidth
from muster.bench.collect import MARKER, Collector, pcie_bandwidth
from muster.bench.figure import bandwidth_figure, efficiency_figure
from muster.bench.measurement_table import header, matrices, row_line
from muster.bench.measurements import Pair, Rank, Report, Row
from muster.bench.ranks.pair_schedule import chosen_ranks, rounds
from muster.bench.result_files import as_png, save
from muster.bench.sizes import read_size, sizes_between
from muster.errors import MusterError, UsageError

# --- sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("64K", 65536), ("1m", 1 << 20), ("1G", 1 << 30), ("16MB", 16 << 20), ("1GiB", 1 << 30)],
)
def test_sizes_are_read_in_steps_of_1024(text: str, size: int):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-8", "1.5M", "1T", "lots", "9" * 40])
def test_what_is_not_a_size_is_refused(text: str):
    with pytest.raises(UsageError, match="invalid size `"):
        read_size(text)


def test_the_default_sizes_go_from_8_bytes_to_a_gigabyte():
    sizes = sizes_between(8, 1 << 30, 8)
    assert len(sizes) == 10
    assert (sizes[0], sizes[1], sizes[-1]) == (8, 64, 1 << 30)


def test_the_largest_size_is_measured_even_if_no_step_hits_it():
    assert sizes_between(8, 100, 4) == (8, 32, 100)
    assert sizes_between(1 << 20, 1 << 20, 8) == (1 << 20,)


def test_a_smallest_size_above_the_largest_is_refused():
    with pytest.raises(UsageError, match=r"\(2 MB\) is larger than the largest \(1 MB\)"):
        sizes_between(2 << 20, 1 << 20, 2)


# --- bandwidth ------------------------------------------------------------------------------------------------

# The functions ...GetBw of nccl-tests, src/*.cu, for 1 GB in 10 ms on 8 ranks.
NCCL_TESTS = {
    "all-reduce": 1e11 * 2 * 7 / 8,
    "all-gather": 1e11 * 7 / 8,
    "reduce-scatter": 1e11 * 7 / 8,
    "broadcast": 1e11,
    "all-to-all": 1e11 * 7 / 8,
    "send-recv": 1e11,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_bus_bandwidth_is_that_of_nccl_tests(operation: str):
    assert bus_bandwidth(operation, 10**9, 0.01, ranks=8) == pytest.approx(NCCL_TESTS[operation], rel=1e-12)


def test_one_rank_has_no_bus_for_what_it_would_share():
    assert [bus_bandwidth(operation, 1000, 1.0, ranks=1) for operation in OPERATIONS] == [0, 0, 0, 1000, 0, 1000]


def test_pcie_carries_what_its_generation_leaves_after_its_code():
    assert pcie_bandwidth(32e9, 16) == pytest.approx(63.0e9, rel=1e-3)  # generation 5
    assert pcie_bandwidth(5e9, 8) == pytest.approx(4.0e9)  # generation 2


def test_time_is_the_median_and_spread_the_middle_half_of_the_blocks():
    row = Row(operation="all-reduce", size=8, count=2, type="float", ranks=2, seconds=(1, 2, 3, 4, 100), wrong=0)
    assert row.time == 3
    assert row.spread == pytest.approx(2 / 3)


# --- tables ---------------------------------------------------------------------------------------------------


def row(operation: str = "all-reduce", size: int = 1 << 20, seconds: float = 0.001, wrong: int = 0) -> Row:
    return Row(
        operation=operation, size=size, count=size // 4, type="float", ranks=2, seconds=(seconds,) * 3, wrong=wrong
    )


def report(*rows: Row, pairs: tuple[Pair, ...] = (), hosts: tuple[str, ...] = ("h1", "h2")) -> Report:
    ranks = tuple(Rank(number=number, host=host, copies={"memory": 5e9}) for number, host in enumerate(hosts))
    return Report(
        backend="gloo",
        device="cpu",
        torch="2.13",
        nccl="",
        ranks=ranks,
        rows=rows,
        pairs=pairs,
        room=1 << 30,
        narrowest=0,
    )


def test_the_table_has_the_columns_of_nccl_tests():
    lines = [*header("all-reduce"), row_line(row()), row_line(row(size=1 << 30, seconds=0.5, wrong=12))]
    assert lines == [
        "# all-reduce",
        "#       size       count   type       time spread    algbw    busbw  wrong",
        "#        (B)  (elements)              (us)    (%)   (GB/s)   (GB/s)",
        "     1048576      262144  float     1000.0    0.0     1.05     1.05      0",
        "  1073741824   268435456  float   500000.0    0.0     2.15     2.15     12",
    ]


def test_the_matrices_say_who_sends_and_who_receives():
    pairs = (Pair(a=0, b=1, latency=42.1e-6, there=1.1e9, back=0.9e9),)
    assert matrices(pairs, report(pairs=pairs).ranks) == [
        "# latency of 8 bytes, one way (us)",
        "#       h1    h2",
        "  h1     -  42.1",
        "  h2  42.1     -",
        "# bandwidth from the rank of the row to the rank of the column (GB/s)",
        "#      h1   h2",
        "  h1    -  1.1",
        "  h2  0.9    -",
    ]


def test_ranks_that_share_a_host_are_distinguished_in_the_matrix():
    pairs = (Pair(a=0, b=1, latency=1e-6, there=1e9, back=1e9),)
    text = "\n".join(matrices(pairs, report(hosts=("box", "box"), pairs=pairs).ranks))
    assert "box 0" in text
    assert "box 1" in text


# --- which pairs ----------------------------------------------------------------------------------------------


@given(st.integers(min_value=2, max_value=40))
def test_every_pair_is_measured_once_and_no_rank_is_in_two_at_a_time(count: int):
    schedule = list(rounds(list(range(count))))
    met = [pair for pairs in schedule for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for pairs in schedule:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))


def test_above_16_ranks_one_represents_its_host():
    assert chosen_ranks([0] * 8 + [1] * 8) == list(range(16))
    assert chosen_ranks([0] * 8 + [1] * 8 + [2] * 8) == [0, 8, 16]
    assert chosen_ranks([0] * 32) == list(range(16))
    assert len(chosen_ranks(list(range(100)))) == 64


# --- records and files ----------------------------------------------------------------------------------------

RECORDS = [
    {"t": "world", "ranks": [{"host": 0}, {"host": 1, "gpu": "X", "pcie": {"transfers": 16e9, "lanes": 16}}]}
    | {"backend": "gloo", "device": "cpu", "torch": "2.13", "nccl": "", "threads": 1},
    {"t": "room", "size": 1000, "rank": 1},
    {"t": "at", "what": "all-reduce", "size": 8, "done": 0, "of": 1},
    {"t": "row", "operation": "all-reduce", "size": 8, "count": 2, "type": "float", "seconds": [1e-4], "wrong": 0},
    {"t": "left_out", "operation": "all-reduce", "size": 64, "why": "time", "seconds": 3.0},
    {"t": "pair", "a": 0, "b": 1, "latency": 1e-5, "there": 1e9, "back": 2e9},
    {"t": "rank", "rank": 0, "copies": {"memory": 5e9}, "carriers": []},
    {"t": "rank", "rank": 1, "copies": {"memory": 4e9}}
    | {"carriers": [{"name": "eth0", "speed": 1e10, "virtual": False, "mtu": 1500}]},
]


def test_what_rank_0_prints_becomes_the_report():
    collector = Collector()
    assert collector.take("a line of some library") is None
    for record in [*RECORDS, {"t": "end"}]:
        assert collector.take(MARKER + json.dumps(record)) == record
    found = collector.report(["a", "b"])
    assert found.hosts == ("a", "b")
    assert found.rows[0].ranks == 2
    assert found.ranks[1].carriers[0].speed == 1e10
    assert found.ranks[1].pcie == pytest.approx(31.5e9, rel=1e-3)
    assert found.left_out[0].seconds == 3.0
    assert (found.room, found.narrowest) == (1000, 1)
    json.dumps(found.as_data())


def test_a_run_that_broke_off_gives_no_report():
    collector = Collector()
    for record in RECORDS:
        collector.take(MARKER + json.dumps(record))
    with pytest.raises(MusterError, match="exited before all measurements were complete"):
        collector.report(["a", "b"])


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_figure_has_a_curve_for_each_operation_and_a_cell_for_each_pair():
    pairs = (Pair(a=0, b=1, latency=1e-5, there=1.1e9, back=2.2e9),)
    svg = bandwidth_figure(report(row(), row(size=8), row("broadcast"), pairs=pairs, hosts=("<h1>", "h2")))
    assert svg.count("<polyline") == 2
    assert {"all-reduce", "broadcast", "<h1>", "1.1", "2.2", "8 B"} <= set(texts(svg))


def test_a_figure_of_one_rank_says_that_nothing_was_sent():
    assert "no data was transferred between ranks" in texts(bandwidth_figure(report(hosts=("h1",))))


def test_the_figure_of_scaling_shows_both_kinds_by_ranks():
    svg = efficiency_figure({"weak": {1: 1.0, 2: 0.9, 4: 1.1}, "strong": {1: 1.0, 2: 0.7}}, "Efficiency of x")
    assert svg.count("<polyline") == 2
    assert {"1", "2", "4", "100 %", "120 %", "weak", "strong"} <= set(texts(svg))


def test_json_and_svg_are_always_written_and_png_only_where_a_program_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    svg = bandwidth_figure(report(row()))
    assert save(tmp_path / "new", "bench", {"a": 1}, svg) == [tmp_path / "new/bench.json", tmp_path / "new/bench.svg"]
    converter = tmp_path / "rsvg-convert"
    converter.write_text(
        '#!/bin/sh\nfor word; do case $word in --output=*) echo png > "${word#--output=}";; esac; done\n'
    )
    converter.chmod(0o755)
    assert as_png(tmp_path / "new/bench.svg") == tmp_path / "new/bench.png"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MusterError, match=r"cannot write to .*file/new: not a directory"):
        save(tmp_path / "file" / "new", "bench", {}, "")
