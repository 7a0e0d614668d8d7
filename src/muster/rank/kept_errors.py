"""Errors in Muster's monitoring code inside a rank, kept for the debug log, once per operation."""

from __future__ import annotations

_LONGEST = 16_000
"""Maximum number of characters of a traceback that are sent, from the end, where the cause is."""

_kept: dict[str, dict[str, str]] = {}
_sent: set[str] = set()


def keep(what: str, error: Exception) -> None:
    """Keep an error that is handled by skipping `what`."""
    if what not in _kept and what not in _sent:
        text = f"{what} failed: {type(error).__name__}"
        _kept[what] = {"t": "log", "text": text, "traceback": traceback_of(error)}


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, for the log; empty if no descriptor is left to import `traceback`."""
    try:
        from traceback import format_exception  # here, because it would delay the start

        return "".join(format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    except OSError:
        return ""


def take() -> list[dict[str, str]]:
    """Return the messages that have not been sent yet."""
    new = list(_kept)
    _sent.update(new)
    return [_kept.pop(what) for what in new]
