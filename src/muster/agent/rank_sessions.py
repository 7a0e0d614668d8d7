"""Makes the session of each rank part of the scheduler's job: PBS stops, continues and accounts by session."""

from __future__ import annotations

import os

from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LIMIT = 64
"""Maximum number of processes that attach sessions at the same time."""


class RankSessions:
    """Runs `command PID` for each rank that leads a session; does nothing without a command.

    The spawner is not attached: if PBS kills all sessions of the job at once, it survives to end what left them.
    """

    def __init__(self, command: Sequence[str], note: Callable[[str], None]) -> None:
        self._command = command
        self._note = note
        self._waiting: list[int] = []
        """Ranks that may not lead a session yet, because they have just been forked."""
        self._under_way: dict[int, int] = {}
        """The rank that each process attaches."""

    @property
    def is_busy(self) -> bool:
        """Whether a rank is about to lead a session."""
        return bool(self._waiting)

    def add(self, pid: int) -> None:
        """A rank has been started."""
        if self._command and pid:
            self._waiting.append(pid)
            self.step()

    def step(self) -> None:
        """Attach the sessions that exist by now."""
        for pid in self._waiting[:]:
            try:
                leads = os.getsid(pid) == pid
            except ProcessLookupError:  # it has ended
                self._waiting.remove(pid)
                continue
            if leads and len(self._under_way) < _LIMIT:
                self._waiting.remove(pid)
                null = os.open(os.devnull, os.O_RDWR)
                argv = [*self._command, str(pid)]
                self._under_way[processes.start(argv, os.environ, cwd="/", stdin=null, stderr=null, keep=[])] = pid
                os.close(null)

    def on_exit(self, pid: int, status: int) -> None:
        """A child of the agent has exited."""
        rank = self._under_way.pop(pid, None)
        if rank is not None and status != 0 and processes.is_alive(rank):
            code = os.waitstatus_to_exitcode(status)
            self._note(f"could not attach the session of process {rank}: {self._command[0]} ended with code {code}")
