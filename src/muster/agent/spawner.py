"""The process below the agent that starts ranks: the zygote, which has torch imported, or a plain starter.

Messages go over one SOCK_SEQPACKET socket, with a rank's descriptors attached to its start request.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

from . import boot, processes, rank, torch_adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1 << 17
"""Bytes of one start request at most; the environment all ranks share is not in it."""


def main(config: dict[str, Any]) -> int:
    """Be the zygote: import what the ranks will need, then fork one rank per request."""
    sock = socket.socket(fileno=config["socket"])
    sock.set_inheritable(False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    rank.set_first_path(config)
    begin = time.monotonic()
    for name in config["preload"]:
        try:
            __import__(name)
        except BaseException as error:
            from traceback import format_exception

            # Without this frame, as the script's own import would have shown it.
            below = error.__traceback__ and error.__traceback__.tb_next
            text = "".join(format_exception(type(error), error, below))[-4000:]
            _send(
                sock,
                {
                    "t": "broken",
                    "module": name,
                    "error": f"{type(error).__name__}: {error}",
                    "traceback": text,
                },
            )
            return 1
    import gc

    gc.collect()
    gc.freeze()  # keeps the collector of each rank from copying the shared pages
    unsafe = torch_adapter.is_safe_to_fork()
    _send(sock, {"t": "ready", "seconds": time.monotonic() - begin, "unsafe": unsafe})
    # From here on ranks may have children of their own: if the agent dies, this process must live to end them.
    processes.outlive_parent()
    if os.getppid() != config["agent"]:
        return 1
    sys.stdout.flush()
    sys.stderr.flush()
    env = {**os.environ, **config["restore"]}
    serve(sock, {name: value for name, value in env.items() if value is not None}, fork=not unsafe)
    return 0


def serve(sock: socket.socket, base_env: dict[str, str], *, fork: bool) -> None:
    """Start ranks on request and tell how each ends, until the agent is gone; then end everything below.

    A rank's environment is `base_env` with the request's variables over it.
    """
    processes.adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, _ignore)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent decides; a stray signal to a group must not end us first
    signal.set_wakeup_fd(wake_write)
    ranks: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([sock, wake_read], [], [])
        try:
            os.read(wake_read, 4096)
        except BlockingIOError:
            pass
        _reap(sock, ranks)
        if sock not in ready:
            continue
        try:
            data, fds, _, _ = socket.recv_fds(sock, _LARGEST, 8)
        except OSError:
            data, fds = b"", []
        if not data:
            _end_all()
            return
        request = json.loads(data)
        request["env"] = {**base_env, **request["env"]}
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            processes.die_with(me)
            os.setsid()
            for fd in (sock.detach(), wake_read, wake_write):
                os.close(fd)
            if fork:
                rank.run_forked(request, fds)
            else:
                _exec_rank(request, fds)
        for fd in fds:
            os.close(fd)
        ranks[pid] = request["rank"]
        _send(sock, {"t": "started", "rank": request["rank"], "pid": pid})


def _exec_rank(request: dict[str, Any], fds: list[int]) -> None:
    """Replace this fork by a fresh interpreter that runs the rank."""
    stdout, stderr, report = fds
    config = {**request, "report": report, "env": None}
    code = processes.file_with(boot.payload(boot.own_parcel(), "rank", config))
    try:
        os.set_inheritable(report, True)
        for fd, target in ((code, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, target)
        processes.default_signals()
        os.execve(sys.executable, [sys.executable, "-c", boot.COMMAND], request["env"])
    except BaseException as error:
        os.write(2, f"muster: cannot start {sys.executable}: {error}\n".encode())
    finally:
        os._exit(127)


def _ignore(number: int, frame: object) -> None:
    """A handler that does nothing, so that the signal reaches the wake-up descriptor."""


def _reap(sock: socket.socket, ranks: dict[int, int]) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in ranks:
            _send(
                sock,
                {
                    "t": "exit",
                    "rank": ranks.pop(pid),
                    "status": os.waitstatus_to_exitcode(status),
                    "time": time.time(),
                    "peak": usage.ru_maxrss,
                },
            )


def _end_all() -> None:
    """Without an agent nobody watches the ranks: end all that descends from here, orphans included."""
    while True:
        below = processes.descendants(os.getpid())
        if not below:
            return
        processes.kill(below, signal.SIGKILL)
        time.sleep(0.01)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    try:
        sock.send(json.dumps(message).encode())
    except OSError:
        pass  # the agent is gone; the next read says so
