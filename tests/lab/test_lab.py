"""The lab itself: hosts are separate, faults have their effect, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import end, ending, patience, wait_until

from muster.errors import LabError
from muster.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.getuid() != 0, reason="faults need root; tests/lab/test_lab_without_root.py has the rest"),
]

LISTEN = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    while data := peer.recv(65536):
        peer.sendall(data)
"""

CONNECT = """
import errno, socket, sys, time
start = time.monotonic()
try:
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))
    peer.sendall(b"x")
    assert peer.recv(1) == b"x"
    word = "ok"
except TimeoutError:
    word = "silence"
except OSError as error:
    word = errno.errorcode[error.errno]
print(word, time.monotonic() - start)
"""

HOLD = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
peer.sendall(b"x")
peer.recv(1)
print("connected", flush=True)
peer.settimeout(float(sys.argv[3]))
try:
    print("closed" if peer.recv(1) == b"" else "data")
except TimeoutError:
    print("silence")
except ConnectionResetError:
    print("reset")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3, disk="64m") as lab:
        yield lab


@pytest.fixture(autouse=True)
def healthy_again(lab: Lab) -> Iterator[None]:
    """Repair what a failed test left broken, so that only that test fails."""
    yield
    for host in lab.status():
        if host.state != "up":
            lab.reboot(host.name)
        elif host.faults:
            lab.heal(host.name)


@pytest.fixture
def echo(lab: Lab) -> Iterator[Callable[[str, int], None]]:
    """Starts an echo server in a host; ends all of them after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(host: str, port: int) -> None:
        argv = [sys.executable, "-I", "-S", "-c", LISTEN, str(port)]
        server = lab.popen(host, argv, stdout=subprocess.PIPE, text=True)
        started.append(server)
        assert server.stdout
        assert server.stdout.readline() == "listening\n"

    yield start
    for server in started:
        end(server)


def connect(lab: Lab, source: str, target: str, port: int, timeout: float = 20.0) -> tuple[str, float]:
    """Try one exchange with an echo server: what came of it, and in how many seconds."""
    argv = [sys.executable, "-I", "-S", "-c", CONNECT, lab.address(target), str(port), str(timeout)]
    word, seconds = lab.run(source, argv, timeout=timeout + 30).stdout.split()
    return word, float(seconds)


def ssh(lab: Lab, host: str, command: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    argv = [*lab.ssh_argv(), "-o", "BatchMode=yes", host, command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


def out(lab: Lab, host: str, script: str, timeout: float = 30) -> str:
    done = lab.run(host, ["sh", "-c", script], timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_hosts_have_names_addresses_and_process_trees_of_their_own(lab: Lab) -> None:
    assert lab.names == ("h1", "h2", "h3")
    assert lab.limits == ()
    for number, name in enumerate(lab.names, start=1):
        assert out(lab, name, "hostname") == name
        assert lab.address(name) == f"10.77.0.{number}"
        assert lab.address(name) in out(lab, name, "hostname -I").split()
        assert out(lab, name, "cat /proc/1/comm") == "bash"
        assert out(lab, name, "cat /etc/hostname") == name


def test_disk_tmp_shm_and_run_of_a_host_are_its_own(lab: Lab) -> None:
    for folder in ("/var", "/tmp", "/dev/shm", "/run", "/root"):
        marker = f"{folder}/lab-test-marker"
        out(lab, "h1", f"echo mine > {marker}")
        assert lab.run("h2", ["cat", marker], timeout=30).returncode != 0
        assert not Path(marker).exists()
        out(lab, "h1", f"rm {marker}")
    assert out(lab, "h1", "id -u") == "0"
    assert int(out(lab, "h1", "df --output=size -m / | tail -1")) == 64


def test_owner_and_hosts_reach_every_host_by_plain_ssh(lab: Lab) -> None:
    done = ssh(lab, "h2", "hostname; pwd")
    assert (done.stdout, done.stderr) == ("h2\n/root\n", "")
    assert out(lab, "h1", "HOME=/root ssh h3 hostname") == "h3"
    assert out(lab, "h1", "HOME=/root ssh 10.77.0.3 hostname") == "h3"
    assert ssh(lab, "h1", "ssh h2 ssh h3 hostname").stdout == "h3\n"
    assert ssh(lab, "h1", "exit 7").returncode == 7


def test_a_name_and_its_reverse_resolve_without_a_network(lab: Lab) -> None:
    code = "import socket; print(socket.gethostbyname('h2'), socket.getnameinfo(('::ffff:10.77.0.2', 1), 0)[0])"
    assert out(lab, "h1", f'{sys.executable} -c "{code}"') == "10.77.0.2 h2"


def test_a_bound_folder_is_shared_and_another_folder_under_tmp_is_not_there(tmp_path: Path) -> None:
    shared, private = tmp_path / "with space", tmp_path / "private"
    shared.mkdir()
    private.mkdir()
    with Lab(2, bind=(shared,)) as lab:
        assert lab.run("h1", ["tee", str(shared / "note")], input="hello", timeout=30).returncode == 0
        assert lab.run("h2", ["cat", str(shared / "note")], timeout=30).stdout == "hello"
        assert (shared / "note").read_text() == "hello"
        assert lab.run("h1", ["ls", str(private)], timeout=30).returncode != 0
        assert lab.run("h1", ["pwd"], cwd=str(shared), timeout=30).stdout == f"{shared}\n"


def test_processes_lists_what_runs_in_a_host_and_only_there(lab: Lab) -> None:
    wait_until("what a test before this one has left to end", lambda: lab.processes("h1") == [])
    with ending(lab.popen("h1", ["sleep", "54321"])):
        wait_until("the process", lambda: [command for _, command in lab.processes("h1")] == ["sleep 54321"])
        [(pid, _)] = lab.processes("h1")
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0054321\0"
        assert lab.processes("h2") == []
    wait_until("the end of the process", lambda: lab.processes("h1") == [])


def test_a_command_that_runs_too_long_is_killed_inside_the_host(lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run("h1", ["sleep", "54322"], timeout=0.2)
    wait_until("the end of the process", lambda: lab.processes("h1") == [])


def test_a_signal_reaches_the_command_inside_the_host(lab: Lab) -> None:
    started = lab.popen("h1", ["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"], stdout=-1)
    assert started.stdout
    started.stdout.readline()
    started.terminate()
    assert started.wait(30) == 7
    started.stdout.close()


def test_a_cut_cable_is_silent_and_a_healed_one_carries_the_old_connection_on(
    lab: Lab, echo: Callable[[str, int], None]
) -> None:
    echo("h2", 5000)
    assert connect(lab, "h1", "h2", 5000)[0] == "ok"
    argv = [sys.executable, "-I", "-S", "-c", HOLD, lab.address("h2"), "5000", "1"]
    lab.cut("h2")
    assert out(lab, "h2", "cat /sys/class/net/eth0/carrier") == "0"
    assert connect(lab, "h1", "h2", 5000, timeout=0.5)[0] == "silence"
    assert status_faults(lab, "h2") == ("cut",)
    lab.heal("h2")
    assert connect(lab, "h1", "h2", 5000)[0] == "ok"
    with lab.popen("h1", argv, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout
        assert held.stdout.readline() == "connected\n"
        lab.cut("h2")
        lab.heal("h2")
        assert held.communicate(timeout=patience(30))[0] == "silence\n", "the connection must survive a short cut"


@pytest.mark.parametrize(
    ("fault", "heard", "listen"), [("crash", {"closed", "reset"}, "30"), ("power_off", {"silence"}, "3")]
)
def test_peers_hear_a_crash_at_once_and_a_power_cut_never(
    lab: Lab, echo: Callable[[str, int], None], fault: str, heard: set[str], listen: str
) -> None:
    echo("h3", 5001)
    argv = [sys.executable, "-I", "-S", "-c", HOLD, lab.address("h3"), "5001", listen]
    with lab.popen("h1", argv, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout
        assert held.stdout.readline() == "connected\n"
        getattr(lab, fault)("h3")
        assert held.communicate(timeout=patience(60))[0].strip() in heard
    assert lab.status()[2].state == "off"
    assert lab.processes("h3") == []
    with pytest.raises(LabError, match="h3 is off"):
        lab.run("h3", ["true"], timeout=30)
    lab.reboot("h3")
    assert ssh(lab, "h3", "hostname").stdout == "h3\n"


def test_a_rebooted_host_has_its_name_and_keys_and_an_empty_disk(lab: Lab) -> None:
    out(lab, "h2", "echo old > /var/old; echo old > /tmp/old")
    lab.cut("h2")
    lab.reboot("h2")
    assert status_faults(lab, "h2") == ()
    assert ssh(lab, "h2", "hostname; ls /var/old /tmp/old 2>&1 | grep -c 'No such file'").stdout == "h2\n2\n"
    assert out(lab, "h1", "HOME=/root ssh h2 hostname") == "h2"


def test_a_frozen_host_does_not_answer_until_it_is_thawed(lab: Lab, echo: Callable[[str, int], None]) -> None:
    echo("h2", 5002)
    lab.freeze("h2")
    assert lab.status()[1].state == "frozen"
    assert connect(lab, "h1", "h2", 5002, timeout=0.5)[0] == "silence"
    with pytest.raises(LabError, match="h2 is frozen"):
        lab.run("h2", ["true"], timeout=30)
    lab.thaw("h2")
    assert connect(lab, "h1", "h2", 5002)[0] == "ok"
    with pytest.raises(LabError, match="h2 is not frozen"):
        lab.thaw("h2")


def test_a_frozen_host_can_lose_its_power_and_come_back(lab: Lab) -> None:
    lab.freeze("h2")
    lab.power_off("h2")
    lab.reboot("h2")
    assert out(lab, "h2", "hostname") == "h2"


def test_a_host_with_a_tenth_of_a_core_computes_slowly(lab: Lab) -> None:
    burn = "import time; s = time.monotonic()\nwhile time.process_time() < 0.1: pass\nprint(time.monotonic() - s)"
    argv = [sys.executable, "-I", "-S", "-c", burn]
    lab.slow("h2", cpu=0.1)
    inside = float(lab.run("h2", argv, timeout=60).stdout)
    over_ssh = float(ssh(lab, "h2", f"{sys.executable} -I -S -c '{burn}'", timeout=60).stdout)
    assert inside > 0.4
    assert over_ssh > 0.4
    assert status_faults(lab, "h2") == ("cpu 0.1",)
    lab.heal("h2")

    def is_fast() -> bool:
        """Whether it computes as fast as a host that was never slow, on a machine that may have no time for either."""
        with ThreadPoolExecutor(2) as pool:
            slowed, other = pool.map(lambda host: float(lab.run(host, argv, timeout=60).stdout), ("h2", "h3"))
        return slowed < max(0.4, 2 * other)

    wait_until("a fast CPU", is_fast)


def test_a_slow_cable_takes_as_long_as_its_rate_says(lab: Lab, echo: Callable[[str, int], None]) -> None:
    send = (
        "import socket, sys, time; peer = socket.create_connection((sys.argv[1], 5003)); s = time.monotonic()\n"
        "peer.sendall(bytes(500_000)); n = 0\n"
        "while n < 500_000: n += len(peer.recv(65536))\n"
        "print(time.monotonic() - s)"
    )
    echo("h2", 5003)
    argv = [sys.executable, "-I", "-S", "-c", send, lab.address("h2")]
    lab.slow("h2", rate="10mbit")
    # 4 Mbit at 10 Mbit/s is 0.4 s there; the way back overlaps with it, being another direction of the cable.
    tries: list[float] = []

    def seconds() -> float:
        tries.append(float(lab.run("h1", argv, timeout=60).stdout))
        return tries[-1]

    # A busy machine may take longer now and then, but not each time, and no time is shorter than the cable allows.
    wait_until("an exchange within 3 s", lambda: seconds() < 3, said=lambda: str(tries))
    assert min(tries) > 0.3
    lab.heal("h2")
    wait_until("an exchange within 0.3 s", lambda: seconds() < 0.3, said=lambda: str(tries))


def test_lost_packets_are_about_as_many_as_asked_for(lab: Lab) -> None:
    for source, target in (("h1", "h2"), ("h2", "h1")):
        # Now they know each other's place: who has to ask for it while packets are lost may have to ask twice.
        assert count_arrived(lab, source, target, 1) == 1
    lab.loss("h2", 30)
    arrived = count_arrived(lab, "h1", "h2", 1000)
    back = count_arrived(lab, "h2", "h1", 1000)
    lab.heal("h2")
    assert 550 < arrived < 850, "30 % of the packets to the host"
    assert 550 < back < 850, "30 % of the packets from the host"
    assert count_arrived(lab, "h1", "h2", 1000) > 900, "a busy machine may lose a few of its own accord"


def count_arrived(lab: Lab, source: str, target: str, packets: int) -> int:
    """How many of so many small datagrams arrive."""
    # The kernel keeps them all (33: SO_RCVBUFFORCE) until the sender has ended, however long either of them takes.
    count = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); n = 0\n"
        "s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20); s.bind(('', 5004)); print('ready', flush=True)\n"
        "sys.stdin.read(); s.setblocking(False)\n"
        "try:\n"
        "    while True: n += len(s.recv(10)) > 0\n"
        "except BlockingIOError: print(n)"
    )
    send = (
        "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"for i in range({packets}): s.sendto(b'x', (sys.argv[1], 5004)); i % 50 or time.sleep(0.001)"
    )
    pipe = subprocess.PIPE
    with lab.popen(target, [sys.executable, "-I", "-c", count], stdin=pipe, stdout=pipe, text=True) as counter:
        assert counter.stdout
        assert counter.stdout.readline() == "ready\n"
        lab.run(source, [sys.executable, "-I", "-c", send, lab.address(target)], timeout=30)
        return int(counter.communicate(timeout=patience(30))[0])


def test_a_delayed_cable_adds_twice_the_delay_to_a_round_trip(lab: Lab, echo: Callable[[str, int], None]) -> None:
    echo("h2", 5005)
    lab.delay("h2", 50)
    tries: list[float] = []

    def seconds() -> float:
        word, took = connect(lab, "h1", "h2", 5005)
        assert word == "ok"
        tries.append(took)
        return took

    wait_until("an exchange within 1.0 s", lambda: seconds() < 1.0, said=lambda: str(tries))
    assert min(tries) >= 0.2, "a handshake and an exchange: two round trips of 100 ms"
    assert ssh(lab, "h2", "head -c 300000 /dev/zero | wc -c").stdout == "300000\n"
    lab.delay("h2", 5)
    lab.loss("h2", 10)
    lab.cut("h2")
    assert connect(lab, "h1", "h2", 5005, timeout=0.3)[0] == "silence"
    assert status_faults(lab, "h2") == ("cut", "loss 10%", "delay 5 ms")
    lab.heal("h2")
    wait_until("an exchange within 0.2 s", lambda: seconds() < 0.2, said=lambda: str(tries))
    assert ssh(lab, "h2", "head -c 3000000 /dev/zero | wc -c").stdout == "3000000\n"


def test_a_full_disk_is_full_in_that_host_only(lab: Lab) -> None:
    lab.fill_disk("h2")
    for folder in ("/var", "/tmp"):
        write = f"head -c 20000 /dev/zero > {folder}/more"
        full = lab.run("h2", ["sh", "-c", write], timeout=30)
        assert "No space left on device" in full.stderr
        assert lab.run("h1", ["sh", "-c", write], timeout=30).returncode == 0
    lab.heal("h2")
    assert lab.run("h2", ["sh", "-c", "head -c 20000 /dev/zero > /var/more"], timeout=30).returncode == 0


def test_a_blocked_port_refuses_or_swallows_in_one_direction(lab: Lab, echo: Callable[[str, int], None]) -> None:
    for host in ("h1", "h2"):
        echo(host, 5006)
        echo(host, 5007)
    lab.block_port("h2", 5006)
    assert connect(lab, "h1", "h2", 5006)[0] == "ECONNREFUSED"
    assert connect(lab, "h1", "h2", 5007)[0] == "ok"
    assert connect(lab, "h2", "h1", 5006)[0] == "ok"
    lab.block_port("h2", 5006, how="drop")
    assert connect(lab, "h1", "h2", 5006, timeout=0.3)[0] == "silence"
    lab.block_port("h2", 5007, direction="out")
    assert connect(lab, "h2", "h1", 5007)[0] == "ECONNREFUSED"
    assert connect(lab, "h1", "h2", 5007)[0] == "ok"
    assert status_faults(lab, "h2") == ("port 5006 in drop", "port 5007 out reject")
    lab.heal("h2")
    assert connect(lab, "h1", "h2", 5006)[0] == "ok"


def test_an_unknown_host_is_named_with_the_ones_there_are(lab: Lab) -> None:
    with pytest.raises(LabError, match="unknown host `h9`") as caught:
        lab.cut("h9")
    assert caught.value.hint == "the hosts are h1 to h3"


def test_two_labs_with_the_same_addresses_do_not_meet(lab: Lab) -> None:
    with Lab(1) as other:
        out(other, "h1", "echo other > /tmp/which")
        assert ssh(other, "h1", "cat /tmp/which").stdout == "other\n"
        assert ssh(lab, "h1", "ls /tmp/which").returncode != 0
        other.crash("h1")
    assert ssh(lab, "h1", "hostname").stdout == "h1\n"


OWNER = """
import sys, time
from muster.lab import Lab
mark = sys.argv[2]
with Lab(3) as lab:
    lab.popen("h1", ["setsid", "sh", "-c", f"trap '' TERM HUP INT; sleep {mark}"])
    lab.popen("h2", ["sleep", mark])
    lab.delay("h2", 1)
    lab.slow("h1", cpu=0.5)
    while len(lab.processes("h1")) < 2 or not lab.processes("h2"):
        time.sleep(0.02)
    lab.freeze("h2")
    print(lab._site.folder, flush=True)
    if sys.argv[1] == "exception":
        raise ValueError("on purpose")
    if sys.argv[1] == "wait":
        time.sleep(600)
"""


@pytest.mark.parametrize("how", ["exit", "exception", "wait"])
def test_nothing_is_left_after_exit_exception_or_sigkill_of_the_owner(how: str) -> None:
    before = mounts()
    mark = f"65432.{time.monotonic_ns()}"  # nobody else on this machine sleeps so long
    argv = [sys.executable, "-c", OWNER, how, mark]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert owner.stdout
    folder = Path(owner.stdout.readline().strip())
    assert folder.name.startswith("muster-lab-")
    if how == "wait":
        assert folder.is_dir()
        assert traces(folder, mark)
        owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=patience(30))
    wait_until("the lab to leave no trace", lambda: not folder.exists() and not traces(folder, mark))
    wait_until("the lab's mounts to go", lambda: mounts() <= before)


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def traces(folder: Path, mark: str) -> list[str]:
    """What still speaks of a lab: its processes (by their environment or command) and its control groups."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if folder.name.encode() in text or mark.encode() in text:
            found.append(text.decode(errors="replace"))
    groups = Path("/sys/fs/cgroup")
    return found + [str(path) for depth in ("*", "*/*") for path in groups.glob(f"{depth}/{folder.name}")]


def test_a_port_of_the_machine_is_not_a_port_of_the_hosts(lab: Lab) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert connect(lab, "h1", "h1", port)[0] == "ECONNREFUSED"


def status_faults(lab: Lab, host: str) -> tuple[str, ...]:
    return next(status.faults for status in lab.status() if status.name == host)
