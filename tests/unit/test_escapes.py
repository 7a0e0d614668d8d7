"""What a terminal would obey and text from outside may contain: it stays out of terminals, and in pipes and files."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_screen import on_pipes, on_terminal, run_on_terminal

from muster.agent.connectivity import owner_of
from muster.output.escapes import TerminalStream, for_terminal
from muster.output.progress_bars import fitted

pytestmark = pytest.mark.timeout(100)

EVIL = "\x1b]52;c;AAAA\x07\x1b]0;title\x1b\\\x1b[2J\x1b[H\x1bP+q\x1b\\\x9b5A\x9d0;t\x9c\x1bc\x07\b\udcc2\udc9b3A"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain text, käse 🏖️", "plain text, käse 🏖️"),
        ("a\tb", "a\tb"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[38:2:1:2:3mrgb\x1b[m", "\x1b[38:2:1:2:3mrgb\x1b[m\x1b[0m"),
        ("\x1b[8mhides what follows", "\x1b[8mhides what follows\x1b[0m"),
        (f"a{EVIL}b", "ab"),
        ("\x1b]52;c;unfinished", "52;c;unfinished"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[?25l\x1b(B\x1b[", ""),
        ("latin \udce9, in two pieces \udcc3\udca9", "latin \udce9, in two pieces é"),
        ("\udc9b2J", "\ufffd2J"),
    ],
)
def test_a_terminal_gets_colors_and_tabs_and_nothing_else_that_it_would_obey(line: str, shown: str) -> None:
    assert for_terminal(line) == shown


def test_no_mixture_of_sequences_leaves_one_that_a_terminal_obeys() -> None:
    rng = random.Random(18)
    parts = [
        "\x1b",
        "[",
        "]",
        "P",
        "2J",
        "0;x",
        "31m",
        "\x07",
        "\\",
        "\x9b",
        "\x9c",
        "\x9d",
        "a",
        "\udcc2",
        "\udc9b",
        "\r",
    ]
    for _ in range(20_000):
        line = "".join(rng.choices(parts, k=rng.randint(1, 9)))
        rest = for_terminal(line).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        for color in ("\x1b[31m", "\x1b[0m", "\x1b[m"):
            rest = rest.replace(color, "")
        assert all(letter.isprintable() for letter in rest), (line, rest)


def test_a_progress_bar_has_the_same_colors_as_other_lines() -> None:
    line = "\x1b[38:2:1:2:3mbar \x1b[1;32m3/4\x1b[0m"
    assert fitted(for_terminal(line), 80).removesuffix("\x1b[0m") == line


def test_a_long_line_of_unfinished_sequences_takes_no_longer_than_others() -> None:
    began = time.process_time()
    assert for_terminal("\x1b]" * 50_000) == ""
    assert for_terminal("\x9d" * 50_000) == ""
    assert TerminalStream().feed(("\x90" * 50_000).encode()) == b""
    assert len(for_terminal("\x1b[1" * 50_000)) == 50_000
    assert time.process_time() - began < 5, "0.1 s; if it were quadratic, 30 s"


def test_output_of_another_host_is_made_harmless_wherever_its_pieces_end() -> None:
    data = f"[h1 0] \x1b[33mloss\x1b[0m\r\x1b[2A\x1b[J\x1b[Kbar é{EVIL}\nnext\n".encode("utf-8", "surrogateescape")
    for size in (1, 2, 3, 7, 1000):
        stream = TerminalStream()
        got = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert got.decode() == "[h1 0] \x1b[33mloss\x1b[0m\r\x1b[2A\x1b[J\x1b[Kbar é\nnext\n"


SHOWN = f"""
screen.rank_line("h1", 0, 1, 1, Line({EVIL + "loss"!r}, "\\n"))
screen.rank_prompt("h1", 0, 1, 1, {EVIL + "name: "!r})
screen.host_line("h1", {EVIL + "motd"!r})
screen.repeat(2, {"[" + EVIL + " 0] attached" + EVIL!r}, "\\n")
screen.repeat(1, {EVIL + "unlabeled"!r}, "\\n")
screen.status({EVIL + "waiting"!r})
screen.warning({EVIL + "warning"!r})
"""


def test_escape_sequences_of_ranks_and_hosts_do_not_reach_a_terminal(tmp_path: Path) -> None:
    shown = on_terminal(SHOWN, tmp_path, TERM="dumb")
    assert [line.strip() for line in shown.replace("\r\x1b[K", "\n").split("\n") if line.strip()] == [
        "[h1 0] loss",
        "[h1 0] name:",
        "[h1] motd",
        "[ 0] attached",
        "unlabeled",
        "muster: waiting",
        "muster:     3Awarning",
    ]


def test_a_pipe_gets_every_byte_of_a_rank(tmp_path: Path) -> None:
    done = on_pipes(SHOWN, tmp_path)
    evil = EVIL.encode("utf-8", "surrogateescape")
    assert done.stdout == b"[h1 0] " + evil + b"loss\n[h1 0] " + evil + b"name: \n" + evil + b"unlabeled\n"


@pytest.mark.parametrize("options", [[], ["--rank", "0"]])
def test_logs_are_harmless_on_a_terminal_and_whole_in_a_pipe(options: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "NO_COLOR": "1"}
    folder = tmp_path / "muster" / "jobs" / "20261115-101500-train-3f9a"
    (folder / "attempt-0").mkdir(parents=True)
    data = f"{EVIL}one\n\x1b[31mtwo\x1b[0m\n".encode("utf-8", "surrogateescape")
    (folder / "attempt-0" / "rank-0.log").write_bytes(data)
    (folder / "attempt-0" / "order").write_text(f"0 1 {len(data)} 1\n")
    argv = [sys.executable, "-m", "muster", "logs", *options]
    label = "" if options else "[rank 0] "
    piped = subprocess.run(argv, env=env, capture_output=True, timeout=60).stdout
    assert piped.replace(label.encode(), b"") == data
    shown = f"{label}one\n{label}\x1b[31mtwo\x1b[0m\nmuster: job {folder.name} has left no state.json\n"
    assert run_on_terminal(argv, env) == shown


def test_the_command_of_another_process_is_one_printable_line() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        code = "import sys; sys.stdin.read()"
        argv = [sys.executable, "-c", code, "\x1b]52;c;x\x07\nerror: fake line"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=(server.fileno(),)) as process:
            port = server.getsockname()[1]
            server.close()
            said = owner_of(port)
            process.communicate()
    assert said is not None
    assert said.startswith(f"pid {process.pid} (")
    assert said.isprintable(), json.dumps(said)
    assert os.path.basename(sys.executable) in said
