"""A container: processes of a lab host with a PID namespace, a hostname and mounts of their own."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.lab import Lab

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Starts process 1 ($@) in the new PID namespace as its first child. `unshare --fork` would do it too, but version 2.38
# prints an error and exits with 1 when that child is killed. A shell prints "Killed", hence the /dev/null.
FORK = 'exec 4>&2 2>/dev/null; "$@" 2>&4 4>&-; exit $?'

# Process 1 of the container, in fresh namespaces: makes its mounts, prints "ready" on descriptor 3, waits until
# descriptor 5 is closed, and becomes the command. Without the wait, a short command could end before it is found.
SETUP = """\
set -e
mount -t proc proc /proc
hostname {hostname}
{mounts}
echo ready >&3
read -r <&5 || true
exec 3>&- 5<&-
exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What a container runs, and how."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    hostname: str
    working_dir: str = "/"
    user: int = 0
    locked_down: bool = False
    """No capabilities, no new privileges, and a read-only root."""
    mounts: tuple[str, ...] = ()
    """Shell commands that mount its volumes."""
    shm: str = "64m"


@dataclass
class Container:
    """A started container; `output` is what `kubectl logs` shows."""

    lab: Lab
    host: str
    spec: ContainerSpec
    output: bytearray = field(default_factory=bytearray)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    init: int = 0
    """Its process 1, with the pid it has on this machine."""
    exit_code: int | None = None
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; when this returns, its command runs."""
        ready, report = os.pipe()
        found, find = os.pipe()
        argv = [
            *self.lab.enter_argv(self.host),
            *("unshare", "--mount", "--uts", "--pid", "bash", "-c", FORK, "bash"),
            *("bash", "-c", f"exec 3>&{report} {report}>&- 5<&{found} {found}<&-; {self._setup()}", "bash"),
            *self._wrapped(self.spec.command),
        ]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(report, found),
                start_new_session=True,
            )
        finally:
            os.close(report)
            os.close(found)
        try:
            said = await asyncio.get_running_loop().run_in_executor(None, _read_line, ready)
            if not said:
                message = (await self._process.communicate())[0].decode(errors="replace")
                raise RuntimeError(f"container {self.spec.name} on {self.host} did not start: {message}")
            self.init = _innermost_child(self._process.pid)
        finally:
            os.close(find)

    def _setup(self) -> str:
        mounts = [f"mount -t tmpfs -o size={self.spec.shm},mode=1777 shm /dev/shm", *self.spec.mounts]
        if self.spec.locked_down:
            mounts = [
                "mount -o remount,bind,ro /",
                "mount -o remount,bind,ro /tmp",
                "mount -o remount,bind,ro /run",
                *mounts,
            ]
        return SETUP.format(hostname=shlex.quote(self.spec.hostname), mounts="\n".join(mounts))

    def _wrapped(self, command: Sequence[str]) -> list[str]:
        """A command with the user, environment and working directory of the container."""
        user = f"{self.spec.user}"
        privileges = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if self.spec.user else []
        if self.spec.locked_down:
            privileges = [*(privileges or ["setpriv"]), "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        env = {
            "PATH": DEFAULT_PATH,
            "HOSTNAME": self.spec.hostname,
            "HOME": "/" if self.spec.user else "/root",
            **self.spec.env,
        }
        values = [f"{name}={value}" for name, value in env.items()]
        return [*privileges, "env", "-i", "-C", self.spec.working_dir, *values, *command]

    def exec_argv(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in the container, without a shell, as `kubectl exec` does."""
        own = _namespace_pids(self.init)[1]
        enter = ["nsenter", f"--target={own}", "--mount", "--uts", "--pid", "--"]
        return [*self.lab.enter_argv(self.host), *enter, *self._wrapped(command)]

    def has_program(self, name: str) -> bool:
        """Whether an exec of this program would find it."""
        root = Path(f"/proc/{self.init}/root")
        path = self.spec.env.get("PATH", DEFAULT_PATH)
        candidates = [name] if "/" in name else [f"{folder}/{name}" for folder in path.split(":")]
        return any(os.access(root / candidate.lstrip("/"), os.X_OK) for candidate in candidates)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to process 1, and to no other; SIGKILL ends all processes with it."""
        if self.exit_code is None:
            try:
                os.kill(self.init, number)
            except ProcessLookupError:
                pass

    async def run(self) -> int:
        """Collect its output until it has ended; its exit code, 128 + N after signal N."""
        assert self._process, "run() needs start()"
        assert self._process.stdout
        while data := await self._process.stdout.read(1 << 16):
            self.output += data
            await self.notify()
        self.exit_code = exit_code(await self._process.wait())
        await self.notify()
        return self.exit_code

    async def notify(self) -> None:
        """Wake those who follow the output."""
        async with self.grown:
            self.grown.notify_all()


def exit_code(code: int) -> int:
    """A return code as Kubernetes reports it: 128 + N after signal N."""
    return 128 - code if code < 0 else code


def _read_line(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.readline()


def _innermost_child(pid: int) -> int:
    """The last of a chain of only children: nsenter, unshare, process 1 of the container."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if _namespace_pids(pid)[-1] == 1 and len(_namespace_pids(pid)) > 2:
            break
        pid = int(children[0])
    return pid


def _namespace_pids(pid: int) -> list[int]:
    """The pids of a process, from this machine's PID namespace to its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next([int(word) for word in line.split()[1:]] for line in status.splitlines() if line.startswith("NSpid:"))
