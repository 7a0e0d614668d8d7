"""Hosts: which machines, how to reach them and how many ranks each one runs."""

from __future__ import annotations

from muster.hosts.host import Host
from muster.hosts.hostfile import read_hostfile
from muster.hosts.hostlist import Group, parse_hosts
from muster.hosts.name_ranges import expand

__all__ = ["Group", "Host", "expand", "parse_hosts", "read_hostfile"]
