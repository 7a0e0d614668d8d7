"""When ranks fail: who was first and why, the script's exit code, every rank gone in time, and restarts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import HostJob, Job, alive, alone_with_the_memory_killer, run_here, run_in
from waiting import wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

# Rank 1 fails in the way of the argument, the others wait for it as in a collective.
FAIL = """
import os, signal, sys, time
mode, rank = sys.argv[1], int(os.environ["RANK"])

def boom(): raise ValueError("bad sample in shard 7")

if rank != 1:
    time.sleep(600)
if mode == "raise": boom()
if mode == "exit3": sys.exit(3)
if mode == "text": sys.exit("no data here")
if mode == "kill": os.kill(os.getpid(), signal.SIGKILL)
if mode == "term": os.kill(os.getpid(), signal.SIGTERM)
if mode == "segv": import ctypes; ctypes.string_at(0)
if mode == "abort": os.abort()
if mode == "exit9": os._exit(9)
"""

# The same with gloo, whose survivors raise exceptions of their own.
COLLECTIVE = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 1:
    time.sleep(0.3)
    if sys.argv[1] == "exit0": os._exit(0)
    if sys.argv[1] == "kill": os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
time.sleep(30)
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


@pytest.fixture(autouse=True)
def nothing_left(cluster: Lab) -> Iterator[None]:
    """A run that has returned has left no process on any host."""
    yield
    assert not alive(cluster, cluster.names)


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("raise", 1, r"ValueError: bad sample in shard 7 \(fail\.py:5\)"),
        ("exit3", 3, r"ended with exit code 3 at fail\.py:10"),
        ("text", 1, r"no data here"),
        ("kill", 137, r"killed by SIGKILL, sent by neither Muster nor the OOM killer"),
        ("term", 143, r"ended by SIGTERM, not sent by Muster"),
        ("segv", 139, r"crashed in native code \(SIGSEGV\)"),
        ("abort", 134, r"crashed in native code \(SIGABRT\)"),
        ("exit9", 9, r"ended with exit code 9 without an exception"),
    ],
)
def test_the_first_failing_rank_its_host_and_what_happened_are_reported(
    cluster: Lab, shared: Path, mode: str, code: int, words: str
) -> None:
    write(shared, "fail.py", FAIL)
    with alone_with_the_memory_killer():
        done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "1", "-H", "h2:1,h3:2", "fail.py", mode)
    assert done.code == code, done.said
    assert re.search(
        rf"^muster: rank 1 on h3 failed first, \d+\.\d s after the start: {words}", done.err, re.MULTILINE
    ), done.said
    assert "2 other ranks were then stopped by Muster" in done.err
    assert re.search(rf"^muster: failed after .*exit code {code}; logs in ", done.err, re.MULTILINE), done.said


def test_the_traceback_is_shown_once_more_at_the_end_and_holds_no_frame_of_muster(cluster: Lab, shared: Path) -> None:
    write(shared, "fail.py", FAIL)
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "1", "-H", "h2:1,h3:1", "fail.py", "raise")
    end = done.err.partition("failed first")[2]
    assert "Traceback (most recent call last):" in end
    assert "in boom" in end
    assert not re.search(r"muster/(agent|rank|controller)|<muster>|_muster_agent|runpy|<string>", done.err), done.said


def test_a_crash_in_native_code_shows_the_python_line_it_came_from(cluster: Lab, shared: Path) -> None:
    write(shared, "fail.py", FAIL)
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "1", "-H", "h2:1,h3:1", "fail.py", "segv")
    end = done.err.partition("failed first")[2]
    assert "Segmentation fault" in end
    assert re.search(r'fail\.py", line 14 in <module>', end), done.said
    assert not re.search(r"<muster>|_muster_agent", end), done.said


def test_the_place_of_a_failure_is_in_the_users_file(tmp_path: Path) -> None:
    write(tmp_path, "place.py", "import json\n\njson.loads('{')\n")
    done = run_here(tmp_path, "--no-zygote", "--nproc", "1", "place.py")
    assert re.search(r"failed first.*JSONDecodeError.*\(place\.py:3\)", done.err), done.said


def test_an_exception_with_several_lines_is_reported_with_its_first(tmp_path: Path) -> None:
    # As every error of CUDA and NCCL is.
    write(
        tmp_path,
        "lines.py",
        "raise RuntimeError('CUDA error: device-side assert triggered\\nCUDA kernel errors might be asynchronously "
        "reported.\\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.')\n",
    )
    done = run_here(tmp_path, "--no-zygote", "--nproc", "1", "lines.py")
    assert re.search(r"failed first, .*: RuntimeError: CUDA error: device-side assert triggered", done.err), done.said


def test_a_failure_before_torch_is_imported_does_not_import_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        "light.py",
        "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))\nraise ValueError('bad')\n",
    )
    assert run_here(tmp_path, "--no-zygote", "--nproc", "1", "light.py").lines(0) == ["False"]


def test_of_two_failing_ranks_the_earlier_is_reported_and_the_other_noted(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "two.py",
        "import os, signal, time\nr = int(os.environ['RANK'])\n"
        # Rank 1 fails when the other is ready for it, and that when it hears of it, which is by SIGTERM.
        "if r == 0:\n    signal.signal(signal.SIGTERM, lambda *_: os.rename('ready', 'heard'))\n"
        "    open('ready', 'w').close()\n"
        "while not os.path.exists(['heard', 'ready'][r]): time.sleep(0.02)\n"
        "raise ValueError(f'of rank {r}')\n",
    )
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "60", "-H", "h2:1,h3:1", "two.py")
    assert re.search(r"rank 1 on h3 failed first.*ValueError: of rank 1", done.err), done.said
    assert "Error: of rank 0" in done.log(0).decode()
    assert done.code == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "code", "sentence"),
    [
        ("kill", 137, r"^muster: rank 1 on h3 failed first, .*killed by SIGKILL"),
        ("exit0", 1, r"^muster: rank 1 on h3 (had )?ended with exit code 0, .* while other ranks still needed it"),
    ],
)
def test_what_survivors_say_of_a_dead_peer_is_not_taken_for_the_cause(
    cluster: Lab, shared: Path, mode: str, code: int, sentence: str
) -> None:
    write(shared, "collective.py", COLLECTIVE)
    with alone_with_the_memory_killer():
        done = run_in(cluster, "h1", shared, "--grace", "1", "-H", "h2:1,h3:1", "collective.py", mode)
    assert re.search(sentence, done.err, re.MULTILINE), done.said
    assert done.code == code, done.said


def test_ranks_that_wait_for_one_that_has_left_are_named_after_a_while(tmp_path: Path) -> None:
    write(
        tmp_path,
        "waits.py",
        "import os, time\nwhile os.environ['RANK'] == '0' and not os.path.exists('told'): time.sleep(0.05)\n",
    )
    with Job(tmp_path, "--no-zygote", "--nproc", "3", "waits.py") as job:
        # Rank 2 may take longer to start than rank 1 to end.
        job.wait_for(
            r"ranks? 1(, 2)? exited with exit code 0 more than 10 s ago; ranks? 0(, 2)? (is|are) still running"
        )
        (tmp_path / "told").touch()
        assert job.wait(60).code == 0, job.err


@pytest.fixture
def memory_limit() -> Iterator[Path]:
    """A control group that holds 64 MB."""
    name = f"muster-test-{os.getpid()}"
    for parent, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(parent, name)
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text("64M")
            break
        group.rmdir()
    else:
        pytest.skip("no control group with a memory limit can be made here")
    yield group
    wait_until("the kernel to take the dead process out", lambda: removed(group))


def removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(os.path.realpath(fd) == str(path) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_rank_that_the_kernel_kills_in_its_own_control_group_is_reported_with_the_uncertainty(
    cluster: Lab, shared: Path, memory_limit: Path
) -> None:
    write(
        shared,
        "hungry.py",
        "import os, sys, time\nheld = open('held-' + os.environ['RANK'], 'w')\nprint('ready', flush=True)\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('eat'): time.sleep(0.05)\n"
        "    data = [bytearray(os.urandom(1 << 20)) for _ in range(400)]\n"
        "time.sleep(600)\n",
    )
    job = HostJob(cluster, "h1", shared, "--no-zygote", "--no-check", "--grace", "1", "-H", "h2:1,h3:1", "hungry.py")
    try:
        wait_until("the ranks", lambda: job.out.count("ready") == 2, 30, lambda: job.out + job.err)
        # Known by the file it has opened, because pids start again at the highest one.
        (rank,) = (pid for pid, _ in cluster.processes("h3") if has_open(pid, shared / "held-1"))
        (memory_limit / "cgroup.procs").write_text(str(rank))
        with alone_with_the_memory_killer():
            (shared / "eat").touch()
            done = job.wait()
    finally:
        job.end()
    assert re.search(
        r"rank 1 on h3 failed first.*out of memory, probably killed by the OOM killer \(SIGKILL\)", done.err
    ), done.said
    assert done.code == 137


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_time(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "deaf.py",
        "import os, signal, sys, time\nif os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('deaf'): time.sleep(0.02)\n"
        "    print(f'fails {time.time()}', flush=True); sys.exit(4)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True))\n"
        "open('deaf', 'w').close()\n"
        "while True: time.sleep(0.05); print(f'lives {time.time()}', flush=True)\n",
    )
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "3", "-H", "h2:1,h3:1", "deaf.py")
    assert "heard" in done.lines(0), done.said
    lives = float(done.lines(0)[-1].split()[1]) - float(done.lines(1)[0].split()[1])
    assert lives > 1, f"the other rank lived for {lives:.1f} s of a grace of 3 s, or was held up at its end"
    assert done.code == 4, done.said
    assert re.search(r"rank 1 on h3 failed first", done.err), done.said


def test_a_rank_that_saves_its_work_in_the_grace_time_is_not_cut_off(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "saves.py",
        "import os, signal, sys, time\nif os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('listens'): time.sleep(0.02)\n    sys.exit(4)\n"
        "def save(*_): time.sleep(1.5); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nopen('listens', 'w').close()\nwhile True: time.sleep(0.1)\n",
    )
    # Once all ranks have ended, the rest of the grace time is not waited for: it is longer than this test may take.
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "600", "-H", "h2:1,h3:1", "saves.py")
    assert done.lines(0) == ["saved"], done.said
    assert done.code == 4


def test_without_grace_every_rank_on_every_host_is_gone_at_once(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "deaf.py",
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: print('SIGTERM', flush=True))\n"
        "print('up', flush=True)\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('fail now'): time.sleep(0.02)\n    sys.exit(4)\n"
        "while True: time.sleep(600)\n",
    )
    job = HostJob(cluster, "h1", shared, "--no-zygote", "--grace", "0", "-H", "h2:2,h3:2", "deaf.py")
    try:
        wait_until("the ranks", lambda: job.out.count("up") == 4, 30, lambda: job.out + job.err)
        (shared / "fail now").touch()
        done = job.wait()
    finally:
        job.end()
    assert done.code == 4, done.said
    assert "SIGTERM" not in done.out, "no time is given between a SIGTERM and the SIGKILL"


def test_a_child_that_a_rank_leaves_behind_neither_holds_the_run_up_nor_outlives_it(cluster: Lab, shared: Path) -> None:
    write(
        shared,
        "leaves.py",
        "import subprocess, sys\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('done', flush=True)\n",
    )
    done = run_in(cluster, "h1", shared, "--no-zygote", "--grace", "600", "-H", "h2:1,h3:1", "leaves.py")
    assert done.code == 0, done.said
    assert not alive(cluster, cluster.names)


# --- restarts -------------------------------------------------------------------------------------------------

RESTARTED = """
import os, sys, torch, torch.distributed as dist
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("attempt", attempt, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], "port", os.environ["MASTER_PORT"],
      "pid", os.getpid(), "sum", int(total.item()), flush=True)
dist.barrier()  # rank 0 has written its line before rank 1 fails
if attempt == 0 and dist.get_rank() == 1:
    raise RuntimeError("a cosmic ray")
dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_failure_is_tried_again_on_a_new_port_and_every_attempt_keeps_its_logs(cluster: Lab, shared: Path) -> None:
    write(shared, "restarted.py", RESTARTED)
    done = run_in(cluster, "h1", shared, "--restarts", "2", "--grace", "1", "-H", "h2:1,h3:1", "restarted.py")
    assert done.code == 0, done.said
    assert re.search(r"rank 1 on h3 failed first.*a cosmic ray", done.err), done.said
    assert "muster: restart 1 of 2\n" in done.err
    assert "restart 2 of 2" not in done.err
    lines = {
        (rank, attempt): re.search(r"attempt (\d) of 2 port (\d+) pid (\d+) sum 2", done.log(rank, attempt).decode())
        for rank in (0, 1)
        for attempt in (0, 1)
    }
    assert all(lines.values()), done.said
    found = {key: match.groups() for key, match in lines.items() if match}
    assert all(int(count) == attempt for (_, attempt), (count, _, _) in found.items())
    assert found[0, 0][1] == found[1, 0][1] != found[0, 1][1] == found[1, 1][1], (
        "one port an attempt, another each time"
    )
    assert "a cosmic ray" in done.log(1, 0).decode()
    assert "a cosmic ray" not in done.log(1, 1).decode()


def test_a_failure_that_comes_back_at_the_same_place_is_not_tried_for_ever(cluster: Lab, shared: Path) -> None:
    write(shared, "fail.py", FAIL)
    options = ["--no-zygote", "--grace", "1", "--restarts", "5", "-H", "h2:1,h3:1"]
    done = run_in(cluster, "h1", shared, *options, "fail.py", "raise")
    assert done.code == 1, done.said
    assert sorted(path.name for path in done.folder.glob("attempt-*")) == ["attempt-0", "attempt-1"]
    assert "the restart failed at the same place without any progress, so Muster does not restart it again" in done.err


# A zygote for all runs on this machine; the optimizer of one of them would import torch._dynamo in each attempt.
SHARED = ("--keep=5m", "--preload=torch._dynamo")


@pytest.mark.torch
def test_a_failure_that_came_further_than_before_is_tried_again(tmp_path: Path, kept: Path) -> None:
    write(
        tmp_path,
        "further.py",
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "steps = [3, 6, 6, 9][int(os.environ['TORCHELASTIC_RESTART_COUNT'])]\n"
        "for step in range(steps): dist.all_reduce(torch.ones(1))\n"
        "raise RuntimeError('at the same place')\n",
    )
    options = ["--nproc", "2", "--restarts", "9", "--grace", "1"]
    done = run_here(tmp_path, *SHARED, *options, "further.py", state=kept)
    assert done.code == 1, done.said
    assert sorted(path.name for path in done.folder.glob("attempt-*")) == ["attempt-0", "attempt-1", "attempt-2"]


SAVES = """
import os, sys, time, torch, torch.distributed as dist
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, flush=True)
dist.init_process_group("gloo")
weight, total = torch.nn.Parameter(torch.ones(1)), torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(5 - attempt):  # fewer than before
    weight.grad = torch.ones(1)
    optimizer.step()
if sys.argv[1] == "save":
    torch.save({"weight": weight}, "checkpoint.pt")
for _ in range(25):  # the rank reports its progress every second
    dist.all_reduce(total)
    time.sleep(0.1)
if attempt < 3:
    raise RuntimeError(f"failure {attempt}")
"""


@pytest.mark.torch
@pytest.mark.parametrize(("what", "attempts"), [("save", 4), ("nothing", 2)])
def test_a_restart_after_a_new_checkpoint_is_not_counted(tmp_path: Path, kept: Path, what: str, attempts: int) -> None:
    write(tmp_path, "saves.py", SAVES)
    options = ["--nproc", "1", "--no-check", "--restarts", "1", "--grace", "1"]
    done = run_here(tmp_path, *SHARED, *options, "saves.py", what, state=kept)
    assert done.code == (0 if what == "save" else 1), done.said
    assert len(list(done.folder.glob("attempt-*"))) == attempts


def test_when_all_attempts_are_used_up_the_last_failure_counts(tmp_path: Path) -> None:
    write(tmp_path, "codes.py", "import os, sys\nn = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nsys.exit(11 + n)\n")
    done = run_here(tmp_path, "--no-zygote", "--nproc", "1", "--restarts", "2", "codes.py")
    assert done.code == 13, done.said
    assert "restart 2 of 2" in done.err
