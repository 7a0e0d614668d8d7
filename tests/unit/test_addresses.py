"""Where ranks meet: chosen from what every host found by trying. Pure data, no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from muster.controller.addresses import Meeting, Offer, alone, choose, dial_targets, who_dials_whom
from muster.errors import HostError, UsageError

LOOPBACK = {"name": "lo", "addresses": ["127.0.0.1"], "loopback": True}
Reach = Callable[[str, str, str], str]
"""(dialing host, host meant, address) -> problem, empty when it was reached."""


def nic(name: str, *addresses: str) -> dict[str, Any]:
    return {"name": name, "addresses": list(addresses), "loopback": False}


def offer(name: str, *nics: Mapping[str, Any], own_name: Sequence[str] = ()) -> Offer:
    return Offer(name=name, interfaces=[LOOPBACK, *nics], own_name=list(own_name), port=4000, nonce=f"nonce-{name}")


def try_all(offers: Sequence[Offer], reach: Reach, interface: str | None = None, master: str | None = None) -> Meeting:
    """Have each host dial what Muster would ask it to, with outcomes made by `reach`, and choose."""
    tried: dict[str, list[dict[str, Any]]] = {}
    for host, peers in zip(offers, who_dials_whom(len(offers)), strict=True):
        targets = dial_targets(offers, peers, interface=interface, master=master)
        tried[host.name] = [{**t, "problem": reach(host.name, t["host"], t["address"]), "from": ""} for t in targets]
    return choose(offers, tried, interface=interface, master=master)


def everything(_dialler: str, _host: str, _address: str) -> str:
    return ""


def only(prefix: str, problem: str = "connection refused") -> Reach:
    return lambda _dialler, _host, address: "" if address.startswith(prefix) else problem


def test_hosts_whose_names_stand_for_the_right_address_need_no_interface():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2, 3)]
    assert try_all(offers, everything) == Meeting(master_addr="10.0.0.1", interfaces={}, reasons={})


def test_a_hostname_that_resolves_to_127_0_1_1_gets_the_interface_and_the_reason_is_printed():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=["127.0.1.1"]) for n in (1, 2)]
    meeting = try_all(offers, everything)
    assert meeting.master_addr == "10.0.0.1"
    assert meeting.interfaces == {"h1": "eth0", "h2": "eth0"}
    assert "127.0.1.1" in meeting.reasons["h1"]


def test_only_the_host_with_the_wrong_name_gets_an_interface():
    offers = [
        offer("h1", nic("eth0", "10.0.0.1"), own_name=["10.0.0.1"]),
        offer("h2", nic("eth0", "10.0.0.2"), own_name=["127.0.1.1"]),
    ]
    assert try_all(offers, everything).interfaces == {"h2": "eth0"}


def test_a_hostname_nobody_can_resolve_gets_the_interface():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[]) for n in (1, 2)]
    meeting = try_all(offers, everything)
    assert meeting.interfaces == {"h1": "eth0", "h2": "eth0"}
    assert meeting.reasons["h2"] == "its hostname does not resolve to one of its own addresses"


def test_docker0_which_has_the_same_address_everywhere_is_not_taken_for_a_way():
    # Who dials 172.17.0.1 reaches itself, whose nonce is another one.
    offers = [
        offer(f"h{n}", nic("docker0", "172.17.0.1"), nic("eth0", f"10.0.0.{n}"), own_name=["172.17.0.1"])
        for n in (1, 2)
    ]
    meeting = try_all(offers, only("10.", "another machine or program answered"))
    assert meeting.master_addr == "10.0.0.1"
    assert meeting.interfaces == {"h1": "eth0", "h2": "eth0"}
    assert "172.17.0.1" in meeting.reasons["h1"]


def test_of_several_interfaces_the_one_every_host_reaches_is_taken():
    # The management network is up everywhere but is not routed between the hosts.
    offers = [
        offer(f"h{n}", nic("eno1", f"192.168.1.{n}"), nic("ib0", f"10.1.0.{n}"), own_name=[f"192.168.1.{n}"])
        for n in (1, 2, 3)
    ]
    meeting = try_all(offers, only("10.1.", "no answer"))
    assert meeting.master_addr == "10.1.0.1"
    assert set(meeting.interfaces.values()) == {"ib0"}


def test_an_address_that_one_host_alone_cannot_reach_is_not_the_masters():
    offers = [
        offer(f"h{n}", nic("eno1", f"192.168.1.{n}"), nic("eth1", f"10.1.0.{n}"), own_name=[f"192.168.1.{n}"])
        for n in (1, 2, 3)
    ]

    def h3_has_no_way(dialler: str, host: str, address: str) -> str:
        return "no route to host" if dialler == "h3" and host == "h1" and address.startswith("192.") else ""

    assert try_all(offers, h3_has_no_way).master_addr == "10.1.0.1"


def test_interfaces_with_other_names_on_each_host_are_named_per_host():
    offers = [
        offer("h1", nic("enp3s0", "10.0.0.1"), own_name=["127.0.1.1"]),
        offer("h2", nic("bond0", "10.0.0.2"), own_name=["127.0.1.1"]),
        offer("h3", nic("eth7", "10.0.0.3"), own_name=["127.0.1.1"]),
    ]
    assert try_all(offers, everything).interfaces == {"h1": "enp3s0", "h2": "bond0", "h3": "eth7"}


def test_nccl_gets_an_interface_if_its_own_choice_cannot_be_reached():
    # gloo goes by the hostname, which is right; NCCL takes the first interface, which is not.
    offers = [
        offer(f"h{n}", nic("eno1", f"192.168.1.{n}"), nic("eth1", f"10.1.0.{n}"), own_name=[f"10.1.0.{n}"])
        for n in (1, 2)
    ]
    meeting = try_all(offers, only("10.1."))
    assert meeting.interfaces == {"h1": "eth1", "h2": "eth1"}
    assert "eno1" in meeting.reasons["h1"]


def test_a_host_that_nobody_reaches_is_named_with_what_was_tried():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2, 3)]

    def firewalled(_dialler: str, host: str, _address: str) -> str:
        return "no answer" if host == "h2" else ""

    with pytest.raises(HostError) as caught:
        try_all(offers, firewalled)
    assert caught.value.host == "h2"
    assert "h1 tried 10.0.0.2 (no answer)" in caught.value.message
    assert "--interface" in (caught.value.hint or "")


def test_a_host_without_any_network_is_named():
    offers = [offer("h1", nic("eth0", "10.0.0.1"), own_name=["10.0.0.1"]), offer("h2")]
    with pytest.raises(HostError, match=r"h2: .*only a loopback address"):
        try_all(offers, everything)


def test_the_address_the_user_gave_is_used_even_if_it_is_no_interfaces_own():
    # A public address behind NAT: rank 0's host does not have it, but the others reach it there.
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2)]
    assert try_all(offers, everything, master="203.0.113.9").master_addr == "203.0.113.9"


def test_a_wrong_master_address_is_refused_by_the_host_that_cannot_reach_it():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2)]
    with pytest.raises(HostError) as caught:
        try_all(offers, only("10.", "no answer"), master="203.0.113.9")
    assert caught.value.message == "h2: --master-addr 203.0.113.9 does not reach h1 from this host (no answer)"
    assert "omit --master-addr" in (caught.value.hint or "")


def test_an_interface_of_the_users_is_set_on_every_host_and_its_address_is_the_masters():
    offers = [
        offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), nic("ib0", f"10.1.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2)
    ]
    meeting = try_all(offers, everything, interface="ib0")
    assert meeting.master_addr == "10.1.0.1"
    assert meeting.interfaces == {"h1": "ib0", "h2": "ib0"}
    assert meeting.reasons["h1"] == "--interface"


def test_an_unknown_interface_is_refused_with_those_the_host_has():
    offers = [offer(f"h{n}", nic("eth0", f"10.0.0.{n}"), own_name=[f"10.0.0.{n}"]) for n in (1, 2)]
    with pytest.raises(UsageError) as caught:
        try_all(offers, everything, interface="eth9")
    assert "--interface eth9" in caught.value.message
    assert "no such network interface" in caught.value.message
    assert "lo, eth0" in (caught.value.hint or "")


def test_an_interface_without_an_address_is_refused_in_words_about_the_address():
    offers = [offer("h1", nic("ib0"), nic("eth0", "10.0.0.1")), offer("h2", nic("ib0"), nic("eth0", "10.0.0.2"))]
    with pytest.raises((HostError, UsageError)) as caught:
        try_all(offers, everything, interface="ib0")
    assert "ib0" in caught.value.message
    assert "address" in caught.value.message


def test_ipv6_serves_where_there_is_no_ipv4():
    offers = [offer(f"h{n}", nic("eth0", f"2001:db8::{n}"), own_name=[f"2001:db8::{n}"]) for n in (1, 2)]
    assert try_all(offers, everything).master_addr == "2001:db8::1"


def test_likely_interfaces_are_tried_before_those_of_containers():
    host = offer("h1", nic("docker0", "172.17.0.1"), nic("virbr0", "192.168.122.1"), nic("eth0", "10.0.0.1"))
    assert host.candidates(None)[0] == "10.0.0.1"
    assert set(host.candidates(None)) == {"10.0.0.1", "172.17.0.1", "192.168.122.1"}


def test_one_host_meets_on_loopback_whatever_its_name_resolves_to():
    host = offer("h1", nic("eth0", "10.0.0.1"), own_name=["127.0.1.1"])
    assert alone(host, interface=None) == Meeting(master_addr="127.0.0.1", interfaces={}, reasons={})


def test_one_host_whose_name_does_not_resolve_gets_loopback_set():
    assert alone(offer("h1"), interface=None).interfaces == {"h1": "lo"}


def test_one_host_obeys_the_users_interface():
    host = offer("h1", nic("eth0", "10.0.0.1"), own_name=["10.0.0.1"])
    meeting = alone(host, interface="eth0")
    assert (meeting.master_addr, meeting.interfaces) == ("127.0.0.1", {"h1": "eth0"})
    with pytest.raises(UsageError, match="no such network interface"):
        alone(host, interface="eth9")


@pytest.mark.parametrize("count", [2, 3, 16, 17, 64])
def test_every_host_tries_the_master_and_is_tried_by_another(count: int):
    plans = who_dials_whom(count)
    assert len(plans) == count
    assert all(0 in peers for host, peers in enumerate(plans) if host)
    assert all(host not in peers for host, peers in enumerate(plans))
    assert {peer for peers in plans for peer in peers} == set(range(count))


def test_many_hosts_do_not_all_try_each_other():
    assert max(len(peers) for peers in who_dials_whom(64)) <= 8
