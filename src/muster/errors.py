"""The errors that Muster reports.

MusterError            any error for the user: one sentence and, if possible, a hint
├── UsageError         the command line, a host list or a file is invalid; nothing was started (exit code 2)
├── ScriptError        the script cannot run on any rank; nothing was started (exit code 1, as of python)
├── HostError          one host could not be used; the message starts with its name
├── LaunchError        the function of muster.launch did not return on every rank
└── LabError           the virtual cluster could not do what was requested
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

EXIT_USAGE = 2
"""Exit code for an invalid command line, host list or file."""

EXIT_HANG = 124
"""Exit code when the job hung and `--on-hang kill` ended it (the number timeout(1) uses)."""

EXIT_MUSTER = 125
"""Exit code when Muster or a host failed, not the script (the number docker and podman use)."""


def with_hint(message: str, hint: str | None, *, between: str = "\n\n") -> str:
    """The message followed by its hint, separated by `between`."""
    return f"{message}{between}hint: {hint}" if hint else message


class MusterError(Exception):
    """A failure described in one sentence, with a hint what to type next."""

    exit_code = EXIT_MUSTER

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.silent = False
        """Set on ranks that exit silently because another rank reports the same error."""

    def for_python(self) -> MusterError:
        """This error with its hint in the message, and without the frames of Muster."""
        self.args = (with_hint(str(self), self.hint),)
        return self.with_traceback(None)

    def report(self) -> str:
        """Return what a script prints before it exits with `exit_code`; empty if another rank prints it."""
        return "" if self.silent else with_hint(f"error: {self}", self.hint, between="\n") + "\n"


class UsageError(MusterError):
    """The user's input is invalid; nothing was started."""

    exit_code = EXIT_USAGE


class ScriptError(MusterError):
    """The script cannot run on any rank; nothing was started."""

    exit_code = 1


class HostError(MusterError):
    """One host cannot be used."""

    def __init__(self, host: str, message: str, *, hint: str | None = None, kind: str = "") -> None:
        super().__init__(f"{host}: {message}", hint=hint)
        self.host = host
        self.why = message
        self.kind = kind
        """The kind of error, where code depends on it."""


class LaunchError(MusterError):
    """A function did not return on every rank: which rank failed, how, and what the others returned."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        rank: int | None = None,
        host: str = "",
        traceback: str = "",
        returned: Mapping[int, bytes] | None = None,
        load: Callable[[bytes], Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        """The rank that failed first; None if a host failed."""
        self.host = host
        self.traceback = traceback
        """The traceback as printed on the rank."""
        self._returned, self._load = dict(returned or {}), load
        self.args = (with_hint("\n  ".join([message, *traceback.splitlines()]), hint),)

    @property
    def results(self) -> dict[int, Any]:
        """What ranks had returned before the failure, by rank."""
        return {rank: self._load(data) for rank, data in self._returned.items()} if self._load else {}


class LabError(MusterError):
    """The virtual cluster cannot do what was requested."""


class RemoteJob(Exception):
    """The controller of the job that a command means is on another host, so the command must run there."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder
        """The job directory on this machine."""
