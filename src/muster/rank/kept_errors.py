"""Errors inside a rank that cost Muster a look at it and nothing else: kept for the debug log, each place once."""

from __future__ import annotations

_LONGEST = 16_000
"""Characters of a traceback that are sent: the end, where the cause is."""

_kept: dict[str, dict[str, str]] = {}
_sent: set[str] = set()


def keep(what: str, error: Exception) -> None:
    """Keep an error that is handled by doing without `what`."""
    if what not in _kept and what not in _sent:
        text = f"{what} failed: {type(error).__name__}"
        _kept[what] = {"t": "log", "text": text, "traceback": traceback_of(error)}


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, as far as a log needs it; empty where no descriptor is left to load what writes it."""
    try:
        from traceback import format_exception  # not at the start, which it would delay

        return "".join(format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    except OSError:
        return ""


def take() -> list[dict[str, str]]:
    """The messages for those that have not been sent."""
    new = list(_kept)
    _sent.update(new)
    return [_kept.pop(what) for what in new]
