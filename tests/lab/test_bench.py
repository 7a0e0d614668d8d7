"""`muster bench` on lab hosts whose links are known, and on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import run_here, run_in

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch]

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="links with a rate need a lab started as root")

# A frame of 1514 bytes, which is what tbf counts, carries 1448 bytes of data (IPv4, TCP with timestamps).
PAYLOAD = 1448 / 1514

# Where both directions carry data, each also carries an acknowledgement of 66 bytes for every two frames of the other.
PAYLOAD_BOTH_WAYS = 2 * 1448 / (2 * 1514 + 66)


@pytest.fixture
def two_hosts(shared: Path) -> Iterator[Lab]:
    """Two hosts that send 200 Mbit/s each, over buffers as a switch has them."""
    with Lab(2, bind=(shared,)) as lab:
        for host in lab.names:
            shape = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "32k"]
            lab.run(host, [*shape, "latency", "50ms"], timeout=20)
        yield lab


def is_what_the_link_gives(rates: list[float], link: float) -> bool:
    """Whether pairs were measured right: by quarters of a second, which a busy machine stretches but never shortens."""
    shares = [rate / (link * PAYLOAD) for rate in rates]
    return max(shares) == pytest.approx(1, rel=0.15) and min(shares) > 0.3


@NEEDS_ROOT
def test_bus_bandwidth_is_right_within_5_percent_on_a_link_of_known_rate(two_hosts: Lab, shared: Path):
    # 16 MB take 0.7 s each way.
    sizes = ["--min", "2M", "--max", "16M", "--factor", "2", "--only", "all-reduce,broadcast,pairs"]
    done = run_in(two_hosts, "h1", shared, "-H", "h1,h2", *sizes, "--json", command="bench", timeout=100)
    assert done.code == 0, done.said
    report = json.loads(done.out)
    link = 200e6 / 8
    # The best of a dozen calls: what else a busy machine does can only make them longer.
    found: dict[str, float] = {}
    for row in report["rows"]:
        best = row["busbw"] * row["time"] / min(row["seconds"]) / link
        found[row["operation"]] = max(best, found.get(row["operation"], 0.0))
    assert found["broadcast"] == pytest.approx(PAYLOAD, rel=0.05)
    assert found["all-reduce"] == pytest.approx(PAYLOAD_BOTH_WAYS, rel=0.05)
    (pair,) = report["pairs"]
    assert is_what_the_link_gives([pair["there"], pair["back"]], link), pair
    assert [row["wrong"] for row in report["rows"]] == [0] * 8
    assert report["verdict"][0].startswith("The expected network bandwidth is unknown: eth0 of h1 is virtual")


@NEEDS_ROOT
def test_a_host_with_a_slow_cable_is_named_and_the_files_are_left(cluster: Lab, shared: Path):
    cluster.slow("h3", rate="50mbit")
    argv = ["-H", "h1,h2,h3", "--min", "64K", "--max", "64K", "--out", "found", "--only"]
    done = run_in(cluster, "h1", shared, *argv, "all-to-all,reduce-scatter,pairs", command="bench", timeout=100)
    assert done.code == 0, done.said
    named = [line for line in done.out.splitlines() if "is slower than the other hosts" in line]
    assert len(named) == 1, done.said
    assert named[0].startswith("# h3 is slower than the other hosts: it sends at most "), done.said
    # 65536 bytes are no multiple of three floats: a rank's part is rounded down, as in nccl-tests.
    rows = [line.split() for line in done.out.splitlines() if " float " in line]
    assert [row[:3] + row[-1:] for row in rows] == [["65532", "5461", "float", "0"]] * 2, done.said
    report = json.loads((shared / "found" / "bench.json").read_text())
    slow = [rate for pair in report["pairs"] if pair["b"] == 2 for rate in (pair["there"], pair["back"])]
    assert len(slow) == 4
    assert is_what_the_link_gives(slow, 50e6 / 8), done.said
    assert [rank["carriers"][0]["name"] for rank in report["ranks"]] == ["eth0"] * 3
    assert (shared / "found" / "bench.svg").read_text().startswith("<svg")


def test_one_rank_runs_and_reports_that_it_measures_no_link(tmp_path: Path):
    done = run_here(tmp_path, "--max", "4K", "--factor", "64", command="bench")
    assert done.code == 0, done.said
    assert [line for line in done.out.splitlines() if line.startswith("# There is only one rank")], done.said
    operations = [line for line in done.out.splitlines() if line.startswith("# ") and "-" in line.split()[1]]
    assert operations == ["# all-reduce", "# all-gather", "# reduce-scatter", "# all-to-all"]


def test_scaling_reads_the_rates_of_a_script_and_shares_its_batch_out(tmp_path: Path):
    script = """
import os, sys
ranks, batch = int(os.environ["WORLD_SIZE"]), int(sys.argv[2])
if os.environ["RANK"] == "0":
    print("warming up: 1 images/s")
    print(f"{100 * ranks * (0.9 if ranks > 1 else 1) * batch / 64} images/s")
"""
    (tmp_path / "train.py").write_text(script)
    argv = ["--nproc", "2", "--json", "--scaling", "train.py", "--batch-size", "64"]
    done = run_here(tmp_path, *argv, command="bench", timeout=110)
    assert done.code == 0, done.said
    assert json.loads(done.out)["efficiency"] == {"weak": {"1": 1.0, "2": 0.9}, "strong": {"1": 1.0, "2": 0.45}}


def test_a_script_without_a_rate_gets_a_hint_how_to_print_one(tmp_path: Path):
    (tmp_path / "train.py").write_text("print('loss 0.5')\n")
    done = run_here(tmp_path, "--nproc", "1", "--scaling", "train.py", command="bench")
    assert done.code == 125
    assert "train.py printed no rate on rank 0" in done.err
    assert "`1234.5 images/s`" in done.err


def test_the_check_counts_every_wrong_element_and_sees_blocks_that_changed_places():
    torch: Any = pytest.importorskip("torch")
    from muster.bench.ranks.timed_operations import Values

    right = torch.empty(3_000_000)
    values = Values(offset=7, scale=3, plus=2)
    values.fill(right)
    assert right[:3].tolist() == [23.0, 26.0, 29.0]
    assert values.wrong_in(right) == 0
    right[2_999_999] += 1
    right[5] = float("nan")
    assert values.wrong_in(right) == 2
    values.fill(right)
    right[:4096], right[4096:8192] = right[4096:8192].clone(), right[:4096].clone()
    assert values.wrong_in(right) > 8000
