"""What the controller reads of its terminal for a rank on another host."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios

import pytest
from waiting import ending

READS_AFTER_THE_SHELL = """
import asyncio, os
from muster.controller.stdin_source import _read

async def main():
    reading = asyncio.ensure_future(_read())
    for _ in range(2):  # now the loop has seen the line, and the reader has not continued yet
        await asyncio.sleep(0)
    print("shell read", os.read(0, 100), flush=True)
    await asyncio.sleep(0.1)
    print("the loop runs", flush=True)
    print("rank reads", await reading, flush=True)

asyncio.run(main())
"""


@pytest.mark.timeout(60)
def test_a_line_that_the_shell_has_read_does_not_block_the_controller() -> None:
    user, terminal = pty.openpty()
    os.write(user, b"fg\n")
    process = subprocess.Popen(
        [sys.executable, "-c", READS_AFTER_THE_SHELL],
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    with ending(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "shell read b'fg\\n'\n"
        assert process.stdout.readline() == "the loop runs\n"
        os.write(user, b"bob\n")
        assert process.stdout.readline() == "rank reads b'bob\\n'\n"
        assert process.wait(30) == 0
    os.close(user)
