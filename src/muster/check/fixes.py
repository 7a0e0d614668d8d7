"""Fixes that several checks share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from muster.agent.probes import host_network, operating_system
from muster.check.cluster_facts import Cluster
from muster.check.finding import Fix


def unset(cluster: Cluster, host: str, variable: str, why: str = "") -> Fix:
    """Remove an environment variable where it is set: --env, this shell, or a file on the host."""
    wanted = cluster.wanted
    path = cluster.answers(operating_system.variables)[host]["sources"].get(variable)
    if variable in wanted.named:
        return Fix(say=why, command=wanted.typed("--env", dropped=variable))
    if variable in wanted.env or (cluster.machine(host).inherits and path is None):
        return Fix(say=why, command=f"unset {variable}")
    if path is None:
        return Fix(say=f"unset {variable} where it is set on {host}")
    return Fix(say=why, command=f'{writing(cluster, host, path)}sed -i "/^[^#]*{variable}=/d" {tilde(path)}', on=host)


def writing(cluster: Cluster, host: str, path: str) -> str:
    """`sudo ` if the file is in /etc and the user is not root."""
    return cluster.sudo(host) if path.startswith("/etc/") else ""


def tilde(path: str) -> str:
    """Quote a path for a shell, keeping a leading `~/`."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def copy(cluster: Cluster, host: str, folder: str, files: list[str], say: str = "") -> Fix:
    """Copy files below a local directory to the same path on a host."""
    login = cluster.machine(host).login
    if not login:
        return Fix(say=say or f"copy {', '.join(files)} to {folder} on {host}")
    there = shlex.quote(folder)
    make = f"mkdir -p {there} && " if folder != "/" else ""
    unpack = shlex.quote(f"{make}tar -C {there} -x")
    return Fix(command=f"tar -C {there} -c {shlex.join(files)} | {shlex.join(login)} {unpack}", say=say)


def open_firewall(cluster: Cluster, host: str, peers: Sequence[str], direction: Literal["in", "out"]) -> Fix:
    """Open all ports between a host and its peers, because collectives use any port."""
    addresses = [address for peer in peers if (address := cluster.address(peer)) is not None]
    answer = cluster.machine(host).answer(host_network.firewall)
    if answer is None or not addresses:
        return Fix(say=f"allow all TCP ports between {host} and {', '.join(peers)}")
    sudo, tool = cluster.sudo(host), answer["tool"]
    chains = answer["chains"][direction]
    if tool == "ufw":
        way = "from" if direction == "in" else "to"
        lines = [f"{sudo}ufw allow {'out ' if direction == 'out' else ''}{way} {address}" for address in addresses]
    elif tool == "firewalld":
        lines = [f"{sudo}firewall-cmd --zone=trusted --add-source={address}" for address in addresses]
    elif tool == "nft" and chains:
        side = "saddr" if direction == "in" else "daddr"
        every = ", ".join(addresses)
        rule = f"ip {side} {{ {every} }} accept"
        lines = [f"{sudo}nft insert rule {chain} {rule}" for chain in chains]
    else:
        chain, side = ("INPUT", "-s") if direction == "in" else ("OUTPUT", "-d")
        lines = [f"{sudo}iptables -I {chain} {side} {address} -j ACCEPT" for address in addresses]
    return Fix(command=" && ".join(lines), on=host, say="collectives use any port between the hosts of a job")
