"""The screen: labels, streams, colors, the live line and the log files, on real descriptors."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from emulator import seen
from waiting import ending, patience

SHOW = """
import sys
from pathlib import Path
from muster.output.lines import Line
from muster.output.screen import Screen
screen = Screen(quiet="quiet" in sys.argv)
folder = Path(sys.argv[1])
{body}
screen.close()
"""


WAIT = """
import time
def wait():
    deadline, quiet = time.monotonic() + 20, 0
    while quiet < 5 and time.monotonic() < deadline:
        quiet = 0 if screen._queue.qsize() or screen._is_stale else quiet + 1
        time.sleep(0.02)
"""


def on_pipes(body: str, folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", SHOW.format(body=body), str(folder), *argv],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        timeout=100,
    )


def test_output_that_a_full_disk_did_not_take_is_reported_once(tmp_path: Path) -> None:
    body = """
for text in ("one", "two"):
    screen.rank_line("h1", 0, 1, 1, Line(text, "\\n"))
"""
    argv = [sys.executable, "-c", SHOW.format(body=body), str(tmp_path)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, timeout=100)
    why = "could not write all output (no space left on device); the log files have it"
    assert done.stderr.decode() == f"muster: warning: {why}\n"


def on_terminal(body: str, folder: Path, *argv: str, **env: str) -> str:
    """What a terminal gets from the same program."""
    command = [sys.executable, "-c", SHOW.format(body=body), str(folder), *argv]
    return run_on_terminal(command, {"PATH": os.environ["PATH"], "TERM": "xterm", **env})


def run_on_terminal(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """What a terminal gets from a command that succeeds; stdout and stderr both lead there."""
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST  # \n stays \n
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    process = subprocess.Popen(argv, env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    data = b""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and select.select([master], [], [], deadline - time.monotonic())[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end has closed
            break
        if not piece:
            break
        data += piece
    os.close(master)
    assert process.wait(patience(20)) == 0
    return data.decode("utf-8", "surrogateescape")


def test_lines_of_ranks_carry_host_and_rank_and_keep_their_stream(tmp_path: Path):
    body = """
screen.rank_line("h1", 0, 2, 1, Line("to stdout", "\\n"))
screen.rank_line("gpu02", 11, 2, 2, Line("to stderr", "\\n"))
"""
    done = on_pipes(body, tmp_path)
    assert done.stdout == b"[h1  0] to stdout\n"
    assert done.stderr == b"[gpu02 11] to stderr\n"


def test_musters_own_words_go_to_stderr_and_quiet_leaves_only_what_matters(tmp_path: Path):
    body = 'screen.info("chat"); screen.warning("failure"); screen.status("waiting")'
    talkative, quiet = on_pipes(body, tmp_path), on_pipes(body, tmp_path, "quiet")
    assert talkative.stdout == quiet.stdout == b""
    assert talkative.stderr == b"muster: chat\nmuster: failure\nmuster: waiting\n"
    assert quiet.stderr == b"muster: failure\n"


def test_every_line_of_several_carries_the_name(tmp_path: Path):
    assert on_pipes('screen.warning("one\\ntwo")', tmp_path).stderr == b"muster: one\nmuster: two\n"


def bars(*states: str, rank: int = 0, stream: int = 2) -> str:
    return "".join(f'screen.rank_line("h1", {rank}, 1, {stream}, Line({text!r}, "\\r"));' for text in states) + "\n"


def test_escape_sequences_of_an_exception_do_not_reach_the_terminal_in_messages_of_muster(tmp_path: Path):
    body = r"""
screen.failure("rank 0 failed: \x1b[2J\x1b[31mred\x1b[0m\x07 \x9b5A \x1b]0;title\x07 \udc9b ende\tü 🏖️")
screen.show_block("  File \"train.py\"\n\tx = 1\nRuntimeError: \x1b[2Jgone")
"""
    done = on_pipes(body, tmp_path)
    assert done.stderr.decode().splitlines() == [
        "muster: rank 0 failed: red      ende\tü 🏖️",
        '    File "train.py"',
        "  \tx = 1",
        "  RuntimeError: gone",
    ]


def test_of_a_progress_bar_that_moves_fast_a_pipe_gets_the_first_and_the_last_state(tmp_path: Path):
    many = [f"{n}%" for n in range(1, 100)]
    assert on_pipes(bars(*many), tmp_path).stderr == b"[h1 0] 1%\n[h1 0] 99%\n"
    ended = bars(*many) + 'screen.rank_line("h1", 0, 1, 2, Line("100%", "\\n"))'
    assert on_pipes(ended, tmp_path).stderr == b"[h1 0] 1%\n[h1 0] 100%\n"
    rank_ended = bars(*many) + 'screen.rank_ended("h1", 0, 1); screen.info("after")'
    assert on_pipes(rank_ended, tmp_path).stderr == b"[h1 0] 1%\n[h1 0] 99%\nmuster: after\n"


def test_a_pipe_gets_a_state_of_each_rank_in_each_interval_even_if_the_bar_stands_still(tmp_path: Path):
    body = "import time\nfrom muster.output import progress_bars\nprogress_bars.INTERVAL = 0.3\n"
    body += bars("1%", "2%") + bars("5%", "6%", rank=1) + "time.sleep(1)\nscreen.info('later')\n"
    lines = on_pipes(body, tmp_path).stderr.decode().splitlines()
    assert sorted(lines) == ["[h1 0] 1%", "[h1 0] 2%", "[h1 1] 5%", "[h1 1] 6%", "muster: later"]
    assert lines[-1] == "muster: later"


def test_a_line_that_only_completes_the_state_a_pipe_has_got_is_not_repeated(tmp_path: Path):
    body = bars("100%") + 'screen.rank_line("h1", 0, 1, 2, Line("100%", "\\n"));' * 2
    assert on_pipes(body, tmp_path).stderr == b"[h1 0] 100%\n[h1 0] 100%\n"


def test_no_escape_codes_where_no_terminal_is(tmp_path: Path):
    body = 'screen.info("x"); screen.status("y"); screen.rank_line("h1", 0, 1, 1, Line("z", "\\n"))'
    done = on_pipes(body, tmp_path, TERM="xterm")
    assert b"\x1b" not in done.stdout + done.stderr


def test_a_terminal_shows_each_rank_in_a_colour_of_its_own(tmp_path: Path):
    body = 'for rank in range(3): screen.rank_line("h1", rank, 1, 1, Line("x", "\\n"))'
    text = on_terminal(body, tmp_path)
    labels = [line.partition(" x")[0] for line in text.splitlines()]
    assert len(set(labels)) == len(labels) == 3
    assert all(label.startswith("\x1b[") and label.endswith("\x1b[0m") for label in labels)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(tmp_path: Path, env: dict[str, str]):
    body = 'screen.info("hello"); screen.rank_line("h1", 0, 1, 1, Line("x", "\\n"))'
    assert on_terminal(body, tmp_path, **env) == "muster: hello\n[h1 0] x\n"


def test_an_empty_no_color_does_not_switch_colours_off(tmp_path: Path):
    # no-color.org: "when present and not an empty string (regardless of its value)".
    assert "\x1b[" in on_terminal('screen.rank_line("h1", 0, 1, 1, Line("x", "\\n"))', tmp_path, NO_COLOR="")


def test_the_live_line_renews_itself_and_is_wiped_before_other_lines(tmp_path: Path):
    body = """
screen.status("1 of 2 up"); wait()
screen.status("2 of 2 up"); wait()
screen.rank_line("h1", 0, 1, 1, Line("hello", "\\n")); wait()
"""
    text = on_terminal(WAIT + body, tmp_path, NO_COLOR="1")
    assert text.index("1 of 2 up") < text.index("2 of 2 up")
    assert seen(text) == ["[h1 0] hello"]
    assert text.endswith("hello\n")


def test_a_live_line_leaves_nothing_behind_at_the_end(tmp_path: Path):
    text = on_terminal(f'{WAIT}screen.status("waiting"); wait()', tmp_path, NO_COLOR="1")
    assert "waiting" in text
    assert seen(text) == []


def test_each_rank_has_one_progress_bar_below_all_other_lines_of_a_terminal(tmp_path: Path):
    body = "import os\n" + WAIT + "screen.status('waiting'); wait()\n"
    for n in (10, 20, 30):
        body += bars(f"{n} %", rank=1) + bars(f"{n + 1} %", rank=0) + "wait()\n"
        body += f'screen.rank_line("h1", {n % 3}, 1, 1, Line("line {n}", "\\n")); wait()\n'
    text = on_terminal(body + "screen._thread.join(0.5); os._exit(0)", tmp_path, NO_COLOR="1")
    assert seen(text) == [
        "[h1 1] line 10",
        "[h1 2] line 20",
        "[h1 0] line 30",
        "[h1 0] 31 %",
        "[h1 1] 30 %",
    ]
    assert "[h1 0] 11 %" in text


def test_what_a_bar_showed_last_stays_on_the_terminal(tmp_path: Path):
    ended = bars("10 %") + 'screen.rank_ended("h1", 0, 1); screen.info("after")'
    assert seen(on_terminal(ended, tmp_path)) == ["[h1 0] 10 %", "muster: after"]
    assert seen(on_terminal(bars("10 %", "20 %"), tmp_path)) == ["[h1 0] 20 %"]
    assert seen(on_terminal(bars("10 %", "    "), tmp_path)) == [], "tqdm clears a bar with blanks"
    complete = bars("10 %") + 'screen.rank_line("h1", 0, 1, 2, Line("100 %", "\\n"))'
    assert seen(on_terminal(complete, tmp_path)) == ["[h1 0] 100 %"]


def test_bars_fit_the_terminal_and_leave_room_for_other_lines(tmp_path: Path):
    body = WAIT + "".join(bars("x" * 200, rank=rank) for rank in range(40)) + "wait(); import os; os._exit(0)"
    lines = seen(on_terminal(body, tmp_path, NO_COLOR="1"))
    assert len(lines) == 12
    assert all(len(line) <= 79 for line in lines)
    assert lines[-1] == "… and 29 more progress bars"


def test_a_bar_keeps_its_colors_and_no_other_escape_sequence(tmp_path: Path):
    text = on_terminal(WAIT + bars("\x1b[32mgreen\x1b[2J\x1b[0m") + "wait()", tmp_path)
    assert "\x1b[32mgreen\x1b[0m" in text
    assert "\x1b[2J" not in text


def test_a_dumb_terminal_gets_lines_instead_of_bars(tmp_path: Path):
    text = on_terminal(bars("10 %", "20 %") + 'screen.status("waiting")', tmp_path, TERM="dumb")
    assert text == "[h1 0] 10 %\nmuster: waiting\n[h1 0] 20 %\n"


def test_bars_stay_away_while_somebody_types_behind_a_prompt(tmp_path: Path):
    body = (
        WAIT
        + """
screen.rank_prompt("h1", 0, 1, 1, "name? ")
"""
        + bars("10 %", rank=1)
        + "time.sleep(0.3)\nscreen.debug('x')\nwait(); import os; os._exit(0)"
    )
    text = on_terminal(body, tmp_path, NO_COLOR="1")
    assert text.index("name? ") < text.index("debug: x") < text.index("10 %")


def test_severity_has_a_color_on_a_terminal(tmp_path: Path):
    body = """
screen.info("plain"); screen.warning("careful"); screen.failure("broken"); screen.notice("Fix: reboot")
"""
    assert on_terminal(body, tmp_path).splitlines() == [
        "\x1b[2mmuster:\x1b[0m plain",
        "\x1b[33mmuster: careful\x1b[0m",
        "\x1b[1;31mmuster: broken\x1b[0m",
        "\x1b[2mmuster:\x1b[0m \x1b[1;36mFix:\x1b[0m reboot",
    ]


def test_force_color_wants_colors_everywhere_and_no_color_wins(tmp_path: Path):
    body = 'screen.failure("x")'
    assert on_pipes(body, tmp_path, FORCE_COLOR="1").stderr == b"\x1b[1;31mmuster: x\x1b[0m\n"
    assert on_pipes(body, tmp_path, FORCE_COLOR="1", NO_COLOR="1").stderr == b"muster: x\n"
    assert "\x1b[1;31m" in on_terminal(body, tmp_path, FORCE_COLOR="1", TERM="dumb")
    assert on_pipes(body, tmp_path, FORCE_COLOR="").stderr == b"muster: x\n"


def test_after_a_prompt_the_next_line_begins_a_line_whether_or_not_enter_was_pressed(tmp_path: Path):
    body = """
screen.rank_prompt("h1", 0, 1, 1, "name? ")
screen.rank_line("h1", 0, 1, 1, Line("hello", "\\n"))
screen.rank_prompt("h1", 0, 1, 1, "again? ")
"""
    fresh = " " * 79 + "\r\x1b[K"  # as many columns as an unknown terminal has, less one
    text = on_terminal(body, tmp_path, NO_COLOR="1")
    assert text == f"[h1 0] name? {fresh}[h1 0] hello\n[h1 0] again? {fresh}"


def test_a_prompt_is_a_line_where_no_terminal_is(tmp_path: Path):
    assert on_pipes('screen.rank_prompt("h1", 0, 1, 1, "name? ")', tmp_path).stdout == b"[h1 0] name? \n"


def test_a_screen_that_nobody_reads_does_not_stop_the_job(tmp_path: Path):
    # No one reads the pipe: 1 MB cannot be written, yet the program continues and exits.
    source, sink = os.pipe()
    body = """
for number in range(20000): screen.rank_line("h1", 0, 1, 1, Line("x" * 50, "\\n"))
print("went on", file=sys.stderr, flush=True)
screen.close(0.5)
import os; os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW.format(body=body), str(tmp_path)], stdout=sink, stderr=subprocess.PIPE
    )
    with ending(process):
        _, stderr = process.communicate(timeout=60)
    os.close(source)
    os.close(sink)
    assert stderr == b"went on\n"


def test_a_reader_that_has_gone_is_noticed(tmp_path: Path):
    source, sink = os.pipe()
    os.close(source)
    body = """
screen.rank_line("h1", 0, 1, 1, Line("x", "\\n"))
print(screen.closed_by_reader.wait(30), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(body=body), str(tmp_path)], stdout=sink, stderr=subprocess.PIPE, timeout=60
    )
    os.close(sink)
    assert done.stderr == b"True\n"


def test_lines_of_another_screen_get_the_colours_of_this_one(tmp_path: Path):
    body = """
screen.repeat(1, "[h1 0] hello", "\\n")
screen.repeat(2, "muster: done", "\\n")
screen.repeat(2, "  a traceback", "\\n")
"""
    assert on_terminal(body, tmp_path) == ("\x1b[36m[h1 0]\x1b[0m hello\n\x1b[2mmuster:\x1b[0m done\n  a traceback\n")


def test_a_status_of_another_screen_is_shown_only_where_it_can_be_renewed(tmp_path: Path):
    body = """
screen.repeat(2, "muster: waiting (1 s)", "\\r")
screen.repeat(2, "[h1 0] 10%", "\\r")
"""
    assert on_pipes(body, tmp_path).stderr == b"[h1 0] 10%\n"
    assert seen(on_terminal(body, tmp_path, NO_COLOR="1")) == ["[h1 0] 10%"]
    assert "muster: waiting (1 s)" in on_terminal(WAIT + body + "wait()", tmp_path, NO_COLOR="1")


def test_all_that_is_shown_is_given_beside_without_colours(tmp_path: Path):
    body = """
given = []
screen.beside = lambda *line: given.append(line)
screen.rank_line("h1", 1, 1, 1, Line("x", "\\n")); screen.warning("y"); screen.status("z")
screen.beside = None
screen.warning(str(given == [(1, "[h1 1] x", "\\n"), (2, "muster: y", "\\n"), (2, "muster: z", "\\r")]))
"""
    assert "True" in on_terminal(body, tmp_path)


def test_states_of_bars_without_text_do_not_fill_the_memory_if_nobody_reads(tmp_path: Path):
    reader, writer = os.pipe()
    body = """
import muster.output.screen as module
module._MOST_QUEUED = 1 << 20
screen.rank_line("a", 0, 1, 1, Line("x" * (1 << 19), "\\n"))
for _ in range(30_000):
    screen.rank_line("a", 0, 1, 1, Line("   ", "\\r"))
print(screen._queue.qsize(), file=open(folder / "queued", "w"))
import os
os._exit(0)
"""
    program = [sys.executable, "-c", SHOW.format(body=body), str(tmp_path)]
    subprocess.run(program, stdout=writer, timeout=100, check=True)
    os.close(reader)
    os.close(writer)
    assert int((tmp_path / "queued").read_text()) < 20_000
