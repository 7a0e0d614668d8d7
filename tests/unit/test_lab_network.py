from __future__ import annotations

from muster.lab import link_rules
from muster.lab.link_rules import Block, Link

ADDRESSES = {f"h{n}": f"10.77.0.{n}" for n in range(1, 4)}


def test_every_cable_is_laid_by_one_batch_with_a_fixed_hardware_address() -> None:
    assert link_rules.plug({"h1": 100, "h2": 200}, ADDRESSES) == (
        "link add v-h1 type veth peer name eth0 address 02:77:00:00:00:01 netns 100\n"
        "link set v-h1 addrgenmode none master br0 up\n"
        "link add v-h2 type veth peer name eth0 address 02:77:00:00:00:02 netns 200\n"
        "link set v-h2 addrgenmode none master br0 up\n"
    )


def test_a_healthy_link_clears_every_rule() -> None:
    assert link_rules.host_rules(Link()) == (
        "table netdev muster_lab\ndelete table netdev muster_lab\ntable inet muster_lab\ndelete table inet muster_lab\n"
    )
    assert link_rules.carrier("h1", Link()) == "link set v-h1 up\n"
    assert link_rules.shaping("eth0", Link(), netem=True) == "qdisc replace dev eth0 root noqueue\n"


def test_loss_is_counted_in_hundredths_of_a_percent_at_both_ends() -> None:
    link = Link(loss_percent=0.25)
    assert "numgen random mod 10000 < 25 drop" in link_rules.host_rules(link)
    switch = link_rules.switch_rules("h2", "v-h2", link)
    assert 'hook ingress device "v-h2"' in switch
    assert "numgen random mod 10000 < 25 drop" in switch


def test_blocked_ports_go_to_the_chain_of_their_direction() -> None:
    link = Link(blocks=(Block(port=22), Block(port=80, how="drop", direction="out")))
    _, _, inet = link_rules.host_rules(link).partition("table inet muster_lab {")
    incoming, _, outgoing = inet.partition("chain output")
    assert 'iifname "eth0" tcp dport 22 reject with tcp reset' in incoming
    assert 'oifname "eth0" tcp dport 80 drop' in outgoing
    assert "dport 80" not in incoming


def test_one_qdisc_does_rate_and_delay_where_the_kernel_has_netem() -> None:
    both = Link(rate="40mbit", delay_ms=2.5)
    assert link_rules.shaping("eth0", both, netem=True).endswith("netem limit 100000 delay 2.5ms rate 40mbit\n")
    assert link_rules.shaping("eth0", both, netem=False).endswith("tbf rate 40mbit burst 32k latency 400ms\n")


def test_faults_are_described_in_a_few_words() -> None:
    link = Link(cut=True, loss_percent=12.5, rate="1gbit", delay_ms=3, blocks=(Block(port=22),))
    assert link.describe() == ("cut", "loss 12.5%", "rate 1gbit", "delay 3 ms", "port 22 in reject")
    assert Link().describe() == ()


def test_only_big_labs_know_each_others_hardware_addresses_beforehand() -> None:
    assert link_rules.neighbors(ADDRESSES) == ""
    many = {f"h{n}": f"10.77.0.{n}" for n in range(1, 65)}
    lines = link_rules.neighbors(many).splitlines()
    assert len(lines) == 64
    assert lines[63] == "neigh replace 10.77.0.64 lladdr 02:77:00:00:00:40 dev eth0 nud permanent"
