"""`muster run` over real ssh to lab hosts: placing, addresses, environment and code on other machines."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MUSTER, PLAIN, Done, HostJob, alive, run_here, run_in
from waiting import wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

WHO = """
import os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
print(socket.gethostname(), *(os.environ[name] for name in names), *sys.argv[1:])
"""

# All ranks really meet: a store on rank 0, as torch's is, and each rank's address as gloo would find it.
MEET = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0])
dist.all_reduce(total)
print("sum", int(total.item()), "at", os.environ["MASTER_ADDR"], "over", os.environ.get("GLOO_SOCKET_IFNAME"),
      os.environ.get("NCCL_SOCKET_IFNAME"))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def nothing_left(cluster: Lab) -> Iterator[None]:
    """Whatever a test did, no process of its jobs lives on any host afterwards."""
    yield
    wait_until(
        "every process to end",
        lambda: not alive(cluster, cluster.names),
        20,
        lambda: str(alive(cluster, cluster.names)),
    )


def write(shared: Path, name: str, text: str) -> str:
    (shared / name).write_text(text)
    return name


def in_host(lab: Lab, host: str, script: str) -> str:
    done = lab.run(host, ["sh", "-ec", script], timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ranks(done: Done) -> dict[int, tuple[str, list[str]]]:
    """Per rank the host its label names, and its lines."""
    found: dict[int, tuple[str, list[str]]] = {}
    for host, rank, text in re.findall(r"^\[(\S+) +(\d+)\] (.*)$", done.out, re.MULTILINE):
        found.setdefault(int(rank), (host, []))[1].append(text)
    return dict(sorted(found.items()))


def test_unequal_hosts_get_their_ranks_in_order(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1,h3:2", "who.py", "an argument", "--x")
    assert done.code == 0, done.said
    assert ranks(done) == {
        0: ("h2", ["h2 0 0 3 1 0 2 an argument --x"]),
        1: ("h3", ["h3 1 0 3 2 1 2 an argument --x"]),
        2: ("h3", ["h3 2 1 3 2 1 2 an argument --x"]),
    }


def test_the_controllers_own_host_takes_part_without_ssh(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h1:1,h2:1", "who.py")
    assert done.code == 0, done.said
    assert [host for host, _ in ranks(done).values()] == ["h1", "h2"]
    assert "connecting to h2\n" in done.err


def test_hosts_from_a_file_with_users_and_duplicates(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    user = in_host(cluster, "h1", "id -un").strip()
    (shared / "hosts.txt").write_text(f"# my machines\n{user}@h2 slots=1\n\nh3 slots=1\nh3 slots=1\n")
    done = run_in(cluster, "h1", shared, "--no-zygote", "--hostfile", "hosts.txt", "who.py")
    assert done.code == 0, done.said
    assert [(host, lines[0].split()[3]) for host, lines in ranks(done).values()] == [
        ("h2", "3"),
        ("h3", "3"),
        ("h3", "3"),
    ]


def test_nproc_counts_where_the_list_does_not_say(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2,h3:1", "--nproc", "2", "who.py")
    assert [host for host, _ in ranks(done).values()] == ["h2", "h2", "h3"], done.said


def test_the_lab_option_brings_its_own_hosts_and_takes_them_away(tmp_path: Path) -> None:
    (tmp_path / "who.py").write_text(WHO)
    done = run_here(tmp_path, "--no-zygote", "--lab", "2", "--nproc", "2", "who.py")
    assert done.code == 0, done.said
    assert [host for host, _ in ranks(done).values()] == ["h1", "h1", "h2", "h2"]


def test_the_lab_option_takes_numbers_of_ranks_per_host(tmp_path: Path) -> None:
    (tmp_path / "who.py").write_text(WHO)
    done = run_here(tmp_path, "--no-zygote", "--lab", "3", "-H", "h1:1,h3:2", "who.py")
    assert done.code == 0, done.said
    assert [host for host, _ in ranks(done).values()] == ["h1", "h3", "h3"]


def rename_nic(lab: Lab, host: str, old: str, new: str) -> None:
    """Give a host's network interface another name; it keeps its address."""
    in_host(lab, host, f"ip link set {old} down; ip link set {old} name {new}; ip link set {new} up")


@pytest.mark.torch
def test_ranks_meet_although_names_stand_for_loopback_docker0_is_everywhere_and_nics_differ(
    cluster: Lab, shared: Path
) -> None:
    """Debian's 127.0.1.1, a bridge with one address on all hosts, and another NIC name per host, all at once."""
    write(shared, "meet.py", MEET)
    nics = {"h2": "eth0", "h3": "enp9s0"}
    for host in nics:
        in_host(
            cluster,
            host,
            f"cp /etc/hosts /tmp/hosts; sed -i '/ {host}$/d' /etc/hosts; echo '127.0.1.1 {host}' >> /etc/hosts;"
            "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up",
        )
    rename_nic(cluster, "h3", "eth0", "enp9s0")
    try:
        done = run_in(cluster, "h1", shared, "-H", "h2:1,h3:1", "meet.py")
    finally:
        rename_nic(cluster, "h3", "enp9s0", "eth0")
        for host in nics:
            in_host(cluster, host, "cp /tmp/hosts /etc/hosts; ip link del docker0")
    assert done.code == 0, done.said
    at = cluster.address("h2")
    assert ranks(done) == {
        0: ("h2", [f"sum 2 at {at} over eth0 eth0"]),
        1: ("h3", [f"sum 2 at {at} over enp9s0 enp9s0"]),
    }
    assert "h2: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are eth0" in done.err
    assert "127.0.1.1" in done.err


def test_a_firewall_between_the_hosts_is_found_before_anything_starts(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    in_host(
        cluster,
        "h3",
        "nft add table inet t; nft 'add chain inet t i { type filter hook input priority 0; }';"
        # New connections only: what h2 answers to h3's own comes through.
        f"nft add rule inet t i ip saddr {cluster.address('h2')} tcp flags '&' '(syn|ack)' == syn drop",
    )
    try:
        done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1,h3:1", "who.py")
    finally:
        in_host(cluster, "h3", "nft delete table inet t")
    assert done.code == 125, done.said
    assert done.out == ""
    assert f"error: h3: other hosts cannot connect to it: h2 tried {cluster.address('h3')} (no answer)" in done.err


@pytest.mark.parametrize(
    "noise", ["echo -n 'Welcome, no newline'", "cat /proc/cpuinfo; printf '\\036muster\\036'; echo >&2 w"]
)
def test_a_shell_profile_that_prints_does_not_break_the_channel(cluster: Lab, shared: Path, noise: str) -> None:
    write(shared, "who.py", WHO)
    home = in_host(cluster, "h2", "echo ~").strip()
    in_host(cluster, "h2", f"printf '%s\\n' {shlex.quote(noise)} > {home}/.bashrc")
    try:
        heard = cluster.run("h1", ["ssh", "h2", "true"], timeout=30)
        assert heard.stdout, "bash under sshd must read .bashrc, or this test tests nothing"
        done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1", "who.py")
    finally:
        in_host(cluster, "h2", f"rm {home}/.bashrc")
    assert done.code == 0, done.said
    assert done.out == "[h2 0] h2 0 0 1 1 0 1\n"


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_variables_reach_the_ranks_and_never_a_command_line(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "secret.py",
        "import os, sys, time\n"
        "print('got', os.environ['TOKEN'][::-1], os.environ['WANDB_API_KEY'][::-1], os.environ['LR'],"
        " os.environ.get('OF_MY_SHELL'), os.environ.get('PATH_OF_MINE'), flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n",
    )
    job = HostJob(
        cluster,
        "h1",
        shared,
        *("--no-zygote", "-H", "h2:1,h3:1", "--env", "TOKEN", "--env", "LR=0.125-of-mine or = so", "secret.py", "go"),
        TOKEN="s3cret-of-mine",
        WANDB_API_KEY="k3y-of-mine",
        OF_MY_SHELL="stays here",
    )
    try:
        wait_until("both ranks", lambda: job.out.count("got") == 2, 30, lambda: job.out + job.err)
        lines = [command_line(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        ours = [line for line in lines if b"muster" in line or b"closefd" in line or b"secret.py" in line]
        assert len(ours) >= 5, "the controller, two ssh clients and two agents at least"
        assert not [line for line in lines if b"s3cret-of-mine" in line or b"k3y-of-mine" in line]
        # What the user typed as a value stands on muster's own command line, and on no other.
        typed = [line for line in lines if b"0.125-of-mine" in line]
        assert all(b"muster\0run\0" in line for line in typed), typed
    finally:
        (shared / "go").touch()
        done = job.wait()
    assert done.code == 0, done.said
    expected = f"got {'s3cret-of-mine'[::-1]} {'k3y-of-mine'[::-1]} 0.125-of-mine or = so None None"
    assert ranks(done) == {0: ("h2", [expected]), 1: ("h3", [expected])}


def test_nothing_of_the_job_lies_on_a_hosts_disk_without_sync(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    # The upper layer of the host's disk holds just what was written there; byte code of the interpreter aside.
    written = "find /run/muster-lab/disk/upper /tmp /dev/shm -xdev -type f | grep -v __pycache__ | sort"
    before = in_host(cluster, "h2", written)
    assert run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1", "who.py").code == 0
    assert in_host(cluster, "h2", written) == before


@pytest.fixture
def project(cluster: Lab) -> Path:
    """A checkout on h1 alone: a tracked, an untracked, an ignored and a changed file, and a script."""
    folder = Path("/tmp/project")
    in_host(
        cluster,
        "h1",
        f"rm -rf {folder}; mkdir -p {folder}/sub; cd {folder}; git init -q .;"
        "echo 'import sub.tracked, untracked, os; print(os.getcwd(), sub.tracked.X, untracked.X,"
        ' os.path.exists("data.bin"), os.path.exists("run.sh") and os.access("run.sh", os.X_OK))\' > main.py;'
        "echo 'X = 1' > sub/tracked.py; echo '*.bin' > .gitignore; echo big > data.bin; echo '#!/bin/sh' > run.sh;"
        "chmod +x run.sh; git add .; git -c user.name=t -c user.email=t@t commit -qm x;"
        "echo 'X = \"changed\"' > sub/tracked.py; echo 'X = \"new\"' > untracked.py",
    )
    return folder


def run_project(cluster: Lab, shared: Path, project: Path, *argv: str) -> Done:
    """`muster run` in a folder that only h1 has."""
    command = ["env", "-i", *(f"{name}={value}" for name, value in PLAIN.items()), MUSTER, "run", *argv]
    done = cluster.run("h1", command, timeout=100, cwd=str(project))
    return Done(code=done.returncode, out=done.stdout, err=done.stderr, state=shared)


def test_a_folder_that_is_not_on_a_host_is_an_error_that_names_sync(cluster: Lab, shared: Path, project: Path) -> None:
    done = run_project(cluster, shared, project, "--no-zygote", "-H", "h1:1,h2:1,h3:1", "main.py")
    assert done.code == 125, done.said
    assert done.out == ""
    assert "h2: the working directory /tmp/project does not exist" in done.err
    assert "--sync" in done.err.partition("hint:")[2]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("mkdir -p /tmp/project", "main.py does not exist in /tmp/project"),
        ("echo 1 > /tmp/project/main.py", "main.py differs"),
    ],
)
def test_a_script_that_is_missing_or_different_is_an_error_that_names_sync(
    cluster: Lab, shared: Path, project: Path, there: str, said: str
) -> None:
    in_host(cluster, "h2", f"mkdir -p /tmp/project; {there}")
    try:
        done = run_project(cluster, shared, project, "--no-zygote", "-H", "h1:1,h2:1", "main.py")
    finally:
        in_host(cluster, "h2", "rm -r /tmp/project")
    assert done.code == 125, done.said
    assert done.out == ""
    assert re.search(rf"error: h2: .*{re.escape(said)}", done.err), done.said
    assert "--sync" in done.err.partition("hint:")[2]


def test_sync_sends_what_git_would_track_and_runs_there(cluster: Lab, shared: Path, project: Path) -> None:
    done = run_project(cluster, shared, project, "--sync", "--no-zygote", "-H", "h1:1,h2:1,h3:1", "main.py")
    assert done.code == 0, done.said
    found = ranks(done)
    assert [host for host, _ in found.values()] == ["h1", "h2", "h3"]
    for _, (line,) in found.values():
        assert line.split()[1:] == ["changed", "new", "False", "True"]
    # One path on all hosts, in the job's folder there, readable by the user alone.
    folders = {line.split()[0] for _, (line,) in found.values()}
    assert len(folders) == 1
    (folder,) = folders
    assert folder != str(project)
    assert in_host(cluster, "h2", f"stat -c %a {folder}").strip() == "700"
    there = in_host(cluster, "h2", f"ls -A {folder}").split()
    assert sorted(set(there) - {"__pycache__"}) == [".gitignore", "main.py", "run.sh", "sub", "untracked.py"]


def test_sync_into_a_home_folder_that_all_hosts_share(cluster: Lab, shared: Path, project: Path) -> None:
    in_host(cluster, "h1", f"cd {project}; for n in $(seq 40); do ln -s main.py link$n; mkdir d$n; touch d$n/f; done")
    (shared / "state of all").mkdir()
    for host in cluster.names:
        in_host(
            cluster, host, f"mkdir -p ~/.local; rm -rf ~/.local/state; ln -s '{shared}/state of all' ~/.local/state"
        )
    try:
        for _ in range(3):
            done = run_project(cluster, shared, project, "--sync", "--no-zygote", "-H", "h1:1,h2:1,h3:1", "main.py")
            assert done.code == 0, done.said
            assert len(ranks(done)) == 3
    finally:
        for host in cluster.names:
            in_host(cluster, host, "rm ~/.local/state")


def test_the_interpreter_on_the_hosts_can_be_named(cluster: Lab, shared: Path) -> None:
    write(shared, "which.py", "import sys; print(sys.executable)\n")
    link = shared / "my python"
    link.symlink_to(os.path.realpath(sys.executable))
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1", "--python", str(link), "which.py")
    assert done.lines(0) == [str(link)], done.said


def test_a_host_with_another_clock_does_not_confuse_who_failed_first(cluster: Lab, shared: Path) -> None:
    """h2's clock runs ten minutes behind; its rank fails a second after the one on h3, which takes long to end."""
    write(
        shared,
        "late.py",
        "import atexit, os, time\nr = int(os.environ['RANK'])\nprint('clock', time.time(), flush=True)\n"
        "def linger():\n    open('has failed', 'w').close()\n    time.sleep(600)\n"
        "if r: atexit.register(linger)\n"
        "else:\n    while not os.path.exists('has failed'): time.sleep(0.02)\n    time.sleep(1)\n"
        "raise ValueError(f'failure of rank {r}')\n",
    )
    # No second clock can be had in a container, so this host's Python believes in another one.
    in_host(
        cluster,
        "h2",
        "mkdir -p /tmp/behind; cat > /tmp/behind/sitecustomize.py <<'END'\n"
        "import time\nreal = time.time\ntime.time = lambda: real() - 600\nEND\n"
        f"printf '#!/bin/sh\\nPYTHONPATH=/tmp/behind exec {sys.executable} \"$@\"\\n' > /tmp/python-behind",
    )
    in_host(cluster, "h3", f"printf '#!/bin/sh\\nexec {sys.executable} \"$@\"\\n' > /tmp/python-behind")
    for host in ("h2", "h3"):
        in_host(cluster, host, "chmod +x /tmp/python-behind")
    options = ["--python", "/tmp/python-behind", "--no-zygote", "--grace", "5", "-H", "h2:1,h3:1"]
    done = run_in(cluster, "h1", shared, *options, "late.py")
    clocks = [float(lines[0].split()[1]) for _, lines in ranks(done).values()]
    assert clocks[1] - clocks[0] > 590, "the clock of h2 is not behind: this test tests nothing"
    assert done.code == 1
    assert re.search(
        r"rank 1 on h3 failed first, \d\d?\.\d s after the start: ValueError: failure of rank 1", done.err
    ), done.said


def test_the_first_line_comes_before_any_host_and_then_it_is_said_what_is_waited_for(
    cluster: Lab, shared: Path
) -> None:
    write(shared, "who.py", WHO)
    cluster.freeze("h3")
    try:
        job = HostJob(cluster, "h1", shared, "--no-zygote", "-H", "h2:1,h3:1", "who.py")
        wait_until(
            "the name of the host that is missing",
            lambda: "1 of 2 hosts up, waiting for h3" in job.err,
            20,
            lambda: job.err,
        )
    finally:
        cluster.thaw("h3")
    done = job.wait()
    assert done.code == 0, done.said
    assert done.err.startswith("muster: connecting to h2, h3\n"), done.said


def test_many_lines_from_several_hosts_arrive_whole(cluster: Lab, shared: Path) -> None:
    write(shared, "much.py", "import os\nr = os.environ['RANK']\nfor n in range(8000): print(r, n, 'z' * 80)\n")
    done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "h2:1,h3:1", "much.py")
    assert done.code == 0, done.said[-2000:]
    for rank in (0, 1):
        assert done.lines(rank) == [f"{rank} {n} {'z' * 80}" for n in range(8000)]


def test_the_ssh_config_of_the_user_counts(cluster: Lab, shared: Path) -> None:
    write(shared, "who.py", WHO)
    home = in_host(cluster, "h1", "echo ~").strip()
    in_host(
        cluster,
        "h1",
        f"cp {home}/.ssh/config /tmp/config; (echo 'Host alias'; echo '  HostName {cluster.address('h2')}';"
        "echo '  HostKeyAlias h2'; echo '  LocalForward 127.0.0.1:5999 localhost:22'; cat /tmp/config)"
        f" > {home}/.ssh/config",
    )
    try:
        done = run_in(cluster, "h1", shared, "--no-zygote", "-H", "alias:1", "who.py")
    finally:
        in_host(cluster, "h1", f"cp /tmp/config {home}/.ssh/config")
    assert done.out == "[alias 0] h2 0 0 1 1 0 1\n", done.said
