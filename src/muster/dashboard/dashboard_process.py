"""The page of `muster run --page`: a process of its own, which cannot slow the job, and outlives it for a while."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from muster.dashboard.address import address, listen, new_token

LINGER = 600.0
"""Seconds for which the page stays after the job's end and its last reader; a page in a hidden tab asks each minute."""

_START = (
    "import json, sys; told = json.load(sys.stdin); sys.path[:] = told.pop('path'); "
    "from muster.dashboard.dashboard_process import main; main(**told)"
)


def start(folder: Path, port: int = 0, linger: float = LINGER) -> str:
    """Start the page of the job whose folder this is, and return its address, which works at once."""
    token = new_token()
    with listen(port) as listener:
        told = {
            "path": sys.path,
            "folder": str(folder),
            "token": token,
            "listener": listener.fileno(),
            "controller": os.getpid(),
            "linger": linger,
        }
        # -I and the own path: the job's folder is no place to import from. The token is nothing for `ps` to show.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, f"muster page {folder.name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C and the end of the terminal are for the job
        )
        threading.Thread(target=process.wait, name="muster-page-end", daemon=True).start()  # or it stays a zombie
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode())
        process.stdin.close()
        return address(listener, token)


def main(*, folder: str, token: str, listener: int, controller: int, linger: float) -> None:
    """Serve until the job has ended, or the process that started us, and nobody has looked for a while since."""
    from muster.dashboard.job_source import Source
    from muster.dashboard.server import PageServer
    from muster.jobs.location import address as address_of_job

    os.nice(5)
    server = PageServer(socket.socket(fileno=listener), token, Source(Path(folder)), stays=linger)
    threading.Thread(target=server.serve_forever, name="page", daemon=True).start()
    opened, ended = False, None
    while ended is None or time.monotonic() - max(ended, server.last_request) < linger:
        time.sleep(1.0)
        # The job's socket goes with the job; it tells the end where its process lives on, as a notebook does.
        is_open = address_of_job(Path(folder)) is not None
        opened = opened or is_open
        if ended is None and (os.getppid() != controller or (opened and not is_open)):
            ended = time.monotonic()
