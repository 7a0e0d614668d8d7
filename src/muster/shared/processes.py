"""Linux processes: descendants, parent death signals, starting and killing processes."""

from __future__ import annotations

import os
import time

from . import light_signal as signal
from .light_ctypes import function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from ctypes import CDLL

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


IGNORES_HANGUP = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
"""Whether this process was started with SIGHUP ignored, as by nohup and PBS; ranks then ignore it too."""


def libc() -> CDLL:
    """All of the C library."""
    import ctypes  # here, because most processes need only `prctl`

    return ctypes.CDLL(None)


def prctl(*arguments: int | bytes) -> int:
    """Call prctl(2), which is looked up here, because a controller may run on macOS, which has none."""
    return function("prctl")(*arguments)


def adopt_orphans() -> None:
    """Make this process the new parent of all orphaned descendants, even after setsid."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """End this process with a signal when `parent` dies, also if it has already died.

    The kernel acts when the *thread* that forked this process exits, so fork from the parent's main thread.
    """
    prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with`."""
    prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def stat(pid: int | str) -> tuple[bytes, list[bytes]]:
    """The name of a process, and the fields of /proc/PID/stat from the third one (state) on; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            before, _, after = file.read().rpartition(b")")
    except OSError:
        return b"", []
    return before.partition(b"(")[2], after.split()


def children() -> dict[int, list[int]]:
    """The living children of every process on this host; zombies are not included."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat(name)[1]
        if fields and fields[0] not in _ENDED:
            found.setdefault(int(fields[1]), []).append(int(name))
    return found


def below(root: int, by_parent: Mapping[int, list[int]]) -> list[int]:
    """All descendants of `root`."""
    found: list[int] = []
    queue = [root]
    while queue:
        those = by_parent.get(queue.pop(), [])
        found += those
        queue += those
    return found


def descendants(root: int) -> list[int]:
    """All living descendants of `root`."""
    return below(root, children())


def has_only(root: int, known: Collection[int]) -> bool:
    """Whether a process has no children except `known`, which have no others; False if the kernel lists none.

    This reads a few files, where `descendants` reads one of every process on this host. The kernel lists zombies too,
    and never skips a child unless one before it in the list is reaped meanwhile. `root` is read last, because it adopts
    the children of a process that ends meanwhile.
    """
    try:
        for pid in (*known, root):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    if any(int(child) not in known for child in file.read().split()):
                        return False
        return all(os.path.exists(f"/proc/{pid}") for pid in known)
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether a process is alive; a zombie is not."""
    fields = stat(pid)[1]
    return bool(fields) and fields[0] not in _ENDED


def proportional_size(pid: int) -> int:
    """The memory of a process in bytes, in which pages that n processes share count as 1/n (PSS); 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
    except OSError:
        return 0


def reap() -> list[tuple[int, int, int]]:
    """The children that have exited since the last call: pid, wait status, and peak memory in bytes."""
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
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_session(pid: int) -> None:
    """Kill a child created by `fork`, and its own children."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:  # it has not called `setsid` yet
        kill([pid], signal.SIGKILL)


def end(pid: int, limit: float) -> None:
    """Kill a child and wait for at most `limit` seconds until it is gone."""
    kill([pid], signal.SIGKILL)
    deadline = time.monotonic() + limit
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
    except ChildProcessError:
        pass  # it has already been reaped


def fork(work: Callable[[], None], *kept: int) -> int:
    """Run a function in a child process with its own session, which dies with this process.

    It keeps only stdout, stderr and the descriptors in `kept`.
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
    """Start a program in its own session, which dies with this process; the descriptors in `keep` stay open.

    Its stdout also goes to `stderr`, so that its output cannot reach the channel.
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
    """Reset signal handling in a child to what a shell would give it."""
    for number in HANDLED_SIGNALS:
        ignored = number == signal.SIGHUP and IGNORES_HANGUP
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def file_with(data: bytes) -> int:
    """A descriptor of an in-memory file with `data`; unlike a pipe, it cannot fill up."""
    fd = os.memfd_create("muster")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def close_all_but(*kept: int) -> None:
    """Close all descriptors above stderr except these, and redirect stdin from /dev/null."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the directory listing itself
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)
