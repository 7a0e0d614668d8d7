"""The child of the agent that starts ranks: the zygote, which has imported torch, or a plain starter.

Messages use one SOCK_SEQPACKET socket, with a rank's descriptors attached to its start request.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from ..rank import process_title
from ..shared import bootstrap, light_json, processes
from ..shared import light_signal as signal
from ..shared import light_socket as socket
from . import store_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from ..shared.spawner_messages import (
        FreshRankConfig,
        ImportFailed,
        NextJob,
        Ready,
        Stale,
        Target,
        ZygoteConfig,
    )
    from .imported import Imported

_END_LIMIT = 30.0
"""Seconds to try to end the remaining processes after the agent is gone."""

_STORE = -1
"""The number of the store among the ranks."""

NO_PROCESS = 126
"""Status of a rank that was not started because the host allows no more processes."""

_LARGEST = 1 << 17
"""Maximum size of a start request in bytes; it does not contain the environment that all ranks share."""


def main(config: ZygoteConfig) -> int:
    """Run the zygote: import what the ranks need, then fork one rank per request."""
    from ..rank import script  # here, because the agent imports this module too

    processes.adopt_orphans()
    sock = socket.socket(fileno=config["socket"])
    sock.set_inheritable(False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # this code arrived on descriptor 0
    os.close(null)
    process_title.set_title(["muster zygote"])
    _survive_strays()
    given = {**os.environ, **config["restore"]}
    env = {name: value for name, value in given.items() if value is not None}
    imported = _remember(config["preload"], env) if config["keep"] else None
    script.set_first_path(config)
    ready = _load(config["preload"])
    _send(sock, ready)
    if ready["t"] != "ready":
        return 1
    if imported is not None:
        imported.look()
    # From now on ranks may have children; if the agent dies, this process must survive to end them.
    processes.outlive_parent()
    if os.getppid() != config["agent"]:
        return 1
    sys.stdout.flush()
    sys.stderr.flush()
    serve(sock, config, env, fork=not ready["unsafe"], imported=imported)
    return 0


def _remember(preload: Sequence[str], env: Mapping[str, str]) -> Imported:
    from .imported import Imported  # here, because only a zygote that is kept needs it

    return Imported(preload, env)


def _load(preload: Sequence[str]) -> Ready | ImportFailed:
    """Import these modules, so that ranks can be forked."""
    import gc

    from ..rank import interpreter_exit, torch_adapter
    from . import byte_code

    gc.disable()  # imports create hardly any garbage; collecting takes 0.2 s of CPU for torch alone
    for name in preload:
        try:
            with byte_code.Cached(name):
                __import__(name)
        except BaseException as error:
            return _import_failure(name, error)
    gc.freeze()  # prevents the collector of each rank from copying the shared pages
    gc.enable()
    _forget_finalizers()
    interpreter_exit.stop_at_exit_handlers()
    return {"t": "ready", "unsafe": torch_adapter.is_safe_to_fork()}


def _enter_next(file: int, imported: Imported | None) -> tuple[NextJob | None, Ready | Stale | ImportFailed]:
    """Get ready for the job that a file describes; returns no job if another zygote is needed."""
    from ..rank import torch_adapter

    with open(file, encoding="ascii") as described:
        job: NextJob = light_json.loads(described.read())
    if imported is None:
        return None, {"t": "stale", "why": "it was not started to be kept"}
    try:
        why = imported.enter(job["target"], job["env"])
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    if why:
        return None, {"t": "stale", "why": why}
    if all(name in sys.modules for name in job["target"]["preload"]):
        return job, {"t": "ready", "unsafe": torch_adapter.is_safe_to_fork()}
    ready = _load(job["target"]["preload"])
    imported.look()
    return job, ready


def _import_failure(name: str, error: BaseException) -> ImportFailed:
    from traceback import format_exception

    # Without the frame of `main`, as in a traceback of the script's own import.
    below = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(format_exception(type(error), error, below))
    missing = error.name if isinstance(error, ModuleNotFoundError) else ""
    return {
        "t": "import_failed",
        "module": name,
        "missing": missing or "",
        "error": f"{type(error).__name__}: {error}",
        "traceback": text[-4000:],
    }


def _forget_finalizers() -> None:
    """Disable finalizers that imports registered for interpreter exit, so that they do not run in every rank.

    torch would unload its operator libraries one by one, a waste of 35 ms of CPU per rank, and a temporary directory
    that an import created must not be removed by the first rank that exits.
    """
    from weakref import finalize

    for finalizer in list(vars(finalize)["_registry"]):
        finalizer.atexit = False


def serve(
    sock: socket.socket, config: Target, base_env: Mapping[str, str], *, fork: bool, imported: Imported | None = None
) -> None:
    """Start ranks on request and report how each ends, until the agent is gone; then end all descendants.

    A rank's environment is `base_env` updated with the variables of the request.
    """
    from ..shared.protocol import validate  # here, so that it does not delay the agent's first message
    from ..shared.spawner_messages import ORDERS

    processes.adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, _ignore)
    _survive_strays()
    signal.set_wakeup_fd(wake_write)
    not_for_ranks = (sock, wake_read, wake_write)
    ranks: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([sock, wake_read], [], [])
        try:
            os.read(wake_read, 4096)
        except BlockingIOError:
            pass
        _report_ends(sock, ranks)
        while _strays:  # the ranks have received these too, so the agent need not forward them
            _send(sock, {"t": "stray", "number": _strays.pop(0)})
        if sock not in ready:
            continue
        data, fds = _receive(sock)
        if not data:
            _end_all()
            return
        request = light_json.loads(data.decode())
        validate(request, ORDERS)
        if request["t"] == "next":
            job, answer = _enter_next(fds.pop(), imported)
            config, base_env = (config, base_env) if job is None else (job["target"], job["env"])
            fork = not answer.get("unsafe")
            _send(sock, answer)
            continue
        number, env = request.get("rank", _STORE), {**base_env, **request.get("env", {})}
        pid = _start(number, config, env, fds, not_for_ranks=not_for_ranks, fork=fork)
        if number == _STORE:
            _send(sock, {"t": "store_started", "pid": pid})
        else:
            _send(sock, {"t": "started", "rank": number, "pid": pid})
        for fd in fds:
            os.close(fd)
        if pid:
            ranks[pid] = number
        else:
            _report_end(sock, number, 0, NO_PROCESS, 0)


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """A request of the agent with its descriptors; nothing if the agent is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, _LARGEST, 8)
    except OSError:
        return b"", []
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def _start(
    number: int,
    config: Target,
    env: Mapping[str, str],
    fds: list[int],
    *,
    not_for_ranks: tuple[socket.socket, int, int],
    fork: bool,
) -> int:
    """Fork a rank, or the process that serves the job's store, and return its pid.

    Returns 0 if the host allows no more processes, after printing that to the rank's stderr.
    """
    me = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        if number != _STORE:
            os.write(fds[2], f"muster: could not start rank {number}: {error.strerror} (ulimit -u)\n".encode())
        return 0
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        sock, *pipe = not_for_ranks
        for fd in (sock.detach(), *pipe):
            os.close(fd)
        processes.die_with(me)
        os.setsid()
        if number == _STORE:
            store_process.start(fds[0], env, fork=fork)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (config["nofile"], hard))
        if fork:
            from ..rank import script

            script.run_forked(config, env, fds)
        _exec_rank(config, env, fds)
    except BaseException:
        from traceback import format_exc

        os.write(2, f"internal error in Muster, please report it with this traceback:\n{format_exc()}".encode())
    finally:  # this process must never continue as a second spawner
        os._exit(125)


def _exec_rank(config: Target, env: Mapping[str, str], fds: list[int]) -> NoReturn:
    """Replace this fork with a fresh interpreter that runs the rank."""
    stdin, stdout, stderr, report, stacks, *call = fds
    order: FreshRankConfig = {**config, "stdin": stdin, "report": report, "stacks": stacks, "call": call}
    code = processes.file_with(bootstrap.payload(bootstrap.own_package("rank", "shared"), "rank.script", order))
    try:
        for fd in (stdin, report, stacks, *call):
            os.set_inheritable(fd, True)
        for fd, target in ((code, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, target)  # the originals close at exec
        processes.default_signals()
        argv = [sys.executable, "-u", "-c", bootstrap.COMMAND, *process_title.room_for(process_title.command(config))]
        os.execve(sys.executable, argv, env)
    except BaseException as error:
        os.write(2, f"muster: could not start {sys.executable}: {error}\n".encode())
    finally:
        os._exit(127)


_strays: list[int] = []
"""Signals received by this process that were not meant for it."""


def _survive_strays() -> None:
    """Survive signals that a terminal or a scheduler sends to all processes of a job; the agent decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: _strays.append(number))


def _ignore(number: int, frame: object) -> None:
    """Do nothing; a handler is required for the signal to reach the wake-up descriptor."""


def _report_ends(sock: socket.socket, ranks: dict[int, int]) -> None:
    for pid, status, rss in processes.reap():
        if pid in ranks:
            _report_end(sock, ranks.pop(pid), pid, os.waitstatus_to_exitcode(status), rss)


def _report_end(sock: socket.socket, number: int, pid: int, code: int, rss: int) -> None:
    if number == _STORE:
        _send(sock, {"t": "storeless", "pid": pid, "status": code})
    else:
        _send(sock, {"t": "ended", "rank": number, "status": code, "time": time.time(), "rss": rss})


def _end_all() -> None:
    """Kill all descendants, including orphans, because the agent is gone."""
    give_up = time.monotonic() + _END_LIMIT  # a process in D state does not die
    while time.monotonic() < give_up:
        below = processes.descendants(os.getpid())
        if not below:
            return
        processes.kill(below, signal.SIGKILL)
        time.sleep(0.01)
        processes.reap()


def _send(sock: socket.socket, message: Mapping[str, object]) -> None:
    try:
        sock.send(light_json.dumps(message).encode())
    except OSError:
        pass  # the agent is gone, which the next read detects
