"""Hosts: which machines, how to reach them and how many ranks each one runs."""

from __future__ import annotations

from muster.hosts.host import Host
from muster.hosts.hostfile import read_hostfile
from muster.hosts.hostlist import MAX_SLOTS, Group, parse_hosts
from muster.hosts.name_ranges import MAX_HOSTS, expand

__all__ = ["MAX_HOSTS", "MAX_SLOTS", "Group", "Host", "expand", "parse_hosts", "read_hostfile"]
