"""Healthy hosts as data, and ways to break one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster.check.checks import QUICK
from muster.check.cluster_facts import Cluster, Machine, Reach, Wanted
from muster.check.definition import judge_all, load
from muster.check.finding import Finding
from muster.controller.addresses import Offer
from muster.shared.host_state import Facts
from muster.shared.replies import DialResult

CHECKS = load(QUICK)

Change = Callable[[dict[str, Any]], object]


def up(number: int, gpus: int) -> Facts:
    """What an agent says first."""
    return {
        "time": 0.0,
        "version": [3, 11],
        "python": "/opt/env/bin/python",
        "torch": "2.13.0+cu130",
        "cpus": 16,
        "gpus": gpus,
        "visible": None,
        "omp": None,
        "interfaces": [
            {"name": "lo", "addresses": ["127.0.0.1"], "loopback": True},
            {"name": "eth0", "addresses": [f"10.0.0.{number}"], "loopback": False},
        ],
    }


def gpu(name: str, number: int) -> dict[str, Any]:
    """A GPU at rest."""
    return {
        "index": number,
        "uuid": f"GPU-{name}-{number}",
        "name": "NVIDIA H200",
        "driver": "580.159.04",
        "memory": 143771.0,
        "used": 0.0,
        "celsius": 35.0,
        "ecc": 0.0,
        "hot": False,
        "braked": False,
        "width": [16.0, 16.0],
        "fabric": "N/A",
    }


TORCH: dict[str, Any] = {
    "version": "2.13.0+cu130",
    "cuda": "13.0",
    "git": "abc",
    "record": 7,
    "libraries": {"libtorch_cpu.so": [1, "id"], "libnccl.so.2": [2, "id"]},
    "nccl": "2.27.3",
    "stray_nccl": [],
    "driver": "580.159.04",
    "site": "/opt/env/lib",
    "python": "/opt/env/bin/python",
}


def gpus_of(name: str, count: int) -> dict[str, Any] | None:
    """What a host answers of its GPUs, if it has any."""
    if not count:
        return None
    return {
        "devices": count,
        "pci": count,
        "gpus": [gpu(name, index) for index in range(count)],
        "problem": "",
        "asked": True,
        "processes": [],
        "remapped": [],
    }


def answers(name: str, number: int, gpus: int) -> dict[str, Any]:
    """What a host answers to every probe."""
    limit = {"soft": -1, "hard": -1, "by": [1, "systemd"], "file": "", "flag": "-l"}
    return {
        "system": {
            "uid": 1000,
            "python": "3.11.7",
            "cpus": 16,
            "kernel": "6.1",
            "os": "Debian",
            "shell": "/bin/bash",
            "memory": 64 << 30,
        },
        "own_name": {"name": name, "addresses": [f"10.0.0.{number}"], "listed": [f"10.0.0.{number}"], "shared": []},
        "shm": {"size": 32 << 30, "free": 32 << 30},
        "python": {
            "executable": "/opt/env/bin/python",
            "version": "3.11",
            "torch": True,
            "managed": False,
            "others": ["/opt/env/bin/python"],
        },
        "torch": dict(TORCH),
        "same_code": {"folder": True, "files": {"train.py": [3, 9], "model.py": [4, 8]}},
        "shadow": [],
        "gpus": gpus_of(name, gpus),
        "hardware_addresses": [f"02:00:00:00:00:{number:02x}"],
        "fabric": None,
        "rdma": {"ports": [], "verbs": False, "plugin": False, "devices": 0},
        "master": None,
        "firewall": {"tool": "ufw", "chains": {"in": [], "out": []}},
        "names": {"seconds": 0.001, "what": name},
        "links": {
            "eth0": {
                "address": f"10.0.0.{number}",
                "network": "10.0.0.0/24",
                "mtu": 1500,
                "speed": 25000,
                "errors": 0,
                "packets": 10**6,
            }
        },
        "variables": {"env": {}, "sources": {}, "gone": {}, "adapters": []},
        "cpus": {"allowed": 16, "online": 16, "quota": None, "binder": [7, "sshd"], "everything": True},
        "limits": {"memlock": limit, "nofile": {**limit, "soft": 20000, "flag": "-n"}},
        "disk": {"/work": {"free": 1 << 40, "size": 1 << 41, "files": 10**6, "read_only": False}},
        "data": {},
        "clock": "chronyc",
        "profile": ["~/.bashrc"],
    }


def machine(name: str, number: int, gpus: int = 0) -> Machine:
    """One host."""
    return Machine(
        name=name,
        up=up(number, gpus),
        answers=answers(name, number, gpus),
        ranks=gpus or 1,
        login=("ssh", name),
        clock=0.001,
        clock_error=0.0005,
    )


def cluster(count: int = 4, *, gpus: int = 0, **wanted: Any) -> Cluster:
    """Hosts a, b, c, ... that reach each other."""
    names = [chr(ord("a") + number) for number in range(count)]
    machines = [machine(name, number + 1, gpus) for number, name in enumerate(names)]
    offers = tuple(
        Offer(name=m.name, interfaces=m.up["interfaces"], own_name=[f"10.0.0.{i + 1}"], port=40000 + i, nonce=m.name)
        for i, m in enumerate(machines)
    )
    tried: dict[str, list[DialResult]] = {
        dialler: [
            {"host": offer.name, "address": offer.own_name[0], "port": offer.port, "nonce": "", "problem": ""}
            for offer in offers
            if offer.name != dialler
        ]
        for dialler in names
    }
    asked = replace(Wanted(argv=("muster", "check", "-H", ",".join(names))), **wanted)
    return Cluster(machines=tuple(machines), wanted=asked, reach=Reach(offers=offers, tried=tried))


def broken(whole: Cluster, name: str, change: Change) -> Cluster:
    """The same hosts, with the answers of one changed."""

    def one(old: Machine) -> Machine:
        new = copy.deepcopy(dict(old.answers))
        change(new)
        return replace(old, answers=new)

    return replace(whole, machines=tuple(one(m) if m.name == name else m for m in whole.machines))


def altered(whole: Cluster, name: str, **changes: Any) -> Cluster:
    """The same hosts, with other facts about one."""
    return replace(whole, machines=tuple(replace(m, **changes) if m.name == name else m for m in whole.machines))


def unreached(whole: Cluster, *pairs: tuple[str, str], problem: str = "no answer") -> Cluster:
    """The same hosts, where some cannot connect to others."""
    assert whole.reach is not None
    tried = {
        dialler: [
            {**result, "problem": problem if (dialler, result["host"]) in pairs else result["problem"]}
            for result in results
        ]
        for dialler, results in whole.reach.tried.items()
    }
    return replace(whole, reach=replace(whole.reach, tried=tried))


def findings(whole: Cluster) -> list[Finding]:
    """What all checks say."""
    return judge_all(CHECKS, whole)
