"""Faults of the network cards and links: rows 15 to 18."""

from __future__ import annotations

from benchmarks.scoreboard.address_faults import firewall
from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.shims import healthy_gpus, put_infiniband
from benchmarks.scoreboard.stage import Stage


def _jumbo(stage: Stage) -> None:
    stage.sh("h2", "ip link set eth0 mtu 1400")


def _hole(stage: Stage) -> None:
    for host in stage.lab.names:  # as on a real wire, where no packet is larger than its MTU
        stage.sh(host, "ethtool -K eth0 tso off gso off gro off")
    # Not for ssh, which uses another network in real clusters; otherwise no one could log in.
    firewall(stage, "h2", "input", "tcp sport 1024-65535 tcp dport 1024-65535 meta length > 1200 drop")


def _no_verbs(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    for host in stage.lab.names:
        put_infiniband(stage, host, devices=host != "h2")


FAULTS = (
    Fault(row=15, title="another packet size (MTU)", at=("h2",), inject=_jumbo),
    Fault(row=15, title="large packets vanish", at=("h2",), inject=_hole, deep=True),
    Fault(row=16, title="5 % of packets lost", at=("h2",), inject=lambda stage: stage.lab.loss("h2", 5), deep=True),
    Fault(
        row=17,
        title="a link of 50 Mbit/s",
        at=("h2",),
        inject=lambda stage: stage.lab.slow("h2", rate="50mbit"),
        deep=True,
    ),
    Fault(row=18, title="InfiniBand that NCCL cannot open", at=("h2",), inject=_no_verbs, gpus=2),
)
