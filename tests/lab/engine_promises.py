"""What holds on every engine, written once: each engine's file takes these tests over and gives them its `engine`."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_jobs import Engine, EngineJob, Firewall
from engine_witness import ONE_EACH, Witness, environments
from launching import Done
from waiting import wait_until

SOON = 30.0
"""Seconds after a fault by which nothing of a job may live, on a busy machine; what nobody ends lives much longer."""

# Each rank ignores SIGTERM and has a child in a session of its own, a daemon that has detached itself, and a worker
# such as a DataLoader has.
STUBBORN = """
import multiprocessing, os, signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, b"x")
        time.sleep(1000)
    os._exit(0)
os.read(read, 1)
multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
print("up", flush=True)
time.sleep(1000)
"""

# Rank 2 fails in the way of the argument when the others are there, which wait for it as in a collective.
FAIL = """
import glob, os, signal, sys, time
rank, sign = int(os.environ["RANK"]), "up-" + os.environ["TORCHELASTIC_RUN_ID"]
open(f"{sign}-{rank}", "w").close()
if rank != 2: time.sleep(100)
while len(glob.glob(f"{sign}-*")) < int(os.environ["WORLD_SIZE"]): time.sleep(0.02)
if sys.argv[1] == "raise": raise ValueError("bad sample in shard 7")
if sys.argv[1] == "exit3": sys.exit(3)
os.kill(os.getpid(), signal.SIGKILL)
"""

WHO = """
import json, os, socket
print(json.dumps({**os.environ, "host": socket.gethostname()}))
"""

# Prints a sign of life until it is asked to end.
PATIENT = """
import os, sys, time
print("up", os.environ["MASTER_PORT"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""

# Says which signals it gets, and ends in good order on SIGTERM.
LISTENER = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, f"heard {signal.Signals(number).name}\\n".encode())  # a print may be under way
    if number == signal.SIGTERM: sys.exit(0)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, note)
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""

TORCHRUN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)


def check_torchrun(engine: Engine, ranks: dict[str, int], envs: list[dict[str, str]]) -> None:
    """The ranks are where they should be, and each has the variables of torchrun."""
    hosts = [host for host, count in ranks.items() for _ in range(count)]
    assert [env["host"] for env in envs] == hosts
    for rank, env in enumerate(envs):
        assert {name: env[name] for name in TORCHRUN} == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - hosts.index(hosts[rank])),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_WORLD_SIZE": str(ranks[hosts[rank]]),
            "GROUP_RANK": str(list(ranks).index(hosts[rank])),
            "GROUP_WORLD_SIZE": str(len(ranks)),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(len(hosts)),
            "ROLE_NAME": "default",
            "MASTER_ADDR": engine.lab.address("h1"),
            "MASTER_PORT": envs[0]["MASTER_PORT"],
            "TORCHELASTIC_RUN_ID": envs[0]["TORCHELASTIC_RUN_ID"],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


def check_refusal(done: Done, code: int, error: str, hint: str) -> None:
    """One `error:` line with these words, one `hint:` with those, the exit code, no traceback, and no rank ran."""
    assert done.code == code, done.said
    errors = re.findall(r"^error: (.*)$", done.err, re.MULTILINE)
    hints = re.findall(r"^hint: (.*)$", done.err, re.MULTILINE)
    assert len(errors) == len(hints) == 1, done.said
    assert re.search(error, errors[0]), done.said
    assert re.search(hint, hints[0]), done.said
    assert "Traceback" not in done.err, done.said
    assert done.out == "", done.said


def start_stubborn(engine: Engine, *options: str) -> EngineJob:
    """A job whose ranks are hard to end, on three hosts, when all its processes are there."""
    job = engine.start(ONE_EACH, "--no-zygote", *options, "stubborn.py")
    job.wait_for("up\n", 3)
    for host in engine.lab.names:
        assert len(engine.processes(host)) >= 5, "the rank with its three children, and an agent"
    running = " ".join(line for lines in engine.left().values() for line in lines)
    for program in engine.programs:
        assert program in running, f"{program} is what the engine runs, and must be seen to be missed later"
    return job


def gone(engine: Engine, limit: float = SOON, every: float = 0.4) -> float:
    """Wait until nothing lives on any host, the engine's own programs included; how long that took."""
    begin = time.monotonic()
    wait_until("everything to be gone", lambda: not engine.left(), limit, lambda: str(engine.left()), every=every)
    return time.monotonic() - begin


@pytest.fixture(scope="module", autouse=True)
def scripts(shared: Path) -> None:
    texts = {"stubborn": STUBBORN, "fail": FAIL, "who": WHO, "patient": PATIENT, "listener": LISTENER}
    for name, text in {**texts, "train": "print('it ran')\n"}.items():
        (shared / f"{name}.py").write_text(text)


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """A job that is over has left no process on any host, and every host is as it was."""
    yield
    try:
        gone(engine)
    finally:
        engine.restore()


class Promises:
    """Tests for each engine."""

    # --- the ranks --------------------------------------------------------------------------------------------

    def test_each_rank_finds_what_torchrun_would_have_set(self, engine: Engine, witness: Witness) -> None:
        check_torchrun(engine, ONE_EACH, environments(witness.done, 130))

    def test_each_rank_finds_what_torchrun_would_have_set_if_hosts_have_different_numbers_of_ranks(
        self, engine: Engine, uneven: EngineJob
    ) -> None:
        check_torchrun(engine, {"h1": 2, "h2": 1}, environments(uneven.wait()))

    def test_the_token_is_on_no_command_line_and_not_with_the_ranks(self, witness: Witness) -> None:
        seen = witness.processes
        tokens = {json.loads(order)["token"] for order in seen.orders}
        assert len(tokens) == 1, "what starts the agents has it"
        (token,) = tokens
        assert not [line for line in seen.lines if token in " ".join(line)]
        assert seen.modes in ([], [0o600])
        ranks = [words for words in seen.settings if "WORLD_SIZE=3" in words]
        assert len(ranks) == 3
        assert not [word[:30] for words in ranks for word in words if word.startswith("MUSTER_DIAL") or token in word]
        assert not list(witness.job.state.glob("muster/jobs/*/order.json")), "nothing secret is kept"

    def test_a_megabyte_of_lines_of_each_rank_arrives(self, engine: Engine, shared: Path) -> None:
        (shared / "much.py").write_text(
            "import os\nr = os.environ['RANK']\nfor n in range(20_000): print(r, n, 'xyz' * 20)\n"
        )
        done = engine.run({"h1": 1, "h2": 1}, "--no-zygote", "much.py")
        assert done.code == 0, done.err
        for rank in (0, 1):
            assert done.lines(rank) == [f"{rank} {n} {'xyz' * 20}" for n in range(20_000)]
            assert done.log(rank).count(b"\n") == 20_000

    @pytest.mark.torch
    def test_torch_works_in_the_ranks(self, engine: Engine) -> None:
        done = engine.run({"h1": 1, "h2": 1}, "-m", "muster.recipes.hello", timeout=100)
        assert done.code == 0, done.said
        assert [re.sub(r"\[http://[\d.:]+\] ", "", line) for line in done.lines(0)] == [
            "hello from [h1:gloo] process 0/2",
            "hello from [h2:gloo] process 1/2",
        ]

    def test_two_jobs_on_the_same_hosts_do_not_touch_each_other(self, witness: Witness) -> None:
        ports = set(re.findall(r"up (\d+)", witness.neighbor.out))
        assert len(ports) == 1
        assert {env["MASTER_PORT"] for env in environments(witness.done, 130)}.isdisjoint(ports)
        assert witness.neighbor.wait().code == 137, witness.neighbor.said
        assert "lost" not in witness.done.err, witness.done.said

    # --- failures ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("mode", "code", "words"),
        [
            ("raise", 1, r"ValueError: bad sample in shard 7 \(fail\.py:7\)"),
            ("kill", 137, r"killed by SIGKILL, sent by neither Muster nor the OOM killer"),
        ],
    )
    def test_the_rank_that_fails_is_reported_with_its_host_and_its_code(
        self, engine: Engine, mode: str, code: int, words: str
    ) -> None:
        job = engine.start(ONE_EACH, "--no-zygote", "--grace", "1", "fail.py", mode)
        done = job.wait()
        assert (done.code, engine.exit_code(job)) == (code, code), done.said
        assert re.search(rf"^muster: rank 2 on h3 failed first, \d+\.\d s after the start: {words}", done.err, re.M), (
            done.said
        )
        assert "2 other ranks were then stopped by Muster" in done.err
        assert ("Traceback (most recent call last):" in done.err.partition("failed first")[2]) == (mode == "raise")
        assert "lost" not in done.err, done.said
        gone(engine)

    def test_a_host_that_loses_power_is_named_within_seconds(self, engine: Engine) -> None:
        job = start_stubborn(engine, "--grace", "1", "--lost-after", "5")
        off = time.monotonic()
        engine.lab.power_off("h3")
        wait_until("h3 to be named", lambda: "h3" in job.err.rpartition("logs in")[2], 30, lambda: job.said)
        named = time.monotonic() - off
        job.wait_for_word("lost h3")
        lost = time.monotonic() - off
        gone(engine)
        everything = time.monotonic() - off
        done = job.wait(30)
        assert done.code == 125, done.said
        assert re.search(r"^muster: host h3 is lost: no message from it for \d+ s", done.err, re.M), done.said
        print(
            f"{engine.name}: named after {named:.1f} s, given up after {lost:.1f} s, all gone after {everything:.1f} s"
        )

    def test_a_kill_with_usr1_of_muster_reaches_each_rank_once(self, witness: Witness) -> None:
        assert witness.done.out.count("heard SIGUSR1") == 3, witness.done.said
        assert not re.search("failed|lost|Traceback", witness.done.err), witness.done.said

    def test_rank_0_reads_the_stdin_of_muster_run(self, witness: Witness) -> None:
        said = sorted(re.findall(r"read \d \d+", witness.done.out))
        assert said == ["read 0 200000", "read 1 0", "read 2 0"], witness.done.said

    def test_a_script_that_handles_ctrl_c_has_the_time_to_save(self, witness: Witness) -> None:
        assert (witness.done.code, witness.done.out.count("saved\n")) == (130, 3), witness.done.said
        assert witness.seconds_to_end < 50, "a job that has saved does not wait for the rest of the 60 s"

    # --- being ended ------------------------------------------------------------------------------------------

    def test_ctrl_c_ends_every_process_after_the_grace_time(self, engine: Engine) -> None:
        job = start_stubborn(engine, "--grace", "1")
        begin = time.monotonic()
        job.signal(signal.SIGINT)
        gone(engine, every=0.05)
        assert time.monotonic() - begin > 1, "the ranks had their grace"
        done = job.wait(30)
        assert done.code == 130, done.said
        assert "Ctrl-C: stopping all ranks (up to 2 s" in done.err
        assert re.search(r"^muster: stopped by Ctrl-C after \d+\.\d s$", done.err, re.M), done.said
        assert not re.search("Traceback|lost|error", done.err), done.said

    def test_ctrl_c_twice_ends_every_process_at_once(self, engine: Engine) -> None:
        job = start_stubborn(engine, "--grace", "60")
        job.signal(signal.SIGINT)
        job.wait_for_word("stopping all ranks")
        job.signal(signal.SIGINT)
        gone(engine)
        done = job.wait(30)
        assert done.code == 130, done.said
        assert not re.search("Traceback|lost|error", done.err), done.said

    def test_nothing_outlives_the_kill_of_the_controller(self, engine: Engine) -> None:
        job = start_stubborn(engine, "--grace", "1")
        job.signal(signal.SIGKILL)
        took = gone(engine)
        print(f"{engine.name}: all gone {took:.1f} s after SIGKILL of the controller")
        assert job.wait(30).code == 137

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
    def test_an_end_while_the_agents_are_coming_leaves_nothing(self, engine: Engine, number: signal.Signals) -> None:
        # A script that does not end: the agents may be faster than the signal.
        job = engine.start(ONE_EACH, "--no-zygote", "patient.py", "never")
        job.wait_for_word("connecting to h1, h2, h3")
        job.signal(number)
        gone(engine)
        done = job.wait(30)
        assert done.code == 128 + number, done.said
        assert not re.search("Traceback|error|sent away", done.err), done.said

    # --- what cannot work -------------------------------------------------------------------------------------

    def test_a_python_that_is_not_there_is_refused(self, engine: Engine) -> None:
        done = engine.run(ONE_EACH, "--no-zygote", "--python", "/nope/python", "train.py")
        check_refusal(done, 125, "/nope/python", "--python PATH")

    def test_a_firewall_between_a_host_and_the_controller_is_reported(self, engine: Engine) -> None:
        with Firewall(engine, "h2") as wall:
            done = engine.start(ONE_EACH, "--no-zygote", "train.py", **wall.env).wait()
        check_refusal(done, 125, "h2.*cannot reach", "firewall|inside the allocation")
