"""Which job is meant, and what became of it, from the folders that jobs leave."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_jobs import keep, state_of
from waiting import ending, wait_until

from muster.errors import MusterError, UsageError
from muster.jobs import job_folders as folders
from muster.jobs.hosts_text import places
from muster.jobs.job_folders import find, job_folders, read_job, running_jobs, short_id, the_running_one
from muster.jobs.location import address, birth, leave_address, socket_elsewhere, socket_in
from muster.jobs.ps_text import status, table
from muster.jobs.running_job import running_here
from muster.jobs.state import HostState, JobState

A, B, C = "20261114-080000-train-aaaa", "20261115-080000-train-bbbb", "20261115-090000-eval-cccc"


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # sockets need short paths
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield Path(folder)


def keep_ended(*ids: str) -> None:
    for job_id in ids:
        keep(state_of(job_id, phase="ended", exit_code=0))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (A, A),
        ("20261114", A),
        ("cccc", C),
        ("eval", C),
        ("eval.py", C),
        ("src/eval.py", C),
        ("my.eval", C),
        ("last", C),
    ],
)
def test_a_job_is_found_by_its_id_a_part_of_it_or_its_script(text: str, meant: str):
    keep_ended(A, B, C)
    assert find(text).id == meant


@pytest.mark.parametrize("text", ["resnet-lr01", "dddd", "pretrain.py", "20261115-100000"])
def test_a_job_with_a_name_is_found_by_its_name_its_id_or_its_script(text: str):
    named = "20261115-100000-resnet-lr01-dddd"
    keep_ended(A, C)
    keep(state_of(named, command="pretrain.py --lr 0.1", phase="ended", exit_code=0))
    assert find(text).id == named


def test_a_name_wins_over_a_part_of_an_id():
    keep_ended(A, "20261115-100000-aaaa-dddd")
    assert find("aaaa").id == "20261115-100000-aaaa-dddd"


def test_hints_use_the_shortest_text_that_means_one_job():
    plain, last = "20261115-100000-mnist-2026", "20261115-100001-last-eeee"
    keep_ended(A, B, C, plain, last)
    keep_ended("20261115-100002-mnist-ffff")
    assert [short_id(job_id) for job_id in (A, B, C, plain, last)] == ["aaaa", "bbbb", "eval", plain, "eeee"]
    assert find(short_id(C)).id == C


def test_an_empty_name_means_no_job():
    keep_ended(A)
    with pytest.raises(UsageError, match="JOB is empty"):
        find("")


def test_of_several_jobs_of_a_script_the_running_one_is_meant_or_else_the_newest():
    keep_ended(A, B)
    assert find("train.py").id == B
    keep(state_of(A))
    assert find("train.py").id == A


def test_a_job_that_could_be_several_gets_their_names():
    keep_ended(A, B, C)
    with pytest.raises(UsageError, match=f"`20261115` matches 2 jobs: {C}, {B}"):
        find("20261115")
    keep(state_of(A))
    keep(state_of(B))
    with pytest.raises(UsageError, match=f"`train` matches 2 jobs: {B}, {A}"):
        find("train")


def test_a_job_that_is_not_there_gets_the_nearest_or_the_newest():
    with pytest.raises(UsageError, match="no jobs yet"):
        find("train")
    keep_ended(A, B, C)
    with pytest.raises(UsageError, match="job `tarin` not found") as near:
        find("tarin")
    assert near.value.hint == "did you mean `train`?"
    with pytest.raises(UsageError, match="job `/x` not found") as far:
        find("/x")
    assert far.value.hint == f"the newest jobs are {C}, {B}, {A}"


def test_the_newest_comes_first_and_what_is_no_job_is_left_alone(state_folder: Path):
    keep_ended(A, C, B)
    (state_folder / "muster" / "jobs" / "mine").mkdir()
    assert [folder.name for folder in job_folders()] == [C, B, A]


def test_of_two_jobs_of_one_second_the_later_comes_first():
    keep(state_of("20261115-080000-zzz-aaaa", begin=100.2))
    keep(state_of("20261115-080000-aaa-aaaa", begin=100.7))
    assert find("last").id == "20261115-080000-aaa-aaaa"


def test_a_controller_with_the_number_of_another_process_has_died():
    now = time.time()
    alive = read_job(keep(state_of(A)))
    assert (alive.life, status(alive, now)) == ("alive", "running")
    died = read_job(keep(state_of(B, controller_birth="00000000-1")))
    assert (died.life, status(died, now)) == ("died", "controller died")
    gone = read_job(keep(state_of(C, controller=2**22 + 1)))
    assert (gone.life, status(gone, now)) == ("died", "controller died")


def elsewhere_here() -> str:
    """The birth of a process in another pid namespace of this machine."""
    return birth(os.getpid()).rpartition("-")[0] + "-1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pid namespaces")
@pytest.mark.parametrize(
    ("host", "refusal"),
    [(socket.gethostname(), "runs in another container of this machine and does not answer here"), ("h1", "on h1")],
)
def test_a_controller_in_a_container_of_this_machine_is_known_by_its_socket(
    host: str, refusal: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folders, "_LAST_STATE", 0.1)
    hidden = state_of(A, host=host, controller_birth=elsewhere_here())
    folder = keep(hidden)
    assert read_job(folder).life == "elsewhere", "no socket: it may be where none can be"
    with pytest.raises(MusterError, match=refusal):
        running_here(read_job(folder), "muster stop")
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(8)
        answering = threading.Thread(target=answer_once, args=[server, hidden])
        answering.start()
        assert read_job(folder).life == "alive"
        answering.join()
    for _ in range(2):
        assert read_job(folder).life == "died"
        assert path.exists(), "it is all that tells"


def answer_once(server: socket.socket, state: JobState) -> None:
    peer, _ = server.accept()
    with peer:
        peer.recv(1 << 16)
        peer.sendall(json.dumps(state.as_data()).encode() + b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pid namespaces")
def test_a_job_in_a_container_that_ends_in_order_is_not_called_dead(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "_LAST_STATE", 60.0)
    folder = keep(state_of(A, controller_birth=elsewhere_here()))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    last = state_of(A, controller_birth=elsewhere_here(), phase="ended", exit_code=0)
    writing = threading.Timer(0.3, keep, [last])
    writing.start()
    assert read_job(folder).life == "ended"
    writing.join()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pid namespaces")
def test_containers_that_were_killed_long_ago_are_listed_without_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "_LAST_STATE", 60.0)
    folder = keep(state_of(A, controller_birth=elsewhere_here(), now=time.time() - 3600))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    begin = time.monotonic()
    assert read_job(folder).life == "died"
    assert time.monotonic() - begin < 30


def test_a_socket_that_somebody_holds_is_left_where_it_is():
    folder = keep(state_of(A, controller_birth="00000000-1"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen(8)
        hasty = threading.Thread(target=hang_up, args=[server, 2])
        hasty.start()
        assert read_job(folder).life == "died"
        hasty.join()
    assert address(folder) is not None


def hang_up(server: socket.socket, times: int) -> None:
    for _ in range(times):
        server.accept()[0].close()


def test_a_machine_that_has_another_name_meanwhile_still_knows_its_jobs():
    assert read_job(keep(state_of(A, host="old-name"))).life == "alive"


def test_the_socket_of_a_controller_that_died_is_removed_and_that_of_another_machine_is_not():
    died = keep(state_of(A, controller_birth="00000000-1"))
    elsewhere = keep(state_of(B, host="other", controller_birth="00000000-1"))
    for folder in (died, elsewhere):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "socket"))
        read_job(folder)
    assert address(died) is None
    assert address(elsewhere) is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"phase": "connecting"}, "waiting for hosts"),
        ({"phase": "stopping"}, "stopping"),
        ({"phase": "ended", "exit_code": 0}, "done"),
        ({"phase": "ended", "exit_code": 3}, "failed 3"),
        ({"phase": "ended", "exit_code": 143, "stopped_by": "muster stop"}, "stopped"),
        ({"host": "gpu01", "controller_birth": "x"}, "running on gpu01"),
        ({"host": "gpu01", "controller_birth": "x", "now": 0.0}, "silent on gpu01"),
        ({"host": "gpu01", "now": 0.0, "phase": "ended", "exit_code": 0}, "done"),
    ],
)
def test_the_state_of_a_job_is_one_or_two_words(fields: dict[str, object], said: str):
    assert status(read_job(keep(state_of(A, **fields))), time.time()) == said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', '{"version": 9, "id": 3}'])
def test_a_state_that_cannot_be_read_is_shown_as_damaged(text: str):
    folder = keep(state_of(A))
    (folder / "state.json").write_text(text)
    job = read_job(folder)
    assert (job.state, job.life, status(job, 0.0)) == (None, "unknown", "damaged")


def test_without_a_name_the_running_job_is_meant_and_several_are_named():
    with pytest.raises(UsageError, match="no job is running"):
        the_running_one("muster top")
    (keep(state_of(A)) / "socket").touch()
    assert the_running_one("muster top").id == A
    (keep(state_of(B)) / "socket").touch()
    assert [job.id for job in running_jobs()] == [B, A]
    with pytest.raises(UsageError, match=f"2 jobs are running: {B}, {A}") as several:
        the_running_one("muster stop")
    assert several.value.hint == "type which one, such as `muster stop bbbb` or `muster stop --all`"


def test_a_job_that_was_killed_with_its_host_is_not_running():
    for job_id, age in ((A, 3600.0), (B, 90.0), (C, 5.0)):
        state = state_of(job_id, host="h2", controller_birth="00000000-1", now=time.time() - age)
        (keep(state) / "socket").touch()
    assert [job.id for job in running_jobs()] == [C]
    assert the_running_one("muster top").id == C
    assert find("train").id == B, "of two silent ones the newest"


@pytest.mark.parametrize(
    ("command", "typed"), [("muster stop", "qdel 128.h1"), ("muster attach", "ssh -t h2 muster attach train")]
)
def test_a_job_of_pbs_is_stopped_with_qdel_from_another_host(command: str, typed: str):
    job = read_job(keep(state_of(A, host="h2", controller_birth="00000000-1", cancel="qdel 128.h1")))
    with pytest.raises(MusterError, match="runs on h2") as caught:
        running_here(job, command)
    assert (caught.value.hint or "").startswith(f"type `{typed}`")


def test_a_socket_lies_elsewhere_where_the_path_of_the_folder_is_too_long(tmp_path: Path):
    long = tmp_path / ("x" * 120) / A
    long.mkdir(parents=True)
    assert socket_in(long) is None
    path = socket_elsewhere(long)
    assert len(str(path)) < 104
    assert path.parent.stat().st_mode & 0o777 == 0o700
    leave_address(long, path)
    assert address(long) == path


def test_a_process_has_one_birth_and_none_when_it_is_gone():
    with ending(subprocess.Popen(["sleep", "30"])) as process:
        assert birth(process.pid) == birth(process.pid) != ""
        process.kill()
        wait_until("its end", lambda: not birth(process.pid))  # a zombie has ended too


def test_ps_shows_places_and_ages_in_few_columns():
    hosts = tuple(HostState(name=f"gpu{number:02d}") for number in range(8))
    assert places(state_of(world_size=2)) == "2@h1"
    assert places(state_of(world_size=64, hosts=hosts)) == "64@8 hosts"
    assert places(state_of(world_size=0, hosts=hosts[:2])) == "2 hosts"
    assert table([("A", "B"), ("aaa", "bbbbbb")], 8) == ["A    B", "aaa  bb…"]
    assert socket.gethostname() == state_of().host
