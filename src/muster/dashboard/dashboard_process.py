"""The dashboard of `muster run --dashboard`: a separate process, which cannot slow the job and outlives it."""

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
"""Seconds for which it stays after the job has ended and nobody looks; a browser asks each minute in a hidden tab."""

_START = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given.pop('path'); "
    "from muster.dashboard.dashboard_process import main; main(**given)"
)


def start(folder: Path, port: int = 0, linger: float = LINGER) -> str:
    """Start the dashboard of the job in this directory, and return its address, which works at once."""
    token = new_token()
    with listen(port) as listener:
        given = {
            "path": sys.path,
            "folder": str(folder),
            "token": token,
            "listener": listener.fileno(),
            "controller": os.getpid(),
            "linger": linger,
        }
        # -I and our own path: nothing is imported from the working directory. The token does not show up in `ps`.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, f"muster dashboard {folder.name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C and a closed terminal end the job only
        )
        threading.Thread(target=process.wait, name="muster-dashboard-end", daemon=True).start()  # or it stays a zombie
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode())
        process.stdin.close()
        return address(listener, token)


def main(*, folder: str, token: str, listener: int, controller: int, linger: float) -> None:
    """Serve until the job has ended, or the process that started this one, and nobody has looked for a while."""
    from muster.dashboard.job_list import JobList
    from muster.dashboard.server import DashboardServer
    from muster.jobs.location import address as address_of_job

    os.nice(5)
    server = DashboardServer(socket.socket(fileno=listener), token, JobList(Path(folder)), stays=linger)
    threading.Thread(target=server.serve_forever, name="dashboard", daemon=True).start()
    opened, ended = False, None
    while ended is None or time.monotonic() - max(ended, server.last_request) < linger:
        time.sleep(1.0)
        # The job's socket is removed at its end; its process may live on, as a notebook does.
        is_open = address_of_job(Path(folder)) is not None
        opened = opened or is_open
        if ended is None and (os.getppid() != controller or (opened and not is_open)):
            ended = time.monotonic()
