"""What Muster says when something is wrong.

MusterError            anything a user can meet: one sentence and, where there is one, the next thing to type
├── UsageError         the command line, a host list or a file is wrong; nothing was started (exit code 2)
├── HostError          one host could not be used; the message begins with its name
├── LaunchError        the function of muster.launch did not return on every rank
└── LabError           the virtual cluster could not do what was asked
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EXIT_USAGE = 2
"""Exit code for a wrong command line, host list or file."""

EXIT_HANG = 124
"""Exit code when the job hung and `--on-hang kill` ended it (the number timeout(1) uses)."""

EXIT_MUSTER = 125
"""Exit code when Muster itself or a host failed, not the script (the number docker and podman use for the same)."""


def with_hint(message: str, hint: str | None, *, between: str = "\n\n") -> str:
    """The message and, after a blank line unless `between` is another, its hint."""
    return f"{message}{between}hint: {hint}" if hint else message


class MusterError(Exception):
    """A failure told in one sentence, with a hint that says what to type next."""

    exit_code = EXIT_MUSTER

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.told = False
        """True in a rank beside one that tells the same: it leaves without a word."""

    def for_python(self) -> MusterError:
        """This error with its hint in what a traceback shows, and without the frames of Muster."""
        self.args = (with_hint(str(self), self.hint),)
        return self.with_traceback(None)

    def report(self) -> str:
        """Return what a script prints before it leaves with `exit_code`; nothing where another rank prints it."""
        return "" if self.told else with_hint(f"error: {self}", self.hint, between="\n") + "\n"


class UsageError(MusterError):
    """The user's input is wrong; nothing was started."""

    exit_code = EXIT_USAGE


class HostError(MusterError):
    """One host cannot take part."""

    def __init__(self, host: str, message: str, *, hint: str | None = None, kind: str = "") -> None:
        super().__init__(f"{host}: {message}", hint=hint)
        self.host = host
        self.why = message
        self.kind = kind
        """A word for what went wrong, where something depends on it."""


class LaunchError(MusterError):
    """A function did not return on every rank: who failed, how, and what the others had returned."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        rank: int | None = None,
        host: str = "",
        traceback: str = "",
        returned: Mapping[int, bytes] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        """The rank that failed first; None if it was a host."""
        self.host = host
        self.traceback = traceback
        """As it was printed there."""
        self._returned = dict(returned or {})
        self.args = (with_hint("\n  ".join([message, *traceback.splitlines()]), hint),)

    @property
    def results(self) -> dict[int, Any]:
        """What ranks had returned before it came to this, by rank."""
        import pickle

        return {rank: pickle.loads(data) for rank, data in self._returned.items()}


class LabError(MusterError):
    """The virtual cluster cannot do what was asked."""
