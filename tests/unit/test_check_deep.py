"""The judge of the deep check: which host a bad link, device or sum is attributed to."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from healthy import cluster

from muster.check.deep import ranks
from muster.check.deep.judge_ranks import culprits, judge, table, with_names
from muster.check.deep.ranks.link_tests import rounds

HOSTS = ("a", "b", "c", "d")


def results(hosts: int = 4, **changes: Any) -> list[dict[str, Any]]:
    """What healthy ranks say, one on each host."""
    link = {"times": {"64": 1e-4, "1048576": 1e-3}, "rate": 1.2e9, "sent": 100_000, "again": 0}
    return [
        {
            "rank": host,
            "host": host,
            "links": [{**link, "sender": host, "receiver": peer} for peer in range(hosts) if peer != host],
            "device": "NVIDIA H200",
            "flops": 6e14,
            "right": True,
            "all_reduce": {"8": 1e-4, "16777216": 3e-3},
            "wrong": [],
            "network": "IB",
            **changes,
        }
        for host in range(hosts)
    ]


def change_links(found: list[dict[str, Any]], host: int, **changes: Any) -> list[dict[str, Any]]:
    """Every link of a host, both ways."""
    for result in found:
        for link in result["links"]:
            if host in (link["sender"], link["receiver"]):
                link.update(changes)
    return found


def told(found: list[dict[str, Any]]) -> list[tuple[int, tuple[str, ...]]]:
    hosts = HOSTS[: len(found)]
    return [(finding.row, finding.hosts) for finding in judge(cluster(len(found)), with_names(found, hosts))]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_healthy_hosts_are_accused_of_nothing(hosts: int):
    assert told(results(hosts)) == []


def test_a_hole_for_large_pieces_is_blamed_on_the_host_all_of_whose_links_have_it():
    found = change_links(results(), 1, hole=1400, times={"64": 1e-4, "512": 1e-4})
    (finding,) = judge(cluster(4), with_names(found, HOSTS))
    assert (finding.row, finding.hosts, finding.severity) == (15, ("b",), "error")
    assert "1400 bytes do not get through" in finding.what
    assert "512 bytes do" in finding.what


def test_a_hole_between_two_hosts_only_names_both():
    found = results()
    found[0]["links"][1].update(hole=1400)
    assert told(found) == [(15, ("a", "c"))]


def test_lost_packets_are_blamed_on_the_host_whose_links_all_lose_them():
    found = change_links(results(), 2, again=5000)
    for result in found:
        for link in result["links"]:
            if {link["sender"], link["receiver"]} == {0, 1}:
                link["again"] = 700  # a busy peer, not a bad cable
    assert told(found) == [(16, ("c",))]


def test_two_bad_cables_are_both_named():
    found = change_links(change_links(results(), 2, again=5000), 1, again=5000)
    assert sorted(told(found)) == [(16, ("b",)), (16, ("c",))]


def test_a_slow_host_is_named_and_not_those_who_talk_to_it():
    assert told(change_links(results(), 3, rate=6e6)) == [(17, ("d",))]


def test_a_slow_pair_is_compared_with_the_speed_of_its_cards():
    assert told(change_links(results(2), 0, rate=6e6)) == [(17, ("a", "b"))]
    assert told(change_links(results(2), 0, rate=1e9)) == []


def test_a_slow_or_wrong_gpu_is_named():
    found = results()
    found[1]["flops"] = 4e14
    assert told(found) == [(48, ("b",))]
    found = results()
    found[2]["right"] = False
    assert told(found) == [(48, ("c",))]
    found = results()
    found[2]["wrong"] = [8]
    assert told(found) == [(48, ("c",))]


def test_a_cpu_may_be_shared_but_not_a_fifth_as_fast():
    found = results(device="CPU", flops=1e11)
    found[1]["flops"] = 4e10
    assert told(found) == []
    found[1]["flops"] = 1e10
    assert told(found) == [(30, ("b",))]


def test_ranks_that_skipped_the_collectives_are_understood():
    found = change_links(results(), 1, hole=1400)
    for result in found:
        del result["all_reduce"], result["wrong"], result["network"]
    assert told(found) == [(15, ("b",))]
    assert "network rate" in table(with_names(found, HOSTS))


def test_a_single_rank_reports_no_collective():
    assert set(table(with_names(results(1), HOSTS))) == {"matrix product"}
    assert "all_reduce of 16 MB" in table(with_names(results(2), HOSTS))


def test_one_host_explains_the_links_of_its_peers():
    pairs = [frozenset(pair) for pair in ("ab", "ac", "ad", "bc", "bd", "cd")]
    assert culprits([frozenset("ab"), frozenset("bc"), frozenset("bd")], pairs) == [("b",)]
    assert culprits([frozenset("ab")], pairs) == [("a", "b")]
    assert culprits([frozenset("ab")], [frozenset("ab")]) == [("a", "b")]


def test_the_package_of_the_ranks_needs_nothing_but_torch():
    imported: set[str] = set()
    for path in Path(ranks.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 6, 9, 16])
def test_every_pair_is_measured_once_and_nobody_twice_at_a_time(hosts: int):
    schedule = rounds(hosts)
    pairs = [pair for pairs in schedule for pair in pairs]
    assert sorted(pairs) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    for at_once in schedule:
        busy = [host for pair in at_once for host in pair]
        assert len(busy) == len(set(busy))


def test_no_file_in_the_shared_tmp_has_a_name_that_another_user_can_guess():
    sources = Path(ranks.__file__).parents[3]
    assert sources.name == "muster"
    guessed = re.compile(r"gettempdir\(|mktemp\(|[\"']/tmp/muster-(?!\{os.getuid)")
    assert [str(path) for path in sources.rglob("*.py") if guessed.search(path.read_text())] == []
