"""Linux processes: who descends from whom, dying with one's parent, starting a program."""

from __future__ import annotations

import ctypes
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_ENDED = (b"Z", b"X")
"""States of a process that has ended."""

HANDLED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def adopt_orphans() -> None:
    """Make this process the new parent of every descendant whose parent dies, setsid or not."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process end by a signal when `parent` dies, also if it has died already.

    The kernel acts when the *thread* that forked us exits, so fork from the parent's main thread.
    """
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take `die_with` back."""
    libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def stat(pid: int | str) -> tuple[bytes, list[bytes]]:
    """The name of a process, and the fields of its /proc/PID/stat from the third one, its state, on; none once gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            before, _, after = file.read().rpartition(b")")
    except OSError:
        return b"", []
    return before.partition(b"(")[2], after.split()


def children() -> dict[int, list[int]]:
    """The living children of every process of this host; a zombie is not alive and has no children left."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat(name)[1]
        if fields and fields[0] not in _ENDED:
            found.setdefault(int(fields[1]), []).append(int(name))
    return found


def below(root: int, by_parent: Mapping[int, list[int]]) -> list[int]:
    """Every process that descends from `root`."""
    found: list[int] = []
    queue = [root]
    while queue:
        those = by_parent.get(queue.pop(), [])
        found += those
        queue += those
    return found


def descendants(root: int) -> list[int]:
    """Every living process below `root`."""
    return below(root, children())


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    fields = stat(pid)[1]
    return bool(fields) and fields[0] not in _ENDED


def reap() -> list[tuple[int, int, int]]:
    """The children that have ended since the last call: each with the status it left and the most memory it held."""
    ended: list[tuple[int, int, int]] = []
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status, used.ru_maxrss * 1024))


def kill(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_session(pid: int) -> None:
    """Kill a child that `fork` made, with what it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:  # it has not come to `setsid` yet
        kill([pid], signal.SIGKILL)


def end(pid: int, limit: float) -> None:
    """Kill a child and wait until it has gone, at most `limit` seconds: on a busy machine that takes a moment."""
    kill([pid], signal.SIGKILL)
    deadline = time.monotonic() + limit
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
    except ChildProcessError:
        pass  # its end has been taken note of already


def fork(work: Callable[[], None], *kept: int) -> int:
    """Run a function in a child with a session of its own that dies with this process.

    Of our descriptors it has only stdout, stderr and those that are `kept`.
    """
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with(me)
            os.setsid()
            signal.set_wakeup_fd(-1)
            default_signals()
            close_all_but(*kept)
            work()
        finally:
            os._exit(0)
    return pid


def start(argv: list[str], env: Mapping[str, str], *, cwd: str, stdin: int, stderr: int, keep: Sequence[int]) -> int:
    """Fork and exec a program in a session of its own that dies with this process; `keep` stays open in it.

    Its stdout goes to `stderr` too, so that nothing it prints can reach the channel.
    """
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with(me)
        os.setsid()
        default_signals()
        for fd in keep:
            os.set_inheritable(fd, True)
        os.dup2(stdin, 0)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except BaseException as error:
        os.write(2, f"muster: could not start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def default_signals() -> None:
    """Give a child back the signal handling a shell would have given it."""
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def file_with(data: bytes) -> int:
    """A descriptor from which `data` can be read, kept in memory: no temporary file, no pipe that could fill up."""
    fd = os.memfd_create("muster")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def close_all_but(*kept: int) -> None:
    """Close every descriptor above stderr except these, and give descriptor 0 nothing to read."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listed the folder
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)
