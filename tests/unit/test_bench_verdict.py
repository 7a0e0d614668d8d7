"""`muster bench`: the verdict, from synthetic measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from muster.bench.conclusion import verdict
from muster.bench.expected import payload
from muster.bench.measurements import Carrier, LeftOut, Pair, Rank, Report, Row
from muster.bench.ranks.hardware import _interface, carriers

ETHERNET = Carrier(name="eth0", speed=1e10, virtual=False, mtu=1500)
VETH = Carrier(name="eth0", speed=1e10, virtual=True, mtu=1500)
GB = 1e9


def all_reduce(rate: float, ranks: int = 2, wrong: int = 0) -> Row:
    seconds = (1 << 30) * 2 * (ranks - 1) / ranks / rate if ranks > 1 else 1e-5
    return Row(
        operation="all-reduce",
        size=1 << 30,
        count=1 << 28,
        type="float",
        ranks=ranks,
        seconds=(seconds,) * 3,
        wrong=wrong,
    )


def report(
    rates: dict[tuple[str, str], float],
    *rows: Row,
    carrier: Carrier = ETHERNET,
    latencies: dict[tuple[str, str], float] | None = None,
    **changes: object,
) -> Report:
    hosts = list(dict.fromkeys(host for pair in rates for host in pair))
    ranks = [
        Rank(number=number, host=host, copies={"memory": 5 * GB}, carriers=(carrier,))
        for number, host in enumerate(hosts)
    ]
    pairs = [
        Pair(
            a=hosts.index(a),
            b=hosts.index(b),
            latency=(latencies or {}).get((a, b), 20e-6),
            there=rate,
            back=rates.get((b, a), rate),
        )
        for (a, b), rate in rates.items()
        if hosts.index(a) < hosts.index(b)
    ]
    made = Report(
        backend="gloo",
        device="cpu",
        torch="2.13",
        nccl="",
        ranks=tuple(ranks),
        rows=rows,
        pairs=tuple(pairs),
        room=1 << 30,
        narrowest=0,
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


def mesh(*hosts: str, rate: float = 1.1 * GB) -> dict[tuple[str, str], float]:
    return {(a, b): rate for a in hosts for b in hosts if a != b}


# --- what the link should give --------------------------------------------------------------------------------


def test_a_10_gbit_link_carries_1_18_gb_of_data():
    assert payload(ETHERNET) == pytest.approx(1.177e9, rel=1e-3)  # 1448 bytes of data in 1538 on the wire


def test_a_link_at_full_speed_is_reported_as_such():
    said = verdict(report(mesh("a", "b"), all_reduce(1.05 * GB)))
    assert said == [
        "The network of every host is eth0 (10 Gbit/s), which can carry 1.18 GB/s of data each way.",
        "Measured with gloo: median of pairs of hosts 1.1 GB/s (93 %); "
        "all-reduce 1.05 GB/s bus bandwidth (89 %) at 1 GB.",
        "This is the full speed of the link.",
        "No link is slower than 70 % of the median.",
    ]


def test_a_link_below_its_capacity_is_reported():
    slow = report(mesh("a", "b", rate=0.2 * GB), all_reduce(0.2 * GB))
    assert any(line.startswith("This is less than the link can carry. gloo uses one CPU") for line in verdict(slow))
    assert any("Check for a wrong network interface" in line for line in verdict(replace(slow, backend="nccl")))


def test_small_sizes_are_not_used_to_judge_a_link():
    small = replace(all_reduce(1 * GB), size=4096)
    assert verdict(report({}, small, ranks=report(mesh("a", "b")).ranks)) == [
        "The network of every host is eth0 (10 Gbit/s), which can carry 1.18 GB/s of data each way."
    ]


def test_the_slowest_host_sets_the_limit():
    found = report(mesh("a", "b", "c"))
    slow = replace(found.ranks[1], carriers=(replace(ETHERNET, speed=1e9),))
    said = verdict(replace(found, ranks=(found.ranks[0], slow, found.ranks[2])))
    assert said[0] == "The network of b, the slowest is eth0 (1 Gbit/s), which can carry 118 MB/s of data each way."


def test_the_rails_of_a_host_add_up():
    rail = Carrier(name="mlx5_0:1", speed=4e11, virtual=False, mtu=None)
    found = report(mesh("a", "b"))
    ranks = tuple(replace(rank, carriers=(rail, replace(rail, name="mlx5_1:1"))) for rank in found.ranks)
    assert (
        "mlx5_0:1 (400 Gbit/s) and mlx5_1:1 (400 Gbit/s), which can carry 100 GB/s"
        in verdict(replace(found, ranks=ranks))[0]
    )


@pytest.mark.parametrize(
    ("carrier", "words"),
    [
        (VETH, "eth0 of a is virtual, so the 10 Gbit/s that it reports is not a real limit"),
        (replace(ETHERNET, speed=None), "eth0 of a does not report its speed"),
    ],
)
def test_nothing_is_guessed_about_a_link_of_unknown_speed(carrier: Carrier, words: str):
    said = verdict(report(mesh("a", "b"), all_reduce(1 * GB), carrier=carrier))
    assert said[0] == f"The expected network bandwidth is unknown: {words}."
    assert not any("That is" in line for line in said)


def test_ranks_of_one_cpu_host_are_compared_with_its_memory():
    found = report({("a", "b"): 2 * GB}, all_reduce(1 * GB))
    said = verdict(replace(found, ranks=tuple(replace(rank, host="box") for rank in found.ranks)))
    assert "a plain copy runs at 5 GB/s," in said[0]
    assert "median of pairs of ranks 2 GB/s" in said[1]
    assert len(said) == 2


def test_gpus_of_one_host_are_compared_with_their_nvlinks_or_pcie():
    found = report({("a", "b"): 300 * GB}, all_reduce(380 * GB), device="cuda", backend="nccl")
    copies = {"to_gpu": 50 * GB, "from_gpu": 52 * GB, "in_gpu": 2000 * GB}
    gpus = tuple(replace(rank, host="box", gpu="H200", copies=copies, nvlink=(26.5 * GB,) * 18) for rank in found.ranks)
    assert verdict(replace(found, ranks=gpus))[0] == "Each GPU has 18 active NVLinks, 477 GB/s each way in total."
    bare = tuple(replace(rank, nvlink=(), pcie=63 * GB) for rank in gpus)
    assert verdict(replace(found, ranks=bare))[0].startswith(
        "No NVLink is active: data goes over PCIe, 63 GB/s each way"
    )
    unknown = tuple(replace(rank, pcie=None) for rank in bare)
    assert "is unknown" in verdict(replace(found, ranks=unknown))[0]


# --- outliers ------------------------------------------------------------------------------------------------


def odd(found: Report) -> list[str]:
    return [line for line in verdict(found) if re.search("slow|No |high latency", line)]


def test_a_slow_host_is_named_even_where_most_links_lead_to_it():
    rates = {pair: 0.1 * GB if "c" in pair else rate for pair, rate in mesh("a", "b", "c").items()}
    assert odd(report(rates)) == [
        "c is slower than the other hosts: it sends at most 100 MB/s, 9 % of the median host, "
        "and receives at most 100 MB/s, 9 % of the median host."
    ]


def test_a_host_that_only_sends_slowly_is_named_for_that():
    rates = {pair: 0.1 * GB if pair[0] == "b" else rate for pair, rate in mesh("a", "b", "c", "d").items()}
    assert odd(report(rates)) == [
        "b is slower than the other hosts: it sends at most 100 MB/s, 9 % of the median host."
    ]


def test_a_slow_link_between_good_hosts_is_named_as_a_link():
    rates = mesh("a", "b", "c", "d") | {("a", "c"): 0.5 * GB, ("c", "a"): 1.1 * GB}
    assert odd(report(rates)) == ["a to c is a slow link: 500 MB/s, 45 % of the median link."]


def test_of_two_hosts_only_the_slow_direction_can_be_named():
    assert odd(report({("a", "b"): 0.1 * GB, ("b", "a"): 1.1 * GB})) == [
        "a to b is a slow link: 100 MB/s, 17 % of the median link."
    ]


def test_hosts_that_are_alike_raise_no_alarm():
    rates = {pair: rate * (0.75 if "c" in pair else 1) for pair, rate in mesh("a", "b", "c", "d").items()}
    assert odd(report(rates)) == ["No host or link is slower than 70 % of the median."]


def test_a_host_that_is_far_away_is_named():
    latencies = {pair: 500e-6 if "c" in pair else 20e-6 for pair in mesh("a", "b", "c")}
    said = odd(report(mesh("a", "b", "c"), latencies=latencies))
    assert said == ["c has a high latency: 8 bytes take at least 500 us, vs. 20 us elsewhere."]


def test_of_many_slow_links_a_few_are_named():
    hosts = tuple("abcdefgh")
    rates = mesh(*hosts) | dict.fromkeys(pairwise(hosts), 0.3 * GB)
    assert [line.partition(" is")[0] for line in odd(report(rates))] == [
        "a to b",
        "b to c",
        "c to d",
        "d to e",
        "e to f",
    ]
    assert verdict(report(rates))[-1] == "2 more links like that."


def test_a_gpu_with_a_slow_link_to_its_host_is_named():
    found = report(mesh("a", "b", "c"), device="cuda", backend="nccl")
    rates = {"to_gpu": 50 * GB, "from_gpu": 50 * GB, "in_gpu": 2000 * GB}
    ranks = [replace(rank, copies=rates) for rank in found.ranks]
    ranks[1] = replace(ranks[1], copies=rates | {"to_gpu": 12 * GB})
    said = verdict(replace(found, ranks=tuple(ranks)))
    assert said[-1] == "the GPU of rank 1 on b receives data from its host at 12 GB/s, 24 % of the median."


# --- the rest -------------------------------------------------------------------------------------------------


def test_wrong_data_is_reported_first():
    said = verdict(report(mesh("a", "b"), all_reduce(1 * GB, wrong=12)))
    assert said[0] == "WRONG DATA: all-reduce of 1 GB produced 12 wrong elements."


def test_a_single_rank_reports_what_it_can_measure():
    copies = {"to_gpu": 52 * GB, "from_gpu": 51 * GB, "in_gpu": 2000 * GB}
    rank = Rank(number=0, host="box", gpu="NVIDIA H200", pcie=63 * GB, copies=copies)
    alone = report({}, all_reduce(1, ranks=1), ranks=(rank,), device="cuda", backend="nccl")
    first, second = verdict(alone)
    assert "this shows that nccl works and its results are correct; an all-reduce call takes 10 us" in first
    assert "The bandwidths above do not measure any link" in first
    assert second == (
        "NVIDIA H200: 52 GB/s from the host to the GPU and 51 GB/s back (its PCIe link: 63 GB/s each way), "
        "2000 GB/s within the GPU's memory."
    )


def test_skipped_sizes_are_reported_with_the_reason():
    left = (
        LeftOut(operation="all-reduce", size=128 << 20, why="time", seconds=9.1),
        LeftOut(operation="broadcast", size=1 << 30, why="memory"),
    )
    said = verdict(report(mesh("a", "b"), left_out=left, narrowest=1, room=500 << 20))
    assert said[-2:] == [
        "Skipped to save time: all-reduce from 128 MB; one call of all-reduce would take about 9.1 s. "
        "Use --max 1G to measure them anyway.",
        "Sizes above 500 MB were skipped: rank 1 on b does not have enough memory.",
    ]


# --- what a host says about its links -------------------------------------------------------------------------


def interface(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_only_a_link_with_a_device_a_bond_or_a_vlan_behind_it_is_believed(tmp_path: Path):
    common = {"speed": "10000", "mtu": "1500", "statistics__tx_bytes": "77"}
    veth = _interface(interface(tmp_path / "veth", **common, uevent="INTERFACE=veth"))
    bond = _interface(interface(tmp_path / "bond", **common, uevent="DEVTYPE=bond\nINTERFACE=bond0"))
    card = interface(tmp_path / "card", **common, uevent="INTERFACE=eth0")
    (card / "device").mkdir()
    assert [veth["virtual"], bond["virtual"], _interface(card)["virtual"]] == [True, False, False]
    assert veth == {"speed": 1e10, "virtual": True, "mtu": 1500, "sent": 77}


@pytest.mark.parametrize("speed", ["-1", "0", ""])
def test_a_speed_the_kernel_does_not_know_is_unknown(tmp_path: Path, speed: str):
    assert _interface(interface(tmp_path, speed=speed))["speed"] is None


def test_the_links_that_carried_the_data_are_found_by_their_counters():
    def links(**sent: int) -> dict[str, dict[str, object]]:
        return {name: {"speed": None, "virtual": False, "mtu": 1500, "sent": count} for name, count in sent.items()}

    found = carriers(links(eth0=1000, eth1=50, lo=0, ib0=0), links(eth0=2000, eth1=10_050, lo=0, ib0=5000))
    assert [link["name"] for link in found] == ["eth0", "eth1", "ib0"]
    assert [link["name"] for link in carriers(links(eth0=5, lo=5), links(eth0=6, lo=1005))] == ["lo"]
