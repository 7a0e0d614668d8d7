"""Ranks that find each other over real sockets on this machine, without torch."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from waiting import patience

from muster.engines.mpi import pmi
from muster.engines.pbs.nodefile import with_nodefile
from muster.engines.rank_variables import Clue
from muster.errors import MusterError
from muster.rank.world.find_rank_0 import PORTS, Answer, find_rank_0
from muster.rank.world.master_address import meet

pytestmark = pytest.mark.timeout(100)

HERE = Clue(hosts=("127.0.0.1",), reason="")


@pytest.fixture
def job(request):
    """A job id of this test and this process alone, whose ports nobody has."""
    while True:
        job = f"{request.node.name} {os.getpid()} {time.monotonic_ns()}"
        try:
            with ExitStack() as taken:
                for port in range(meet(job, HERE).port, meet(job, HERE).port + PORTS):
                    taken.enter_context(socket.create_server(("", port)))
            return job
        except OSError:
            continue


def test_a_rank_gets_the_port_of_the_store(job):
    answer = Answer(meet(job, HERE), 4711)
    try:
        assert find_rank_0(meet(job, HERE), who="rank 1", limit=30) == ("127.0.0.1", 4711)
    finally:
        answer.close()


def test_rank_0_may_come_later_than_the_others(job):
    answers = []
    late = threading.Timer(0.4, lambda: answers.append(Answer(meet(job, HERE), 4711)))
    late.start()
    try:
        assert find_rank_0(meet(job, HERE), who="rank 1", limit=30) == ("127.0.0.1", 4711)
    finally:
        late.join()
        answers[0].close()


def test_rank_0_is_found_on_the_last_of_many_hosts(job):
    answer = Answer(meet(job, HERE), 4711)
    strange = ("a..b", *(f"no-such-host-{i}.invalid" for i in range(5)))
    try:
        found = find_rank_0(replace(meet(job, HERE), hosts=(*strange, "127.0.0.1")), who="rank 1", limit=30)
        assert found == ("127.0.0.1", 4711)
    finally:
        answer.close()


def test_two_jobs_whose_ids_give_the_same_port_do_not_mix(job):
    first, second = (replace(meet(f"{job} {i}", HERE), port=meet(job, HERE).port) for i in (1, 2))
    answers = [Answer(first, 1111), Answer(second, 2222)]
    try:
        assert find_rank_0(second, who="rank 1", limit=30) == ("127.0.0.1", 2222)
        assert find_rank_0(first, who="rank 1", limit=30) == ("127.0.0.1", 1111)
    finally:
        for answer in answers:
            answer.close()


def test_a_program_that_holds_the_port_and_says_nothing_is_passed_over(job):
    meeting = meet(job, HERE)
    with socket.create_server(("", meeting.port)):
        answer = Answer(meeting, 4711)
        try:
            assert find_rank_0(meeting, who="rank 1", limit=30) == ("127.0.0.1", 4711)
        finally:
            answer.close()


def test_a_stranger_that_sends_byte_after_byte_does_not_keep_its_place(job):
    meeting, sent = meet(job, HERE), 0
    answer = Answer(meeting, 4711)
    try:
        with socket.create_connection(("127.0.0.1", meeting.port)) as slow:
            slow.settimeout(0.1)
            while sent < 90:
                try:
                    sent += slow.send(b"x")
                    assert slow.recv(9) == b""
                    break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        assert sent < 60, "about 6"
        assert find_rank_0(meeting, who="rank 1", limit=30) == ("127.0.0.1", 4711)
    finally:
        answer.close()


def test_rank_0_answers_after_a_connection_that_could_not_be_accepted(job, monkeypatch):
    accept, failures = socket.socket.accept, [OSError(24, "Too many open files")]

    def fail_once(self):
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    answer = Answer(meet(job, HERE), 4711)
    try:
        assert find_rank_0(meet(job, HERE), who="rank 1", limit=30) == ("127.0.0.1", 4711)
        assert not failures
    finally:
        answer.close()


def test_a_rank_0_that_finds_all_its_ports_taken_says_so(job):
    meeting = meet(job, HERE)
    with ExitStack() as taken:
        for port in range(meeting.port, meeting.port + PORTS):
            taken.enter_context(socket.create_server(("", port)))
        with pytest.raises(
            MusterError, match=rf"ports {meeting.port} to {meeting.port + PORTS - 1} of \S+ are all in use"
        ):
            Answer(meeting, 4711)


def test_a_rank_0_that_never_comes_is_one_sentence_with_the_places_tried(job):
    meeting = replace(meet(job, HERE), hosts=("127.0.0.1", "no-such-host.invalid"))
    with pytest.raises(MusterError) as caught:
        find_rank_0(meeting, who="rank 1 on box", limit=3)
    assert caught.value.message.startswith(
        "rank 1 on box could not find rank 0 within 3 s: "
        f"127.0.0.1, ports {meeting.port} to {meeting.port + PORTS - 1}: connection refused; no-such-host.invalid, "
    )
    assert "MASTER_ADDR=host" in caught.value.hint


def test_after_the_roll_call_nobody_answers(job):
    meeting = meet(job, HERE)
    Answer(meeting, 4711).close()
    with pytest.raises(MusterError, match="connection refused"):
        find_rank_0(meeting, who="rank 1", limit=0.1)


def serve_names(connection):
    """What Hydra does with publish_name, lookup_name and unpublish_name, for one rank."""
    names = {}
    for line in connection.makefile():
        words = dict(word.split("=", 1) for word in line.split())
        if words["cmd"] == "publish_name":
            names[words["service"]] = words["port"]
            reply = "cmd=publish_result info=ok rc=0 msg=success"
        elif words["cmd"] == "unpublish_name":
            names.pop(words["service"], None)
            reply = "cmd=unpublish_result info=ok rc=0 msg=success"
        elif words["service"] in names:
            reply = f"cmd=lookup_result port={names[words['service']]} info=ok rc=0 msg=success"
        else:
            reply = "cmd=lookup_result rc=1 msg=service_not_found"
        connection.sendall(f"{reply}\n".encode())


@pytest.fixture
def mpiexec(monkeypatch):
    """The other end of PMI_FD."""
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("PMI_FD", str(ours.fileno()))
    thread = threading.Thread(target=serve_names, args=(theirs,), daemon=True)
    thread.start()
    yield theirs
    ours.close()
    thread.join(30)
    theirs.close()


@pytest.mark.usefixtures("mpiexec")
def test_under_mpiexec_rank_0_is_found_by_what_it_published():
    asking = replace(meet("", HERE), key="", port=0, ask="PMI")
    assert pmi.look_up() is None
    answer = Answer(asking, 4711)
    try:
        assert find_rank_0(asking, who="rank 1", limit=30) == ("127.0.0.1", 4711)
    finally:
        answer.close()
    assert pmi.look_up() is None


def test_an_mpiexec_that_has_gone_is_named(mpiexec):
    mpiexec.shutdown(socket.SHUT_RDWR)
    with pytest.raises(MusterError, match=r"could not exchange the address of rank 0 with mpiexec \(PMI_FD="):
        pmi.look_up()


TASK = {"PBS_JOBID": "7.server", "PBS_NODENUM": "1", "PBS_TASKNUM": "20000003"}


def test_a_pbs_task_learns_size_and_first_host_from_the_nodefile(tmp_path):
    nodefile = tmp_path / "nodes"
    nodefile.write_text("n3\nn1\n")
    env = {**TASK, "PBS_NODEFILE": str(nodefile)}
    assert with_nodefile(env) == {**env, "WORLD_SIZE": "2", "MASTER_ADDR": "n3"}
    nodefile.write_text("n3\nn1\nn3\n")
    assert with_nodefile(env) == {**env, "MASTER_ADDR": "n3"}
    assert with_nodefile({**env, "RANK": "0"}) == {**env, "RANK": "0"}
    assert with_nodefile({**env, "MASTER_ADDR": "x", "WORLD_SIZE": "9"})["MASTER_ADDR"] == "x"


def test_on_the_first_host_of_a_pbs_job_the_nodefile_is_found_without_its_variable(tmp_path):
    (tmp_path / "aux").mkdir()
    (tmp_path / "aux" / "7.server").write_text("n3\nn1\n")
    settings = tmp_path / "pbs.conf"
    settings.write_text(f"PBS_SERVER=server\nPBS_HOME={tmp_path}\n")
    env = {**TASK, "PBS_CONF_FILE": str(settings)}
    assert with_nodefile(env)["WORLD_SIZE"] == "2"
    assert with_nodefile({**env, "PBS_JOBID": "8.server"}) == {**env, "PBS_JOBID": "8.server"}


def test_a_process_of_another_user_is_not_taken_for_rank_0(job, monkeypatch):
    answer = Answer(meet(job, HERE), 4711)
    mine = os.getuid()
    try:
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        with pytest.raises(MusterError, match="a process of another user answered"):
            find_rank_0(meet(job, HERE), who="rank 1", limit=patience(1))
    finally:
        answer.close()


def test_rank_0_does_not_give_its_key_away(job):
    meeting = meet(job, HERE)
    answer = Answer(meeting, 4711)
    try:
        with socket.create_connection(("127.0.0.1", meeting.port), timeout=30) as stranger:
            stranger.sendall(b"nonce plain\n")
            said = stranger.makefile("rb").readline()
        assert said.startswith(b"muster ")
        assert meeting.key.encode() not in said
    finally:
        answer.close()


def test_who_only_passes_on_the_words_of_rank_0_is_not_taken_for_it(job):
    meeting = meet(job, HERE)
    answer = Answer(meeting, 4711)

    def pass_on(server):
        try:
            client, _ = server.accept()
            with client, socket.create_connection(("127.0.0.1", meeting.port), timeout=30) as rank_0:
                rank_0.sendall(client.makefile("rb").readline())
                client.sendall(rank_0.makefile("rb").readline())
        except OSError:
            pass

    with socket.create_server(("127.0.0.2", 0)) as server:
        relay = threading.Thread(target=pass_on, args=(server,))
        relay.start()
        try:
            there = replace(meeting, port=server.getsockname()[1], hosts=("127.0.0.2",))
            with pytest.raises(MusterError, match="another program or job answered"):
                find_rank_0(there, who="rank 1", limit=patience(1))
        finally:
            answer.close()
            server.close()
            relay.join(30)


MUNGE = """#!/bin/sh
# Seals for user $SEALER: base64 in place of encryption.
if [ "${0##*/}" = munge ]; then echo "MUNGE:$(cat | base64 -w0):"; exit; fi
IFS=: read -r _ text _
echo "UID:   ${SEALER:-$(id -u)}" >&2
echo "$text" | base64 -d
"""


@pytest.fixture
def munge(tmp_path, monkeypatch):
    for name in ("munge", "unmunge"):
        (tmp_path / name).write_text(MUNGE)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_inside_slurm_rank_0_proves_by_munge_that_it_is_of_the_same_user(job, munge):
    meeting = replace(meet(job, HERE), munge=True)
    answer = Answer(meeting, 4711)
    try:
        assert find_rank_0(meeting, who="rank 1", limit=30) == ("127.0.0.1", 4711)
    finally:
        answer.close()


def test_inside_slurm_who_knows_only_the_public_job_id_is_not_taken_for_rank_0(job, munge, monkeypatch):
    meeting = replace(meet(job, HERE), munge=True)
    answer = Answer(replace(meeting, munge=False), 4711)
    try:
        with pytest.raises(MusterError, match=r"did not prove \(MUNGE\) that it belongs to this user"):
            find_rank_0(meeting, who="rank 1", limit=patience(1))
        sealed = Answer(meeting, 4712)
        monkeypatch.setenv("SEALER", str(os.getuid() + 1))
        with pytest.raises(MusterError, match=r"did not prove \(MUNGE\) that it belongs to this user"):
            find_rank_0(meeting, who="rank 1", limit=patience(1))
        sealed.close()
    finally:
        answer.close()
