"""The judges, which are pure functions: a problem of one host is found and attributed only to that host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from healthy import CHECKS, Change, altered, broken, cluster, findings, gpu, unreached

from muster.check.cluster_facts import Cluster, Refusal, odd_ones
from muster.check.here import data_in, paths_in
from muster.errors import HostError


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("count", [1, 2, 4, 40])
def test_healthy_hosts_are_accused_of_nothing(count: int, gpus: int):
    assert findings(cluster(count, gpus=gpus)) == []


def put(check: str, **changes: Any) -> Change:
    return lambda answers: answers[check].update(changes)


def set_variable(name: str, value: str, source: str = "~/.bashrc") -> Change:
    def change(answers: dict[str, Any]) -> None:
        answers["variables"]["env"][name] = value
        answers["variables"]["sources"][name] = source

    return change


def listed(address: str, *, shared: bool = False) -> Change:
    return put("own_name", addresses=[address], listed=[address], shared=[address] if shared else [])


ADD = "echo 10.0.0.2 b | sudo tee -a /etc/hosts"

# What changes on host b, the row it is, and what the finding and its command say.
ONE_HOST = [
    (listed("127.0.1.1"), 3, "its own name to 127.0.1.1", 'sed -i "s/^127.0.1.1[[:space:]]/10.0.0.2 /" /etc/hosts'),
    (listed("127.0.0.1", shared=True), 3, "its own name to 127.0.0.1", ADD),
    (put("own_name", addresses=[], listed=[]), 4, "cannot resolve its own name", ADD),
    (listed("10.9.9.9"), 4, "not an address of this host", "10.0.0.2"),
    (set_variable("GLOO_SOCKET_IFNAME", "eno1"), 6, "no such interface (available: eth0)", "GLOO_SOCKET_IFNAME=/d"),
    (set_variable("GLOO_SOCKET_IFNAME", "lo"), 6, "a loopback interface", "~/.bashrc"),
    (put("names", seconds=5.0, what="10.0.0.1"), 14, "looking up 10.0.0.1 takes 5.0 s", "10.0.0.1 a\\n10.0.0.2 b"),
    (lambda a: a["links"]["eth0"].update(mtu=9000), 15, "MTU 9000", "ip link set eth0 mtu 1500"),
    (lambda a: a["links"]["eth0"].update(errors=5000), 16, "5000 broken packets", "ip -s link show eth0"),
    (lambda a: a["links"]["eth0"].update(speed=100), 17, "runs at 100 Mbit/s", "ethtool eth0"),
    (put("python", torch=False, others=[]), 22, "torch is not installed", "-m pip install torch==2.13.0"),
    (put("python", version="3.9"), 22, "Python is 3.9", ""),
    (put("torch", version="2.12.0+cu130"), 23, "torch is 2.12.0+cu130", "torch==2.13.0 --index-url"),
    (put("torch", git="def"), 23, "built from a different commit", "--force-reinstall"),
    (put("torch", record=8), 23, "its installed files differ", "--force-reinstall"),
    (put("torch", stray_nccl=["/usr/lib/libnccl.so.2"]), 23, "LD_LIBRARY_PATH puts", ""),
    (put("torch", driver="470.1"), 23, "too old for CUDA 13.0", ""),
    (lambda a: a.update(shadow=["/work/types.py"]), 25, "shadows the standard library module", "mv /work/types.py"),
    (lambda a: a.update(fabric={"state": "failed", "version": ""}), 26, "fabricmanager is failed", "systemctl restart"),
    (set_variable("NCCL_IB_HCA", "mlx5_0"), 27, "no such InfiniBand adapter", "NCCL_IB_HCA"),
    (set_variable("NCCL_P2P_DISABLE", "1"), 27, "NCCL_P2P_DISABLE=1", "NCCL_P2P_DISABLE"),
    (set_variable("NCCL_ALGO", "Ring", "/etc/nccl.conf"), 27, "unset on the other hosts", "sudo sed -i"),
    (put("variables", gone={"NCCL_TOPO_FILE": "/opt/topo.xml"}), 27, "NCCL_TOPO_FILE=/opt/topo.xml: no such file", ""),
    (set_variable("OMP_NUM_THREADS", "1"), 29, "leaves 15 of 16 CPUs idle with 1 rank", "OMP_NUM_THREADS"),
    (set_variable("OMP_NUM_THREADS", "64"), 29, "64 threads on 16 CPUs", "OMP_NUM_THREADS"),
    (put("cpus", allowed=1, everything=False), 30, "usable: sshd (process 7)", "sudo taskset -pc 0-15 7"),
    (put("cpus", quota=2.0), 30, "limits CPU time to 2 of 16 CPUs", ""),
    (lambda a: a["limits"]["nofile"].update(soft=64, by=[7, "sshd"]), 32, "(set by sshd, process 7)", "prlimit"),
    (put("shm", size=64 << 20, free=0), 33, "/dev/shm is only 64 MB", "sudo mount -o remount,size=32g /dev/shm"),
    (put("shm", free=1 << 20), 33, "/dev/shm is full", "ls -lt /dev/shm"),
    (set_variable("WORLD_SIZE", "7"), 45, "WORLD_SIZE=7", "WORLD_SIZE"),
    (lambda a: a["disk"]["/work"].update(free=1 << 20), 51, "/work is full", "du -xh /work"),
    (lambda a: a["disk"]["/work"].update(read_only=True), 51, "/work is read-only", ""),
]  # fmt: skip


@pytest.mark.parametrize(("change", "row", "said", "command"), ONE_HOST)
def test_a_problem_of_one_host_is_attributed_to_it(change: Change, row: int, said: str, command: str):
    hosts = broken(cluster(), "b", change)
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (row, ("b",))
    assert said in found.what
    assert command in hosts.line(found.fix)
    assert found.symptom
    assert found.fix.command or found.fix.say


def a_gpu(**changes: Any) -> Change:
    return lambda answers: answers["gpus"]["gpus"][1].update(changes)


def process(uid: int) -> Change:
    one = {"uuid": "GPU-b-1", "pid": 42, "name": "python", "used": 20480.0, "uid": uid}
    return lambda answers: answers["gpus"].update(processes=[one])


ONE_HOST_WITH_GPUS = [
    (set_variable("CUDA_VISIBLE_DEVICES", "0,0"), 44, "lists GPU 0 twice", "CUDA_VISIBLE_DEVICES"),
    (set_variable("CUDA_VISIBLE_DEVICES", "1,GPU-b-1"), 44, "lists GPU 1 twice", "CUDA_VISIBLE_DEVICES"),
    (lambda a: a["gpus"]["gpus"].pop(), 48, "only 1 of 2 GPUs respond", "reboot"),
    (put("gpus", gpus=[], problem="couldn't communicate\nwith"), 48, "nvidia-smi fails: couldn't", "reboot"),
    (a_gpu(ecc=4.0), 48, "GPU 1 has had 4 uncorrectable memory errors", "sudo nvidia-smi --gpu-reset -i 1"),
    (a_gpu(hot=True, celsius=91.0), 48, "too hot (91 C)", "nvidia-smi -q"),
    (a_gpu(width=[4.0, 16.0]), 48, "4 of 16 PCIe lanes", ""),
    (lambda a: [g.update(name="NVIDIA A100") for g in a["gpus"]["gpus"]], 48, "the GPUs are NVIDIA A100", ""),
    (put("gpus", remapped=[["GPU-b-0", "No", "Yes"]]), 48, "GPU 0 needs a reset", "--gpu-reset -i 0"),
    (put("gpus", remapped=[["GPU-b-0", "Yes", "No"]]), 48, "failed to remap bad memory rows", ""),
    (process(1000), 49, "python (process 42) with 20.0 GB", "kill 42"),
    (process(1001), 49, "python (process 42)", ""),
    (a_gpu(used=60000.0), 49, "is in use, but no visible process owns it", "--gpu-reset -i 1"),
    (put("torch", cuda=""), 23, "cannot use the 2 GPUs", "pip install"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "row", "said", "command"), ONE_HOST_WITH_GPUS)
def test_a_problem_of_a_gpu_is_attributed_to_its_host(change: Change, row: int, said: str, command: str):
    hosts = broken(cluster(gpus=2), "b", change)
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (row, ("b",))
    assert said in found.what
    assert command in hosts.line(found.fix)


def test_a_fix_does_not_kill_the_process_of_another_user():
    hosts = broken(cluster(gpus=2), "b", process(1001))
    (found,) = findings(hosts)
    assert found.fix.command == ""
    assert "another user" in found.fix.say


def with_infiniband(**changes: Any) -> Change:
    port = {"name": "mlx5_0:1", "state": "active", "driver": "mlx5_core"}

    def change(answers: dict[str, Any]) -> None:
        answers["rdma"] = {"ports": [port], "verbs": True, "plugin": False, "devices": 1, **changes}
        answers["variables"]["adapters"] = ["mlx5_0"]

    return change


def everywhere(whole: Cluster, change: Change) -> Cluster:
    for machine in whole.machines:
        whole = broken(whole, machine.name, change)
    return whole


@pytest.mark.parametrize(
    ("change", "row", "said"),
    [
        (with_infiniband(devices=0), 18, "no device /dev/infiniband/uverbs"),
        (with_infiniband(verbs=False), 18, "not libibverbs"),
        (
            with_infiniband(ports=[{"name": "mlx5_0:1", "state": "down", "driver": ""}]),
            18,
            "no InfiniBand port is active",
        ),
        (with_infiniband(ports=[{"name": "efa_0:1", "state": "active", "driver": "efa"}]), 18, "has AWS EFA"),
        (lambda a: a.update(rdma={"ports": []}), 18, "has 0 InfiniBand ports; the other hosts have 1"),
        (
            lambda a: a["limits"]["memlock"].update(soft=65536, by=[9, "slurmd"]),
            31,
            "can lock only 64 KB of memory (set by slurmd",
        ),
        (set_variable("NCCL_IB_DISABLE", "1"), 27, "leaves mlx5_0 unused"),
        (set_variable("NCCL_IB_HCA", "=mlx5_1:1"), 27, "available: mlx5_0"),
    ],
)
def test_a_host_that_cannot_use_its_infiniband_is_named(change: Change, row: int, said: str):
    whole = everywhere(cluster(gpus=2), with_infiniband())
    assert findings(whole) == []
    (found,) = findings(broken(whole, "b", change))
    assert (found.row, found.hosts) == (row, ("b",))
    assert said in found.what


def test_a_limit_set_by_slurm_is_fixed_in_its_unit():
    whole = everywhere(cluster(gpus=2), with_infiniband())
    change: Change = lambda a: a["limits"]["memlock"].update(soft=65536, by=[9, "slurmstepd"])  # noqa: E731
    hosts = broken(whole, "b", change)
    (found,) = findings(hosts)
    assert "LimitMEMLOCK=infinity" in found.fix.command
    assert "systemctl restart slurmd" in found.fix.command


def test_an_interface_of_docker_is_no_network_between_hosts():
    hosts = cluster()
    nics = [*hosts.machine("b").up["interfaces"], {"name": "docker0", "addresses": ["172.17.0.1"], "loopback": False}]
    hosts = altered(hosts, "b", up={**hosts.machine("b").up, "interfaces": nics})
    (found,) = findings(broken(hosts, "b", listed("172.17.0.1")))
    assert (found.row, found.hosts) == (5, ("b",))


def test_a_name_that_is_ipv6_on_one_host_is_reported_with_the_hosts_that_lack_it():
    hosts = cluster()
    nics = [*hosts.machine("b").up["interfaces"], {"name": "eth1", "addresses": ["fd00::2"], "loopback": False}]
    hosts = altered(hosts, "b", up={**hosts.machine("b").up, "interfaces": nics})
    (found,) = findings(broken(hosts, "b", listed("fd00::2")))
    assert (found.row, found.hosts) == (13, ("b",))
    assert "a, c, d have no IPv6" in found.what


@pytest.mark.parametrize(
    ("pairs", "row", "hosts"),
    [
        ([("a", "b"), ("c", "b"), ("d", "b")], 11, ("b",)),
        ([("b", "a"), ("b", "c"), ("b", "d")], 12, ("b",)),
        ([("a", "b")], 12, ("a", "b")),
    ],
)
def test_a_host_that_cannot_be_reached_is_distinguished_from_one_that_cannot_reach_others(
    pairs: list[Any], row: int, hosts: tuple[str, ...]
):
    (found,) = findings(unreached(cluster(), *pairs))
    assert (found.row, found.hosts) == (row, hosts)
    assert found.severity == "error"
    assert "ufw allow" in found.fix.command


def test_two_hosts_that_nobody_reaches_are_both_named():
    pairs = [(dialler, target) for target in "bc" for dialler in "abcd" if dialler != target]
    assert {found.hosts for found in findings(unreached(cluster(), *pairs))} == {("b",), ("c",)}


def test_an_address_must_do_for_all():
    hosts = cluster(3)
    assert hosts.reach is not None
    tried = {dialler: list(results) for dialler, results in hosts.reach.tried.items()}
    second = {"host": "b", "address": "192.168.0.2", "port": 1, "problem": ""}
    tried["a"].append({**second, "problem": "no answer"})
    tried["c"] = [{**r, "problem": "no answer"} if r["host"] == "b" else r for r in tried["c"]] + [second]
    (found,) = findings(replace(hosts, reach=replace(hosts.reach, tried=tried)))
    assert found.hosts == ("b",)
    assert "10.0.0.2, 192.168.0.2" in found.what


def with_master(hosts: Cluster, *problems: str) -> Cluster:
    """What all hosts but the first met at the master port."""
    assert hosts.reach is not None
    others = [machine.name for machine in hosts.machines[1:]]
    results = {
        name: [{"host": "a", "address": "10.0.0.1", "port": 29500, "problem": problem}]
        for name, problem in zip(others, problems, strict=True)
    }
    return replace(hosts, reach=replace(hosts.reach, master=results))


def test_a_loopback_master_address_is_reported_for_all_other_hosts():
    hosts = everywhere(cluster(master_addr="127.0.0.1"), lambda a: a.update(master=["127.0.0.1"]))
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (1, ("b", "c", "d"))
    assert hosts.line(found.fix) == "muster check -H a,b,c,d"


def test_a_master_name_that_one_host_does_not_know_is_its_fault():
    argv = ("muster", "check", "-H", "a,b,c,d", "--master-addr", "trainer")
    hosts = everywhere(cluster(master_addr="trainer", argv=argv), lambda a: a.update(master=["10.0.0.1"]))
    hosts = broken(hosts, "b", lambda a: a.update(master=[]))
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (7, ("b",))
    assert hosts.line(found.fix) == "muster check -H a,b,c,d"


def test_a_master_port_that_is_taken_names_who_has_it():
    hosts = cluster(master_port=29500)
    assert hosts.reach is not None
    reach = replace(hosts.reach, port_problem="address already in use", port_owner="pid 7 (python old.py)")
    (found,) = findings(replace(hosts, reach=reach))
    assert (found.row, found.hosts) == (8, ("a",))
    assert "pid 7 (python old.py)" in found.what


@pytest.mark.parametrize("problem", ["another machine or program answered", "connected, but received nothing"])
def test_another_program_on_the_master_port_is_reported_for_the_host_that_meets_it(problem: str):
    (found,) = findings(with_master(cluster(master_port=29500), "", problem, ""))
    assert (found.row, found.hosts) == (9, ("c",))


def test_a_master_port_closed_for_all_is_the_first_hosts_fault():
    (found,) = findings(with_master(cluster(master_port=29500), *["no answer"] * 3))
    assert (found.row, found.hosts) == (10, ("a",))


def test_a_master_port_closed_for_one_is_that_hosts_fault():
    (found,) = findings(with_master(cluster(master_port=29500), "", "no answer", ""))
    assert (found.row, found.hosts) == (10, ("c",))


@pytest.mark.parametrize(
    ("kind", "row", "command"),
    [
        ("denied", 19, "muster setup ssh -H me@e"),
        ("unknown-key", 20, "muster setup ssh -H me@e"),
        ("changed-key", 20, "ssh-keygen -R e && muster setup ssh -H me@e"),
        ("dead", 0, ""),
    ],
)
def test_a_host_that_lets_nobody_in_is_an_error(kind: str, row: int, command: str):
    refusal = Refusal(name="e", why=HostError("e", "it says no", kind=kind), spec="me@e")
    (found,) = findings(replace(cluster(), refusals=(refusal,)))
    assert (found.severity, found.row, found.hosts) == ("error", row, ("e",))
    assert found.fix.command == command


def test_a_profile_that_talks_is_quoted_and_guarded():
    hosts = altered(cluster(), "b", noise="Welcome to b\nhave fun\n")
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (21, ("b",))
    assert "`Welcome to b`" in found.what
    assert found.fix.command.startswith('sed -i "1i case')


def test_a_python_with_torch_that_all_hosts_have_is_suggested():
    hosts = everywhere(cluster(), lambda a: a["python"].update(others=["/opt/conda/bin/python3"]))
    hosts = broken(hosts, "b", put("python", torch=False, executable="/usr/bin/python3"))
    (found,) = findings(hosts)
    assert hosts.line(found.fix) == "muster check --python /opt/conda/bin/python3 -H a,b,c,d"


@pytest.mark.parametrize(("clock", "said"), [(7.0, "7.0 s ahead"), (-0.2, "201 ms behind")])
def test_a_clock_is_compared_with_those_of_all_others(clock: float, said: str):
    (found,) = findings(altered(cluster(), "b", clock=clock))
    assert (found.row, found.hosts) == (28, ("b",))
    assert said in found.what


def test_a_clock_that_a_slow_way_leaves_in_doubt_is_no_fault():
    assert findings(altered(cluster(), "b", clock=0.4, clock_error=0.5)) == []


def test_our_own_clock_is_not_blamed_on_the_hosts():
    hosts = cluster()
    for machine in hosts.machines:
        hosts = altered(hosts, machine.name, clock=60.0)
    assert findings(hosts) == []


def test_code_that_differs_is_named_and_sent():
    wanted: dict[str, Any] = {"script": "train.py", "cwd": "/work", "code": {"train.py": [3, 9], "model.py": [4, 8]}}
    hosts = broken(cluster(**wanted), "b", lambda a: a["same_code"]["files"].update({"model.py": [5, 5]}))
    (found,) = findings(hosts)
    assert (found.row, found.hosts, found.severity) == (24, ("b",), "warning")
    assert hosts.line(found.fix) == "tar -C /work -c model.py | ssh b 'mkdir -p /work && tar -C /work -x'"
    (found,) = findings(broken(hosts, "b", lambda a: a["same_code"]["files"].update({"train.py": None})))
    assert found.severity == "error"


def test_a_scheduler_may_give_some_cpus_but_not_fewer_than_ranks():
    hosts = broken(altered(cluster(), "b", tasks=4, ranks=4), "b", put("cpus", allowed=4))
    assert findings(hosts) == []
    (found,) = findings(broken(hosts, "b", put("cpus", allowed=1)))
    assert "4 ranks share one CPU" in found.what


@pytest.mark.parametrize(("paths", "severity"), [({"data": ("/data",)}, "error"), ({}, "warning")])
def test_data_that_one_host_lacks_is_worse_if_it_was_asked_for(paths: dict[str, Any], severity: str):
    hosts = everywhere(cluster(paths=("/data",), **paths), lambda a: a.update(data={"/data": ["folder", 10, 0]}))
    assert findings(hosts) == []
    (found,) = findings(broken(hosts, "b", lambda a: a.update(data={"/data": None})))
    assert (found.row, found.hosts, found.severity) == (52, ("b",), severity)
    (found,) = findings(broken(hosts, "b", lambda a: a.update(data={"/data": ["folder", 9, 0]})))
    assert "has 9 entries; on the other hosts: 10 entries" in found.what


@pytest.mark.parametrize(
    ("args", "paths"),
    [
        (["--data", "/data/set", "--lr", "0.1"], ["/data/set"]),
        (["--data=/data/set", "./conf.yaml"], ["/data/set", "./conf.yaml"]),
        (["--output-dir", "/results", "--logdir=/logs", "--cache", "~/c"], []),
        (["-v", "/data"], ["/data"]),
        (["a/b", "0.1"], []),
    ],
)
def test_arguments_that_look_like_paths_to_read_are_checked(args: list[str], paths: list[str]):
    assert paths_in(args) == paths


def test_a_path_that_no_host_has_may_be_one_the_job_makes():
    assert findings(everywhere(cluster(paths=("/out",)), lambda a: a.update(data={"/out": None}))) == []


def test_a_path_of_a_script_that_no_host_has_is_reported_by_check():
    hosts = cluster(paths=("/data",), expected=("/data",))
    (found,) = findings(everywhere(hosts, lambda a: a.update(data={"/data": None})))
    assert (found.severity, found.row, found.hosts) == ("warning", 52, tuple(m.name for m in hosts.machines))
    assert "unless the script creates it" in found.symptom


@pytest.mark.parametrize(("hosts", "to"), [(1, "a"), (2, "every host")])
def test_the_fix_for_missing_data_names_a_single_host(hosts: int, to: str):
    asked = cluster(hosts, paths=("/data",), data=("/data",))
    (found,) = findings(everywhere(asked, lambda a: a.update(data={"/data": None})))
    assert found.fix is not None
    assert found.fix.say == f"check the path, or mount or copy it to {to}"


def test_data_below_the_root_is_copied_without_creating_the_root():
    hosts = cluster(paths=("/data",), data=("/data",), here=("/data",))
    hosts = everywhere(hosts, lambda a: a.update(data={"/data": ["folder", 10, 0]}))
    missing = broken(hosts, "b", lambda a: a.update(data={"/data": None}))
    (found,) = findings(missing)
    assert found.fix is not None
    assert missing.line(found.fix) == "tar -C / -c data | ssh b 'tar -C / -x'"


def test_the_data_of_a_script_is_what_its_own_option_data_names():
    args = ["--data", "/data/set", "--data=cifar10", "--data", "s3://bucket/set", "--lr", "/x"]
    assert data_in(args) == ["/data/set", "cifar10"]


def test_one_machine_under_two_names_is_reported():
    hosts = broken(cluster(gpus=2), "b", lambda a: a["gpus"].update(gpus=[gpu("a", 0), gpu("a", 1)]))
    (found,) = findings(hosts)
    assert (found.row, found.hosts) == (44, ("b",))
    assert "the same machine as a" in found.what


def test_a_probe_that_hangs_is_a_finding_where_that_means_something():
    assert [f.row for f in findings(altered(cluster(), "b", hung={"gpus": 6.0}))] == [48]
    assert [f.row for f in findings(altered(cluster(), "b", hung={"names": 3.0}))] == [14]
    assert [f.row for f in findings(altered(cluster(), "b", hung={"disk": 3.0}))] == [52]


def test_hosts_that_answered_nothing_break_no_judge():
    hosts = cluster()
    for machine in hosts.machines:
        hosts = altered(hosts, machine.name, answers={})
    assert findings(hosts) == []


def test_a_variable_of_this_shell_is_unset_here():
    change = set_variable("GLOO_SOCKET_IFNAME", "eno1")
    hosts = broken(cluster(env={"GLOO_SOCKET_IFNAME": "eno1"}), "b", change)
    (found,) = findings(hosts)
    assert hosts.line(found.fix) == "unset GLOO_SOCKET_IFNAME"
    argv = ("muster", "check", "--env", "A=1", "--env", "GLOO_SOCKET_IFNAME=eno1", "-H", "a,b,c,d")
    both = {"env": {"GLOO_SOCKET_IFNAME": "eno1"}, "named": {"GLOO_SOCKET_IFNAME": "eno1"}, "argv": argv}
    hosts = broken(cluster(**both), "b", change)
    (found,) = findings(hosts)
    assert hosts.line(found.fix) == "muster check --env A=1 -H a,b,c,d"


def test_a_container_may_be_given_some_cpus():
    assert findings(broken(cluster(), "b", put("cpus", allowed=4, everything=True))) == []


def test_a_torch_that_conda_installed_is_not_taken_for_another_because_it_keeps_no_list():
    assert findings(broken(cluster(), "b", put("torch", record=0))) == []


def test_an_interface_matters_to_what_the_devices_of_a_host_use():
    (found,) = findings(broken(cluster(), "b", set_variable("NCCL_SOCKET_IFNAME", "eno")))
    assert found.severity == "warning"
    (found,) = findings(broken(cluster(gpus=2), "b", set_variable("NCCL_SOCKET_IFNAME", "eno")))
    assert found.severity == "error"
    assert findings(broken(cluster(gpus=2), "b", set_variable("NCCL_SOCKET_IFNAME", "eth"))) == []
    assert findings(broken(cluster(gpus=2), "b", set_variable("NCCL_SOCKET_IFNAME", "^docker,lo"))) == []


def test_gpus_that_have_not_joined_the_others_are_reported_from_inside_a_container():
    change: Change = lambda a: [g.update(fabric="In Progress") for g in a["gpus"]["gpus"]]  # noqa: E731
    (found,) = findings(broken(cluster(gpus=2), "b", change))
    assert (found.row, found.hosts) == (26, ("b",))


def test_the_first_host_is_right_in_a_tie():
    assert odd_ones({"a": 1, "b": 2}) == (1, {"b": 2})
    assert odd_ones({"a": 1, "b": 2, "c": 2}) == (2, {"a": 1})
    assert odd_ones({}) == (None, {})


def test_every_check_says_what_it_is_for():
    import importlib

    for name in CHECKS:
        assert importlib.import_module(f"muster.check.checks.{name}").__doc__


def test_what_earlier_jobs_learned_about_a_host_is_a_warning():
    what = "GPU 3 fell off the bus (Xid 79) 2 h ago (job train-3f9a)"
    (found,) = findings(cluster(3, known_bad={"b": ("me@b", what)}))
    assert (found.severity, found.title) == ("warning", f"b: {what}")
    assert found.fix.command == "muster check --deep -H me@b"
