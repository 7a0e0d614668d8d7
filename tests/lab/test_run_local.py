"""A script under `muster run` behaves as under plain python: the same probes run under both and must agree."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import PLAIN, Done, run_here
from waiting import patience

pytestmark = pytest.mark.timeout(120)

HOST = socket.gethostname().partition(".")[0]

WAYS = ["zygote", "no-zygote"]

PROBE = '''
"""The docstring of the script."""
names_at_start = sorted(globals())
import atexit, inspect, json, os, pickle, signal, sys, threading, time
import sibling

class Thing:
    def __init__(self, value): self.value = value
    def __eq__(self, other): return type(other) is Thing and other.value == self.value

def function(): return 1

def main():
    facts = dict(
        name=__name__, file=__file__, spec=repr(getattr(__spec__, "name", __spec__)), package=__package__, doc=__doc__,
        cached=__cached__, loader=type(__loader__).__name__, builtins=type(__builtins__).__name__,
        names_at_start=names_at_start, argv=sys.argv, path0=sys.path[0], cwd=os.getcwd(), pwd=os.environ["PWD"],
        sibling=sibling.__file__, sibling_value=sibling.VALUE, source=inspect.getsource(function),
        pickled=pickle.loads(pickle.dumps(Thing(3))) == Thing(3), pickled_as=Thing.__module__,
        main_is_me=sys.modules["__main__"].__dict__ is globals(),
        stdin=sys.stdin.read(), stdin_fd=os.read(0, 1).decode(),
        encodings=[
            [s.encoding, s.errors, s.newlines, s.fileno(), s.name, s.mode] for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        originals=[sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        int_handler=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        handlers={n.name: str(signal.getsignal(n)) for n in signal.Signals if n not in (signal.SIGINT,)},
        mask=[int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())], wakeup=signal.set_wakeup_fd(-1),
        threads=[t.name for t in threading.enumerate()], thread_count=len(os.listdir("/proc/self/task")),
        umask=os.umask(0o022), executable=os.path.dirname(sys.executable), prefix=sys.prefix,
        hooks=[sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace() is None],
        flags=str(sys.flags), path_rest=[p for p in sys.path[1:] if "site-packages" in p or "lib/python" in p],
        children=open(f"/proc/self/task/{os.getpid()}/children").read(),
        limit=sys.getrecursionlimit(), dont_write=sys.dont_write_bytecode, interactive=hasattr(sys, "ps1"),
        hash_of_a=hash("a") if os.environ.get("PYTHONHASHSEED") else None,
    )
    print("FACTS " + json.dumps(facts, sort_keys=True))

def late():
    time.sleep(0.3)
    print("thread is done")

if __name__ == "__main__":
    main()
    atexit.register(print, "registered first, runs last")
    atexit.register(print, "registered last, runs first")
    thread = threading.Thread(target=late)
    thread.start()
    sys.stdout.write("no newline at the end, not flushed")
    sys.stdout.write("\\n")
    sys.stdout.write("end")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "probe.py").write_text(PROBE)
    (folder / "scripts" / "sibling.py").write_text("VALUE = 'from the script folder'\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "sibling.py").write_text("VALUE = 'from the package'\n")
    (folder / "pkg" / "mod.py").write_text(PROBE.replace("import sibling\n", "from . import sibling\n"))
    return folder


def python(folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env={**PLAIN, "PWD": str(folder), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=patience(100),
    )


def under(way: str) -> list[str]:
    return ["--no-zygote"] if way == "no-zygote" else []


def facts(text: str) -> tuple[dict[str, Any], str]:
    """The facts the probe printed, and what it printed after them."""
    line, _, rest = text.partition("FACTS ")[2].partition("\n")
    return json.loads(line), rest


@pytest.mark.torch
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", [["scripts/probe.py"], ["-m", "pkg.mod"]], ids=["script", "module"])
def test_a_script_finds_the_world_as_plain_python_would_show_it(folder: Path, way: str, target: list[str]) -> None:
    arguments = ["--flag", "two words", "", "-m", "--nproc", "ü"]
    env = ["--env", "PYTHONHASHSEED=7", "--env", "OMP_NUM_THREADS=1"]
    plain = python(folder, *target, *arguments, PYTHONHASHSEED="7", OMP_NUM_THREADS="1")
    assert plain.returncode == 0, plain.stderr
    done = run_here(folder, "--nproc", "1", *env, *under(way), *target, *arguments)
    assert done.code == 0, done.said
    expected, expected_rest = facts(plain.stdout)
    seen, rest = facts(done.log(0).decode())
    assert {name: seen[name] for name in expected} == expected
    assert rest == expected_rest
    assert rest == (
        "no newline at the end, not flushed\nendthread is done\n"
        "registered last, runs first\nregistered first, runs last\n"
    )


ENDINGS = """
import os, signal, sys
def inner(): {}["missing"]
def chained():
    try: inner()
    except KeyError as error: raise RuntimeError("two\\nlines, ü") from error
class Own(Exception): pass
def recurse(): recurse()
mode = sys.argv[1] if sys.argv[1] != "by-attempt" else sys.argv[2 + int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
print("before", mode)
if mode == "7": sys.exit(7)
if mode == "true": sys.exit(True)
if mode == "minus1": sys.exit(-1)
if mode == "text": sys.exit("no data here, ü")
if mode == "list": sys.exit([1, 2])
if mode == "exception": chained()
if mode == "own": raise Own
if mode == "group": raise ExceptionGroup("several", [ValueError(1), TypeError(2)])
if mode == "syntax": compile("a b", "given.py", "exec")
if mode == "recursion": recurse()
if mode == "interrupt": raise KeyboardInterrupt
if mode == "sigint": os.kill(os.getpid(), signal.SIGINT); signal.pause()
if mode == "sigterm": os.kill(os.getpid(), signal.SIGTERM); signal.pause()
if mode == "sigkill": os.kill(os.getpid(), signal.SIGKILL)
if mode == "sigpipe": signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGPIPE)
if mode == "none": sys.exit()
if mode == "256": sys.exit(256)
"""
COUNT = re.compile(r"(?<=Previous line repeated )\d+")
"""How deep a recursion goes is a dozen frames less in a rank."""

# The last one ends well, so that the run ends there.
MODES = ["7", "true", "minus1", "text", "list", "exception", "own", "group", "syntax", "recursion"]
MODES += ["interrupt", "sigint", "sigterm", "sigkill", "sigpipe", "256"]


@pytest.fixture(scope="module")
def endings(folder: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """How the script ends under plain python in each way."""
    (folder / "endings.py").write_text(ENDINGS)
    modes = MODES if sys.version_info >= (3, 11) else [mode for mode in MODES if mode != "group"]
    # Unbuffered, because a rank's lines are let out as they come, while python holds them back from a pipe.
    return {mode: python(folder, "endings.py", mode, PYTHONUNBUFFERED="1") for mode in modes}


@pytest.mark.torch
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_end_is_the_same_as_under_plain_python(
    folder: Path, endings: dict[str, subprocess.CompletedProcess[str]], way: str
) -> None:
    # One run, each attempt on the warm zygote ending in another way: output and exit code are compared one by one.
    done = run_here(folder, "--nproc", "1", "--restarts", "40", *under(way), "endings.py", "by-attempt", *endings)
    told = re.split(r"^muster: restart \d+ of 40$", done.err, flags=re.MULTILINE)
    wrong: dict[str, Any] = {}
    for number, (mode, plain) in enumerate(endings.items()):
        expected, log = (COUNT.sub("N", text) for text in (plain.stdout + plain.stderr, done.log(0, number).decode()))
        if log != expected:
            wrong[f"{mode}: output"] = (expected, log)
        status = plain.returncode
        # An exception is reported by its name, and then python exits with code 1, or by SIGINT.
        words = "failed first" if status == 1 or "int" in mode else f"exit code {status}"
        if status < 0 and "int" not in mode:
            words = signal.Signals(-status).name
        if status and not re.search(words, told[number]):
            wrong[f"{mode}: status {status}"] = told[number]
    assert not wrong, json.dumps(wrong, indent=1)
    assert done.code == 0, done.said


@pytest.mark.parametrize(
    ("mode", "code"),
    [("7", 7), ("text", 1), ("exception", 1), ("minus1", 255), ("256", 0), ("sigkill", 137), ("sigint", 130)],
)
def test_the_exit_code_of_muster_is_the_scripts_as_a_shell_shows_it(folder: Path, mode: str, code: int) -> None:
    (folder / "endings.py").write_text(ENDINGS)
    assert run_here(folder, "--nproc", "1", "--no-zygote", "endings.py", mode).code == code


@pytest.mark.parametrize(
    ("source", "what"),
    # Neither is found before ranks start.
    [("exec('a b')\n", "SyntaxError"), ("if True:\n    import does_not_exist\n", "ModuleNotFoundError")],
)
def test_a_script_that_fails_at_once_prints_what_python_prints(tmp_path: Path, source: str, what: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    plain = python(tmp_path, "broken.py")
    done = run_here(tmp_path, "--nproc", "1", "--no-zygote", "broken.py")
    assert done.log(0).decode() == plain.stderr
    assert done.code == 1
    assert what in done.err
    assert "muster/rank" not in done.err
    assert "<muster>" not in done.err


WORKERS = """
import json, multiprocessing as mp, os, pickle, random, sys, tempfile

class Item:
    def __init__(self, n): self.n = n

def double(item): return Item(item.n * 2)
def put(queue, item): queue.put(double(item))

class Squares:
    def __len__(self): return 6
    def __getitem__(self, index): return index * index

def main():
    import numpy, torch
    facts = {}
    facts["seed"] = torch.initial_seed()
    facts["torch_random"] = torch.rand(1).item()
    facts["numpy_random"] = float(numpy.random.rand())
    facts["random"] = random.random()
    facts["tempname"] = next(tempfile._get_candidate_names())
    facts["threads"] = torch.get_num_threads()
    facts["omp"] = os.environ["OMP_NUM_THREADS"]
    facts["openblas"] = os.environ.get("OPENBLAS_NUM_THREADS")
    facts["devices"] = os.environ["CUDA_VISIBLE_DEVICES"]
    facts["cuda_initialised"] = torch.cuda.is_initialized()
    facts["matmul"] = (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()
    if os.environ["RANK"] == "0":
        workers(facts)
    facts["ps"] = open("/proc/self/cmdline").read().split("\\0")
    print("FACTS " + json.dumps(facts))

def workers(facts):
    from torch.utils.data import DataLoader
    for method in ("fork", "spawn", "forkserver"):
        context = mp.get_context(method)
        with context.Pool(1) as pool:
            facts[f"pool {method}"] = [item.n for item in pool.map_async(double, [Item(1), Item(2)]).get(60)]
        queue = context.Queue()
        process = context.Process(target=put, args=(queue, Item(21)))
        process.start()
        facts[f"process {method}"] = queue.get(timeout=60).n
        process.join(30)
        facts[f"exit {method}"] = process.exitcode
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=3, num_workers=1, multiprocessing_context=method)
        facts[f"loader {method}"] = [batch.tolist() for batch in loader]

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_workers_seeds_and_threads_in_forked_ranks(folder: Path) -> None:
    (folder / "workers.py").write_text(WORKERS)
    done = run_here(folder, "--nproc", "2", "--env", "OMP_NUM_THREADS=2", "workers.py", "--lr", "0.1", timeout=150)
    assert done.code == 0, done.said
    first, second = (facts(done.log(rank).decode())[0] for rank in (0, 1))
    for method in ("fork", "spawn", "forkserver"):
        assert first[f"pool {method}"] == [2, 4]
        assert first[f"process {method}"] == 42
        assert first[f"exit {method}"] == 0
    assert first["loader fork"] == first["loader spawn"] == [[0, 1, 4], [9, 16, 25]]
    # A fresh interpreter has random state of its own, and so must a rank.
    for name in ("seed", "torch_random", "numpy_random", "random", "tempname"):
        assert first[name] != second[name], name
    assert first["threads"] == second["threads"] == 2
    assert first["omp"] == "2"
    assert first["openblas"] is None
    assert first["devices"] == ""
    assert first["cuda_initialised"] is False
    assert first["matmul"] == 300.0**3
    # `ps` shows the script, not the zygote it came from.
    assert [os.path.basename(first["ps"][0])[:6], *first["ps"][1:4]] == ["python", "workers.py", "--lr", "0.1"]


SHARE = max(1, len(os.sched_getaffinity(0)) // 2)
"""Threads of each of two ranks, where the user says nothing."""
THREADS = 2 if SHARE == 1 else 1
"""Threads that a user wants."""


@pytest.mark.torch
def test_cpus_are_shared_out_among_ranks_where_the_user_says_nothing(folder: Path) -> None:
    (folder / "threads.py").write_text(
        "import os, torch; print(os.environ['OMP_NUM_THREADS'], torch.get_num_threads(), torch.rand(2).sum() > 0)"
    )
    done = run_here(folder, "--nproc", "2", "threads.py")
    assert done.lines(0) == done.lines(1) == [f"{SHARE} {SHARE} tensor(True)"], done.said


@pytest.fixture(scope="module")
def forked(folder: Path) -> Done:
    """A run with settings of the user, and a module in its zygote that does what asyncio does since Python 3.12."""
    (folder / "threads_of_user.py").write_text(
        "import os, torch\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'], torch.get_num_threads())"
    )
    (folder / "at_fork.py").write_text(
        "import os, signal\nos.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))\n"
    )
    argv = ["--nproc", "2", "--preload", "at_fork", "threads_of_user.py"]
    return run_here(folder, *argv, OMP_NUM_THREADS=str(THREADS), OPENBLAS_NUM_THREADS="3")


@pytest.mark.torch
def test_thread_settings_of_the_user_reach_forked_ranks(forked: Done) -> None:
    assert forked.lines(0) == forked.lines(1) == [f"{THREADS} 3 {THREADS}"], forked.said


@pytest.mark.torch
def test_a_module_that_takes_the_wakeup_descriptor_away_at_a_fork_does_not_break_the_ranks(forked: Done) -> None:
    assert forked.code == 0, forked.said


def test_variables_read_at_interpreter_start_have_their_effect(folder: Path) -> None:
    (folder / "start.py").write_text(
        "import os, sys; print(hash('x'), sys.flags.dev_mode, sys.flags.utf8_mode, os.environ['EMPTY'] == '')"
    )
    options = ["--env", "PYTHONHASHSEED=3", "--env", "PYTHONDEVMODE=1", "--env", "PYTHONUTF8=1", "--env", "EMPTY="]
    done = run_here(folder, "--nproc", "1", "--no-zygote", *options, "start.py")
    plain = python(folder, "start.py", PYTHONHASHSEED="3", PYTHONDEVMODE="1", PYTHONUTF8="1", EMPTY="")
    assert done.log(0).decode() == plain.stdout


def test_env_wins_over_what_muster_itself_would_set(folder: Path) -> None:
    (folder / "wins.py").write_text(
        "import os; print(*(os.environ[n] for n in ('OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES', 'GLOO_SOCKET_IFNAME')))"
    )
    options = ["--env", "OMP_NUM_THREADS=7", "--env", "CUDA_VISIBLE_DEVICES=", "--env", "GLOO_SOCKET_IFNAME=mine0"]
    done = run_here(folder, "--nproc", "1", "--no-zygote", "--interface", "lo", *options, "wins.py")
    assert done.lines(0) == ["7  mine0"], done.said


def test_the_whole_environment_of_this_machine_reaches_local_ranks(folder: Path) -> None:
    (folder / "env.py").write_text("import os; print(os.environ['OF_MY_SHELL'], os.environ['MUSTER_JOB'] != '')")
    assert run_here(folder, "--nproc", "1", "--no-zygote", "env.py", OF_MY_SHELL="yes").lines(0) == ["yes True"]


def test_as_many_arguments_as_a_shell_can_give_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("import sys; print(len(sys.argv), len(''.join(sys.argv)))")
    shards = [f"some/folder/with/shards/{n:06d}.tar" for n in range(8000)]
    done = run_here(tmp_path, "--nproc", "2", "--no-zygote", "count.py", *shards)
    assert done.lines(1) == [f"8001 {len('count.py') + len(''.join(shards))}"], done.said[:2000]


def test_arguments_that_are_no_utf8_arrive_unchanged(tmp_path: Path) -> None:
    (tmp_path / "raw.py").write_text("import os, sys; print(os.fsencode(sys.argv[1]), os.fsencode(os.environ['RAW']))")
    done = run_here(tmp_path, "--nproc", "1", "--no-zygote", "--env", "RAW", "raw.py", "caf\udce9", RAW="\udcff")
    assert done.lines(0) == [r"b'caf\xe9' b'\xff'"], done.said


def test_a_zygote_that_cannot_import_says_what_and_how_to_go_on(folder: Path) -> None:
    (folder / "who.py").write_text("print('x')")
    (folder / "broken_module.py").write_text("raise ImportError('libfoo.so.3 is missing')")
    done: Done = run_here(folder, "--nproc", "1", "--preload", "broken_module", "who.py")
    assert done.code == 125
    assert "broken_module" in done.err
    assert "libfoo.so.3 is missing" in done.err
    assert "--no-zygote" in done.err
