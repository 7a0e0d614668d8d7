"""What the user sees of the ranks: complete, in order, labeled, colored on a terminal, and saved in log files."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from emulator import seen
from launching import MUSTER, PLAIN, Job, run_here, without_silence
from waiting import patience, wait_until

pytestmark = pytest.mark.timeout(120)

HOST = socket.gethostname().partition(".")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("code")


def test_five_megabytes_arrive_whole_in_the_log_and_on_the_screen(folder: Path) -> None:
    (folder / "much.py").write_text("import sys\nfor n in range(50000): print(f'{n:06d}', 'x' * 93)\n")
    done = run_here(folder, "--nproc", "1", "--no-zygote", "much.py")
    expected = "".join(f"{n:06d} {'x' * 93}\n" for n in range(50000))
    assert done.log(0).decode() == expected
    assert "".join(line + "\n" for line in done.lines(0)) == expected


def test_a_last_burst_right_before_the_end_is_not_lost(folder: Path) -> None:
    (folder / "burst.py").write_text("import os\nos.write(1, b'y' * 60000 + b'\\nlast')\nos._exit(0)\n")
    for _ in range(3):
        done = run_here(folder, "--nproc", "1", "--no-zygote", "burst.py")
        assert done.log(0) == b"y" * 60000 + b"\nlast"
        assert done.lines(0)[-1] == "last"


def test_utf8_cut_in_pieces_is_put_together_and_other_bytes_arrive_unchanged(folder: Path) -> None:
    (folder / "bytes.py").write_text(
        "import os, time\n"
        "for piece in (b'\\xe2', b'\\x82', b'\\xac and ', b'\\xf0\\x9f', b'\\x98\\x80\\n',"
        " b'bad \\xff\\xfe\\xc3(\\n\\xe2\\x82'):\n"
        "    os.write(1, piece); time.sleep(0.05)\n"
    )
    done = run_here(folder, "--nproc", "1", "--no-zygote", "bytes.py")
    assert done.log(0) == b"\xe2\x82\xac and \xf0\x9f\x98\x80\nbad \xff\xfe\xc3(\n\xe2\x82"
    assert done.lines(0) == ["€ and 😀", "bad \udcff\udcfe\udcc3(", "\udce2\udc82"]


def test_stdout_and_stderr_of_a_rank_stay_apart(folder: Path) -> None:
    (folder / "streams.py").write_text("import sys\nprint('to out')\nprint('to err', file=sys.stderr)\n")
    done = run_here(folder, "--nproc", "1", "--no-zygote", "streams.py")
    assert done.out == f"[{HOST} 0] to out\n"
    assert f"[{HOST} 0] to err\n" in done.err
    assert "to out" not in done.err


def test_a_progress_bar_keeps_its_returns_in_the_log_and_gives_its_first_and_last_state_on_a_pipe(folder: Path) -> None:
    (folder / "bar.py").write_text(
        "import sys, time\nfor n in (10, 20, 30): sys.stderr.write(f'\\r{n}%'); sys.stderr.flush(); time.sleep(0.05)\n"
        "sys.stderr.write('\\n')\n"
    )
    done = run_here(folder, "--nproc", "1", "--no-zygote", "bar.py")
    assert done.log(0) == b"\r10%\r20%\r30%\n"
    assert re.findall(rf"^\[{HOST} 0\] (\d+%)$", done.err, re.MULTILINE) == ["10%", "30%"]


def test_tracebacks_that_only_echo_the_first_failure_are_folded_on_the_screen_and_whole_in_the_logs(
    folder: Path,
) -> None:
    (folder / "echo.py").write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "tensor = torch.ones(1)\n"
        "dist.all_reduce(tensor)\n"
        "if dist.get_rank() == 1: raise ValueError('the cause')\n"
        "for _ in range(10**6):\n"
        "    print('step', file=sys.stderr)\n"  # so that the agent is busy with stderr when the exception comes
        "    dist.all_reduce(tensor)\n"
    )
    done = run_here(folder, "--nproc", "3", "echo.py")
    assert "Connection closed by peer" not in done.err
    assert "[rank" not in done.err, "the label of the screen is enough"
    assert done.err.count(f"[{HOST} 1] ValueError: the cause") == 1
    logged = [rank for rank in (0, 2) if b"Traceback" in done.log(rank)]
    for rank in logged:
        assert re.search(
            rf"^muster: rank {rank} on {HOST} lost its connection to another rank; traceback folded, "
            rf"see \S+/attempt-0/rank-{rank}\.log$",
            done.err,
            re.MULTILINE,
        )
    assert logged or "2 other ranks were then stopped" in done.err


def test_an_error_that_hits_all_ranks_alike_is_reported_once(folder: Path) -> None:
    (folder / "all.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('ready-' + os.environ['RANK']).touch()\n"
        "while len(list(pathlib.Path().glob('ready-*'))) < 4: time.sleep(0.01)\n"
        "open('/no/such/file')\n"
    )
    done = run_here(folder, "--nproc", "4", "--no-zygote", "all.py")
    assert done.code == 1
    assert "muster: all 4 ranks failed the same way" in done.err
    assert done.err.count("] Traceback") == 1
    assert done.err.count("; traceback folded, see ") == 3


def test_output_is_seen_while_the_script_still_runs(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\nprint('early')\ntime.sleep(600)\n")
    with Job(folder, "--nproc", "1", "--no-zygote", "slow.py") as job:
        wait_until("its output", lambda: job.out == f"[{HOST} 0] early\n", 60, lambda: job.out)


def test_only_some_ranks_are_shown_but_all_are_logged(folder: Path) -> None:
    (folder / "who.py").write_text("import os; print('I am', os.environ['RANK'])")
    done = run_here(folder, "--nproc", "3", "--no-zygote", "--only-rank", "0,2", "who.py")
    assert sorted(done.out.splitlines()) == [f"[{HOST} 0] I am 0", f"[{HOST} 2] I am 2"]
    assert done.log(1) == b"I am 1\n"


def test_quiet_says_nothing_of_its_own_when_all_goes_well(folder: Path) -> None:
    (folder / "who.py").write_text("import os; print('I am', os.environ['RANK'])")
    done = run_here(folder, "--quiet", "--nproc", "1", "--no-zygote", "who.py")
    assert (done.out, without_silence(done.err)) == (f"[{HOST} 0] I am 0\n", "")


def test_quiet_still_reports_a_failure(folder: Path) -> None:
    (folder / "fails.py").write_text("raise ValueError('bad')")
    done = run_here(folder, "--quiet", "--nproc", "1", "--no-zygote", "fails.py")
    assert done.code == 1
    assert "failed first" in done.err


def test_the_summary_shows_where_the_time_went(folder: Path) -> None:
    (folder / "who.py").write_text("print('x')")
    done = run_here(folder, "--nproc", "1", "--no-zygote", "who.py")
    last = done.err.splitlines()[-1]
    assert re.search(r"connected \d+\.\d s", last), done.said
    assert re.search(r"exit code 0", last), done.said


@pytest.mark.torch
def test_the_first_collective_of_a_short_script_is_reported(folder: Path) -> None:
    (folder / "short.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
    )
    last = run_here(folder, "--nproc", "2", "short.py").err.splitlines()[-1]
    assert re.search(r"connected \d+\.\d s, imported \d+\.\d s, first collective \d+\.\d s", last), last


def test_logs_and_plan_are_readable_by_the_user_alone(folder: Path) -> None:
    (folder / "who.py").write_text("print('x')")
    done = run_here(folder, "--nproc", "1", "--no-zygote", "who.py")
    for path in [done.folder.parents[1], done.folder]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert json.loads((done.folder / "plan.json").read_text())["world_size"] == 1


def on_terminal(folder: Path, *argv: str, **env: str) -> str:
    """What a terminal gets, with `script` as the terminal."""
    command = " ".join([MUSTER, "run", *argv])
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=folder,
        env={**PLAIN, "TERM": "xterm", "XDG_STATE_HOME": str(folder / ".state"), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=patience(100),
    )
    return done.stdout.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_a_progress_bar_that_renews_itself(folder: Path) -> None:
    (folder / "bar.py").write_text(
        "import sys, time\nfor n in (10, 20, 30): sys.stderr.write(f'\\r{n}%'); sys.stderr.flush(); time.sleep(0.05)\n"
        "sys.stderr.write('\\n'); print('after')\n"
    )
    text = on_terminal(folder, "--nproc 2", "--no-zygote", "bar.py")
    colours = set(re.findall(rf"(\x1b\[\d+m)\[{HOST} \d\]\x1b\[0m", text))
    assert len(colours) == 2, repr(text)
    plain = on_terminal(folder, "--nproc 2", "--no-zygote", "bar.py", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*m", plain), repr(plain)
    lines = seen(plain, 10**6)
    assert {f"[{HOST} {rank}] {text}" for rank in (0, 1) for text in ("30%", "after")} < set(lines), lines
    assert not [line for line in lines if line.endswith(("10%", "20%"))], "only the last state stays"


def test_progress_bars_of_four_ranks_are_four_lines_below_what_they_print(folder: Path) -> None:
    (folder / "bars.py").write_text(
        "import os, pathlib, sys, time\n"
        "rank = os.environ['RANK']\n"
        "for n in range(40):\n"
        "    sys.stderr.write(f'\\r{n:3}/40'); sys.stderr.flush(); time.sleep(0.01)\n"
        "    if n == 20: print('half', flush=True)\n"
        "pathlib.Path('bars-' + rank).touch()\n"
        "while len(list(pathlib.Path().glob('bars-*'))) < 4: time.sleep(0.05)\n"
        "time.sleep(2)\n"
        "sys.stderr.write('\\r 40/40\\n')\n"
    )
    text = on_terminal(folder, "--nproc 4", "--no-zygote", "bars.py", NO_COLOR="1")
    drawn = "\n".join(f"[{HOST} {rank}]  39/40" for rank in range(4))
    assert drawn in text.replace("\r\n", "\n"), repr(text)
    lines = [line for line in seen(text, 10**6) if line.startswith("[")]
    assert sorted(lines) == sorted(f"[{HOST} {rank}] {said}" for rank in range(4) for said in ("half", " 40/40"))


@pytest.mark.torch
def test_a_terminal_shows_live_what_is_waited_for_and_wipes_it(folder: Path) -> None:
    (folder / "who.py").write_text("print('done now')")
    text = on_terminal(folder, "--nproc 1", "who.py", NO_COLOR="1")
    assert re.search(r"muster: importing torch[^\n]*\(\d+ s\)", text), repr(text)
    assert not [line for line in seen(text, 10**6) if "importing" in line], repr(text)


def test_a_reader_that_leaves_ends_the_job_quietly(folder: Path) -> None:
    (folder / "endless.py").write_text("import time\nwhile True: print('line'); time.sleep(0.01)\n")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {MUSTER} run --nproc 1 --no-zygote --grace 1 endless.py | head -3"],
        cwd=folder,
        env={**PLAIN, "XDG_STATE_HOME": str(folder / ".state")},
        capture_output=True,
        text=True,
        timeout=patience(100),
    )
    assert done.stdout == f"[{HOST} 0] line\n" * 3
    assert "Traceback" not in done.stderr
    assert done.returncode == 128 + signal.SIGPIPE
