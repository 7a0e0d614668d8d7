"""`muster bench` on lab hosts whose links are known, and on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Done, run_here, run_in

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.torch]

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="links with a rate need a lab started as root")

# A frame of 1514 bytes, which is what tbf counts, carries 1448 bytes of data (IPv4, TCP with timestamps).
PAYLOAD = 1448 / 1514

# Where both directions carry data, each also carries an acknowledgement of 66 bytes for every two frames of the other.
PAYLOAD_BOTH_WAYS = 2 * 1448 / (2 * 1514 + 66)


@pytest.fixture(scope="module")
def ready(cluster: Lab, shared: Path) -> Lab:
    """Three hosts that `muster keep` has made ready: both benchmarks on them share the imports of torch."""
    made = run_in(cluster, "h1", shared, "-H", "h1,h2,h3", command="keep", XDG_STATE_HOME=str(shared / "kept"))
    assert made.code == 0, made.said
    return cluster


@pytest.fixture
def limited(ready: Lab) -> Iterator[Lab]:
    """Of these, h1 and h2 send 200 Mbit/s each, over buffers as a switch has them."""
    for host in ("h1", "h2"):
        shape = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "32k"]
        ready.run(host, [*shape, "latency", "50ms"], timeout=20)
    yield ready
    for host in ("h1", "h2"):
        ready.run(host, ["tc", "qdisc", "delete", "dev", "eth0", "root"], timeout=20)


@pytest.fixture(scope="module")
def ready_here(kept: Path) -> Path:
    """The state directory of this machine as a kept host."""
    made = run_here(kept, "-H", "localhost", command="keep", state=kept)
    assert made.code == 0, made.said
    return kept


def bench(lab: Lab, shared: Path, *argv: str) -> Done:
    """`muster bench` on h1, with kept hosts."""
    return run_in(lab, "h1", shared, *argv, command="bench", XDG_STATE_HOME=str(shared / "kept"))


def is_what_the_link_gives(rates: list[float], link: float) -> bool:
    """Whether pairs were measured right: by quarters of a second, which a busy machine stretches but never shortens."""
    shares = [rate / (link * PAYLOAD) for rate in rates]
    return max(shares) == pytest.approx(1, rel=0.15) and min(shares) > 0.3


@NEEDS_ROOT
def test_bus_bandwidth_is_right_within_5_percent_on_a_link_of_known_rate(limited: Lab, shared: Path):
    # 8 MB take 0.35 s each way.
    sizes = ["--min", "4M", "--max", "8M", "--factor", "2", "--only", "all-reduce,broadcast,pairs"]
    done = bench(limited, shared, "-H", "h1,h2", *sizes, "--json")
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
    assert [row["wrong"] for row in report["rows"]] == [0] * 4
    assert report["verdict"][0].startswith("The expected network bandwidth is unknown: eth0 of h1 is virtual")


@NEEDS_ROOT
def test_a_host_with_a_slow_cable_is_named_and_the_files_are_left(ready: Lab, shared: Path):
    ready.slow("h3", rate="50mbit")
    argv = ["-H", "h1,h2,h3", "--min", "64K", "--max", "64K", "--out", "found", "--only"]
    done = bench(ready, shared, *argv, "all-to-all,reduce-scatter,pairs")
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
    done = run_here(tmp_path, "--min", "4K", "--max", "4K", command="bench")
    assert done.code == 0, done.said
    assert [line for line in done.out.splitlines() if line.startswith("# There is only one rank")], done.said
    operations = [line for line in done.out.splitlines() if line.startswith("# ") and "-" in line.split()[1]]
    assert operations == ["# all-reduce", "# all-gather", "# reduce-scatter", "# all-to-all"]


def test_scaling_reads_the_rates_of_a_script_and_shares_its_batch_out(tmp_path: Path, ready_here: Path):
    script = """
import os, sys
ranks, batch = int(os.environ["WORLD_SIZE"]), int(sys.argv[2])
if os.environ["RANK"] == "0":
    print("warming up: 1 images/s")
    print(f"{100 * ranks * (0.9 if ranks > 1 else 1) * batch / 64} images/s")
"""
    (tmp_path / "train.py").write_text(script)
    argv = ["--nproc", "2", "--json", "--scaling", "train.py", "--batch-size", "64"]
    done = run_here(tmp_path, *argv, command="bench", timeout=110, state=ready_here)
    assert done.code == 0, done.said
    assert json.loads(done.out)["efficiency"] == {"weak": {"1": 1.0, "2": 0.9}, "strong": {"1": 1.0, "2": 0.45}}


def test_a_script_without_a_rate_gets_a_hint_how_to_print_one(tmp_path: Path, ready_here: Path):
    (tmp_path / "train.py").write_text("print('loss 0.5')\n")
    done = run_here(tmp_path, "--nproc", "1", "--scaling", "train.py", command="bench", state=ready_here)
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
