"""Names, addresses and ports: rows 1 to 14."""

from __future__ import annotations

from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.stage import Stage


def _loopback_name(stage: Stage) -> None:
    stage.sh("h2", "sed -i 's/^10.77.0.2 /127.0.1.1 /' /etc/hosts")


def _unknown_name(stage: Stage) -> None:
    stage.sh("h2", "sed -i '/h2/d' /etc/hosts")


def _docker(stage: Stage) -> None:
    for host in stage.lab.names:
        stage.sh(
            host, "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up"
        )
    stage.sh("h2", "sed -i 's/^10.77.0.2 /172.17.0.1 /' /etc/hosts")


def _other_card(stage: Stage) -> None:
    stage.sh("h2", "ip link set eth0 down && ip link set eth0 name eno1 && ip link set eno1 up")


def _unknown_master(stage: Stage) -> None:
    for host in ("h1", "h3"):
        stage.sh(host, "echo 10.77.0.1 trainer >> /etc/hosts")


def _taken(stage: Stage) -> None:
    stage.background("h1", "exec python3 -m http.server 29500")
    stage.sh("h1", "for i in $(seq 50); do ss -ltn | grep -q :29500 && exit; sleep 0.1; done; exit 1")


def _proxy(stage: Stage) -> None:
    stage.background("h2", "exec python3 -m http.server 8080")
    stage.sh("h2", "for i in $(seq 50); do ss -ltn | grep -q :8080 && break; sleep 0.1; done")
    stage.sh(
        "h2",
        "nft add table ip proxy && nft add chain ip proxy out '{ type nat hook output priority 0; }' && "
        "nft add rule ip proxy out tcp dport 29500 redirect to :8080",
    )


def _closed_port(stage: Stage) -> None:
    stage.lab.block_port("h1", 29500, how="drop")


def firewall(stage: Stage, host: str, hook: str, rules: str) -> None:
    """Create a separate nft table, as an administrator would."""
    stage.sh(
        host,
        f"nft add table inet guard && nft add chain inet guard {hook} '{{ type filter hook {hook} priority 0; }}' && "
        f"nft add rule inet guard {hook} '{rules}'",
    )


def _closed_range(stage: Stage) -> None:
    firewall(stage, "h2", "input", "tcp dport 1024-65535 tcp dport != 29500 tcp flags syn / syn,ack drop")


def _one_way(stage: Stage) -> None:
    firewall(stage, "h2", "output", "tcp dport 1024-65535 tcp flags syn / syn,ack drop")


def _ipv6(stage: Stage) -> None:
    stage.sh(
        "h2", "ip -6 addr add fd00::2/64 dev eth0 nodad && sed -i '/h2/d' /etc/hosts && echo fd00::2 h2 >> /etc/hosts"
    )


def _slow_names(stage: Stage) -> None:
    stage.sh("h2", "echo nameserver 10.77.0.99 > /etc/resolv.conf && sed -i '/10.77/d' /etc/hosts")


PORT = ("--master-port", "29500")

FAULTS = (
    Fault(row=1, title="master address is loopback", at=("h2", "h3"), options=("--master-addr", "127.0.0.1")),
    Fault(row=3, title="hostname is 127.0.1.1", at=("h2",), inject=_loopback_name),
    Fault(row=4, title="hostname is not known", at=("h2",), inject=_unknown_name),
    Fault(row=5, title="hostname is docker0", at=("h2",), inject=_docker),
    Fault(
        row=6,
        title="interface a host lacks",
        at=("h2",),
        inject=_other_card,
        env={"GLOO_SOCKET_IFNAME": "eth0"},
    ),
    Fault(
        row=7,
        title="master address unknown to a host",
        at=("h2",),
        inject=_unknown_master,
        options=("--master-addr", "trainer"),
    ),
    Fault(row=8, title="port is taken", at=("h1",), inject=_taken, options=PORT),
    Fault(row=9, title="a proxy answers on the port", at=("h2",), inject=_proxy, options=PORT),
    Fault(row=10, title="firewall closes the port", at=("h1",), inject=_closed_port, options=PORT),
    Fault(row=11, title="firewall closes all other ports", at=("h2",), inject=_closed_range, options=PORT),
    Fault(row=12, title="one way only", at=("h2",), inject=_one_way),
    Fault(row=13, title="IPv6 on one host", at=("h2",), inject=_ipv6),
    Fault(row=14, title="slow names", at=("h2",), inject=_slow_names),
)
