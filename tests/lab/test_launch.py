"""`muster.launch` on this machine: results by rank, every way to fail, large values, and who may call it from where."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launching import PLAIN, without_silence
from waiting import ending, patience, wait_until

import muster

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="ranks run on Linux"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(function: Callable[..., Any], *args: Any, nproc: int = 2, options: str = "", **more: Any) -> list[Any]:
    """Plain interpreters as ranks: where torch is not the point, its import is left out."""
    return muster.launch(function, args, nproc=nproc, options=f"--no-zygote {options}", **more)


def rank() -> int:
    return int(os.environ["RANK"])


# Functions below are defined inside tests: so they are sent, and this file is not imported by the ranks.


def test_results_come_in_the_order_of_the_ranks_with_torchruns_environment():
    def who(factor: int, *, more: int) -> tuple[int, str, str]:
        return int(os.environ["RANK"]) * factor + more, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]

    results = muster.launch(who, (10,), {"more": 5}, nproc=3, options=["--no-zygote"])
    assert results == [(5, "0", "3"), (15, "1", "3"), (25, "2", "3")]


def test_variables_and_the_engine_can_be_chosen():
    assert launch(lambda: os.environ["A"], env={"A": 5}, engine="local", nproc=1) == ["5"]


def test_what_a_class_of_the_caller_makes_comes_back_as_that_class():
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    results = launch(lambda: Point(int(os.environ["RANK"])))
    assert [type(point) for point in results] == [Point, Point]
    assert [point.x for point in results] == [0, 1]


@pytest.fixture
def steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's, in a folder that is on sys.path and is not the working directory."""
    source = """
        import os
        class Boom(Exception):
            def __init__(self, code, text):
                super().__init__(f"{text} ({code})")
                self.code = code
        def rank(): return int(os.environ["RANK"])
        def boom(): raise Boom(7, "bang")
        def code(): return lambda: 1
    """
    (folder / "project").mkdir()
    (folder / "project" / "steps.py").write_text(textwrap.dedent(source))
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    monkeypatch.syspath_prepend(str(folder / "project"))
    yield importlib.import_module("steps")
    del sys.modules["steps"]


def test_a_function_of_a_module_is_imported_by_the_ranks(steps: ModuleType):
    assert launch(steps.rank) == [0, 1]


def test_a_module_that_is_not_there_is_reported_in_one_sentence(steps: ModuleType, folder: Path):
    shutil.rmtree(folder / "project")
    with pytest.raises(muster.LaunchError) as caught:
        launch(steps.rank)
    assert "steps.rank needs the module `steps`, which is not installed there" in caught.value.message
    assert "register_pickle_by_value" in (caught.value.hint or "")
    assert "Traceback" not in str(caught.value)


def test_a_module_that_launches_while_a_rank_imports_it_is_refused(folder: Path):
    # Without the refusal each rank would start ranks that start ranks.
    (folder / "endless.py").write_text(
        "import muster\ndef f(): ...\nmuster.launch(f, nproc=1, options='--no-zygote')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import endless"], cwd=folder, env={**os.environ}, capture_output=True, timeout=100
    )
    assert b"UsageError: launch() was called while a rank imports this module" in done.stderr
    assert b"__name__ == '__main__'" in done.stderr


# --- failures -----------------------------------------------------------------------------------------------


def test_an_exception_comes_back_as_itself_from_an_error_that_says_host_and_rank(steps: ModuleType):
    with pytest.raises(steps.Boom, match="bang") as caught:
        launch(steps.boom, nproc=1)
    assert caught.value.code == 7  # although its __init__ takes other arguments than `args` has
    cause = caught.value.__cause__
    assert isinstance(cause, muster.LaunchError)
    assert cause.rank == 0
    assert cause.message.startswith(f"rank 0 on {cause.host} failed first")
    assert 'steps.py", line 8, in boom' in cause.traceback
    assert cause.traceback.splitlines()[0] in str(cause)  # a plain traceback of it shows all this


def test_what_can_be_pickled_of_an_exception_is_kept():
    class Odd(Exception):
        pass

    def fail() -> None:
        error = Odd("the message", 3)
        error.kept, error.left = "kept", (number for number in ())  # type: ignore[attr-defined]
        raise error

    with pytest.raises(Odd) as caught:
        launch(fail, nproc=1)
    assert caught.value.args == ("the message", 3)
    assert vars(caught.value) == {"kept": "kept"}


def test_an_exception_whose_class_is_only_there_is_reported_with_its_traceback():
    def fail() -> None:
        import sys
        import types

        module = sys.modules["onlythere"] = types.ModuleType("onlythere")
        exec("class Gone(Exception): pass", vars(module))
        raise module.Gone("of another world")

    with pytest.raises(muster.LaunchError, match=r"onlythere\.Gone: of another world") as caught:
        launch(fail, nproc=1)
    assert "in fail" in caught.value.traceback


def test_the_first_failure_ends_the_others_and_what_had_been_returned_is_kept():
    def one_of_three() -> str:
        import time
        from pathlib import Path

        if os.environ["RANK"] == "1":
            while not Path("pid of 0").exists() or Path("/proc", Path("pid of 0").read_text()).exists():
                time.sleep(0.02)
            raise KeyError("late")
        if os.environ["RANK"] == "2":
            time.sleep(600)
        Path("pid of 0").write_text(str(os.getpid()))
        return "early"

    with pytest.raises(KeyError, match="late") as caught:
        launch(one_of_three, nproc=3)
    assert isinstance(caught.value.__cause__, muster.LaunchError)
    assert caught.value.__cause__.rank == 1
    assert caught.value.__cause__.results == {0: "early"}


def leave(how: str) -> Any:
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "os._exit":
        os._exit(0)
    if how == "lock":
        return {"a": threading.Lock()}
    sys.exit(None if how == "None" else int(how) if how.isdigit() else how)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("signal", "killed by SIGKILL"),
        ("interrupt", "KeyboardInterrupt"),
        ("3", "ended with exit code 3 at test_launch.py:"),
        ("in words", "in words (test_launch.py:"),
        ("os._exit", "rank 0 on {host} exited with code 0 before lambda returned"),
        ("lock", "could not pickle its result (dict): cannot pickle '_thread.lock' object"),
    ],
)
def test_a_rank_that_leaves_without_a_result_is_named(how: str, sentence: str):
    by_value = sent(leave)
    with pytest.raises(muster.LaunchError) as caught:
        launch(lambda: by_value(how), nproc=1)
    assert sentence.format(host=caught.value.host) in caught.value.message
    assert caught.value.message.startswith("rank 0 on ")
    assert caught.value.rank == 0


def test_with_json_nothing_is_unpickled_here(monkeypatch: pytest.MonkeyPatch):
    def answer(how: str) -> Any:
        if how == "fail":
            raise ValueError("bad batch")
        return {"rank": int(os.environ["RANK"]), "losses": (0.5, None), "lock": how == "lock" and threading.Lock()}

    by_value = sent(answer)

    def refuse(data: bytes) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr("pickle.loads", refuse)
    values = launch(lambda: by_value("return"), results="json")
    assert values == [{"rank": rank, "losses": [0.5, None], "lock": False} for rank in (0, 1)]
    with pytest.raises(muster.LaunchError) as caught:
        launch(lambda: by_value("lock"), nproc=1, results="json")
    assert re.match(r"rank 0 on \S+ .*could not convert its result \(dict\) to JSON: .*lock", caught.value.message)
    assert 'results="pickle"' in str(caught.value)
    with pytest.raises(muster.LaunchError, match="ValueError: bad batch") as caught:
        launch(lambda: by_value("fail"), nproc=1, results="json")
    assert "in answer" in caught.value.traceback
    assert caught.value.results == {}


@pytest.mark.parametrize("how", ["None", "0"])
def test_a_function_that_leaves_in_good_order_returns_nothing(how: str):
    by_value = sent(leave)
    assert launch(lambda: by_value(how), nproc=1) == [None]


def sent(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as one that is in no module, so that its code is sent."""
    copy = type(function)(function.__code__, {"os": os, "sys": sys, "signal": signal, "threading": threading})
    copy.__module__ = "__main__"
    return copy


def test_a_job_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError, match=r"sleep did not return on every rank within 0\.7 s"):
        launch(time.sleep, 600, timeout=0.7)


def test_a_restart_gives_the_results_of_the_attempt_that_ended_well():
    def second_time() -> str:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("once")
        return "well"

    assert launch(second_time, options="--restarts 1") == ["well", "well"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"engine": "slurm"}, "not inside a Slurm allocation"),
        ({"nproc": 0}, "nproc must be at least 1, got 0"),
        ({"timeout": 0}, "timeout must be above 0, got 0"),
        ({"options": "--nprocs 3"}, "unknown option --nprocs"),
        ({"options": "train.py"}, "`train.py` is not an option"),
        ({"options": "--python 'a"}, "no closing quotation"),
        ({"options": "--dry-run"}, "does not support --dry-run"),
        ({"options": "--slurm-args -N2"}, "does not support --slurm-args"),
        ({"hosts": ["a:2", "b:x"]}, "b:x"),
        ({"results": "yaml"}, 'results must be "pickle" or "json", got \'yaml\''),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], sentence: str, folder: Path):
    with pytest.raises(muster.MusterError) as caught:
        muster.launch(time.sleep, (0,), **arguments)
    assert sentence in caught.value.message
    assert f"hint: {caught.value.hint}" in str(caught.value)
    assert not (folder / ".state").exists()


# --- large values, other interpreters -----------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_hundreds_of_megabytes_go_there_and_back():
    data = os.urandom(1 << 20) * 50
    (result,) = launch(lambda data: data * 4, data, nproc=1)
    assert len(result) == 200 << 20
    assert result == data * 4


def bare_python(folder: Path, **modules: str) -> str:
    """An interpreter of this version with nothing installed but some one-line modules."""
    venv.create(folder / "bare", symlinks=True)
    (packages,) = (folder / "bare" / "lib").glob("python*/site-packages")
    for name, text in modules.items():
        (packages / f"{name}.py").write_text(text)
    return f"--python {folder / 'bare' / 'bin' / 'python'}"


def test_hosts_need_neither_muster_nor_cloudpickle(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / "muster").exists()])

    def what_is_there() -> tuple[bool, bool, Any]:
        from importlib.util import find_spec

        return find_spec("muster") is None, find_spec("cloudpickle") is None, lambda: 7

    ((no_muster, no_cloudpickle, made_there),) = launch(what_is_there, nproc=1, options=bare_python(folder))
    assert no_muster
    assert not no_cloudpickle  # it was sent
    assert made_there() == 7


def test_another_cloudpickle_on_a_host_is_passed_over(folder: Path):
    old = "__version__ = '0.1'\n"
    assert launch(lambda: 1, nproc=1, options=bare_python(folder, cloudpickle=old)) == [1]


def test_another_python_on_a_host_is_reported_before_the_start(folder: Path, steps: ModuleType):
    pretends = bare_python(folder, sitecustomize="import sys\nsys.version_info = (3, 9, 1, 'final', 0)\n")
    with pytest.raises(muster.MusterError, match=r"it has Python 3\.9, but lambda can be sent only to"):
        launch(lambda: 1, nproc=1, options=pretends)
    assert launch(steps.rank, nproc=1, options=pretends) == [0]  # which is only named
    with pytest.raises(muster.LaunchError, match="it contains code, and the caller runs a different version of Python"):
        launch(steps.code, nproc=1, options=pretends)


# --- who calls, and where the output goes -------------------------------------------------------------------


def test_output_goes_where_the_callers_does():
    def speak() -> None:
        import sys

        print("rank", os.environ["RANK"], "speaks ü")
        print("aside", file=sys.stderr)

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        launch(speak)
    assert sorted(line.partition("] ")[2] for line in out.getvalue().splitlines()) == [
        "rank 0 speaks ü",
        "rank 1 speaks ü",
    ]
    assert "] aside\n" in err.getvalue()
    assert "muster: done after" in err.getvalue()


def test_quiet_leaves_out_the_words_of_muster(capfd: pytest.CaptureFixture[str]):
    launch(lambda: print("shown"), quiet=True, nproc=1)
    captured = capfd.readouterr()
    assert captured.out.endswith("] shown\n")
    assert without_silence(captured.err) == ""


def test_a_thread_may_call_it():
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(launch(lambda: int(os.environ["RANK"]))))
    thread.start()
    thread.join(90)
    assert results == [[0, 1]]


def test_a_coroutine_may_call_it():
    async def main() -> list[int]:
        return launch(lambda: int(os.environ["RANK"]))

    assert asyncio.run(main()) == [0, 1]


# A rank that shrugs SIGTERM off for a second, and a process it leaves behind.
STUBBORN = """
import asyncio, os, signal, subprocess, sys, time
import muster
def stay():
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    print("pid", subprocess.Popen(["sleep", "600"]).pid, os.getpid(), flush=True)
    while True: time.sleep(1)
async def main():
    muster.launch(stay, nproc=2, options="--no-zygote --grace 0.5")
try:
    asyncio.run(main()) if "loop" in sys.argv else muster.launch(stay, nproc=2, options="--no-zygote --grace 0.5")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("number", "where"), [(signal.SIGINT, "script"), (signal.SIGINT, "loop"), (signal.SIGTERM, "script")]
)
def test_a_signal_ends_the_job_and_only_then_the_caller(number: signal.Signals, where: str, folder: Path):
    (folder / "stubborn.py").write_text(STUBBORN)
    with (folder / "out").open("wb") as out:
        caller = subprocess.Popen(
            [sys.executable, "stubborn.py", where],
            cwd=folder,
            env={**PLAIN, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    text = (folder / "out").read_text
    with ending(caller):
        wait_until("both ranks", lambda: text().count("] pid") == 2, 30, text)
        caller.send_signal(number)
        assert caller.wait(patience(30)) == -number
    said = text()
    pids = [int(pid) for line in said.splitlines() if "] pid" in line for pid in line.split()[-2:]]
    assert len(pids) == 4
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == [], said
    why = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"muster: stopped by {why}" in said
    assert ("interrupted" in said) == (number == signal.SIGINT)


# --- the real thing -----------------------------------------------------------------------------------------


@pytest.mark.torch
def test_ranks_meet_in_a_process_group_and_return_tensors():
    def add_up() -> Any:
        import torch

        import muster

        with muster.init() as world:
            total = torch.full((1000,), float(world.rank + 1))
            torch.distributed.all_reduce(total)
            return total

    import torch

    results = muster.launch(add_up, nproc=2)
    assert all(torch.equal(result, torch.full((1000,), 3.0)) for result in results)


class Kernel:
    """A notebook's kernel, and what its cells show."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder))

    def run(self, code: str, interrupt_at: str = "") -> dict[str, str]:
        """Run a cell to its end; what it shows by kind: stdout, stderr, result, error."""
        cell = self.client.execute(textwrap.dedent(code))
        shown: dict[str, str] = {}
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            content, kind = message["content"], message["msg_type"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if kind == "stream":
                shown[content["name"]] = shown.get(content["name"], "") + content["text"]
            elif kind == "execute_result":
                shown["result"] = content["data"]["text/plain"]
            elif kind == "error":
                shown["error"] = content["ename"]
                shown["traceback"] = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                # ipykernel sets FORCE_COLOR, because notebooks display colors.
                return {kind: re.sub(r"\x1b\[[0-9;]*m", "", text) for kind, text in shown.items()}
            if interrupt_at and interrupt_at in shown.get("stdout", ""):
                self.manager.interrupt_kernel()
                interrupt_at = ""

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(folder: Path) -> Iterator[Kernel]:
    kernel = Kernel(folder)
    yield kernel
    kernel.close()


def test_a_notebook_gets_results_output_exceptions_and_ctrl_c(kernel: Kernel):
    cells = """
        import os, time, muster
        how = dict(nproc=2, options="--no-zygote")
        class Point:
            def __init__(self, x): self.x = x
        def helper(what):
            if what == "boom": raise ValueError("from a cell")
            if what == "stay": print("staying", os.getpid(), flush=True); time.sleep(600)
        def f(what=""):
            helper(what)
            print("rank", os.environ["RANK"])
            return Point(int(os.environ["RANK"]))
        [isinstance(point, Point) and point.x for point in muster.launch(f, **how)]
    """
    shown = kernel.run(cells)
    assert shown["result"] == "[0, 1]", shown
    assert "0] rank 0\n" in shown["stdout"]
    assert "1] rank 1\n" in shown["stdout"]
    assert "muster: done after" in shown["stderr"]

    shown = kernel.run("muster.launch(f, ('boom',), **how)")
    assert shown["error"] == "ValueError"
    # Which of the two depends on how far apart they fail, each in an interpreter of its own.
    assert re.search("both ranks failed the same way|rank [01] on .* failed first", shown["traceback"])
    assert 'if what == "boom": raise ValueError' in shown["traceback"]  # a line of a cell, which is in no file

    shown = kernel.run("muster.launch(f, ('stay',), **how)", interrupt_at="staying")
    assert shown["error"] == "KeyboardInterrupt", shown
    pids = [line.split()[-1] for line in shown["stdout"].splitlines() if "staying" in line]
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert kernel.run("1 + 1")["result"] == "2"
