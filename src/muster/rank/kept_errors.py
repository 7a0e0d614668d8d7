"""Errors inside a rank that cost Muster a look at it and nothing else: kept for the debug log, each place once."""

from __future__ import annotations

_kept: dict[str, dict[str, str]] = {}
_sent: set[str] = set()


def keep(what: str, error: Exception) -> None:
    """Keep an error that is handled by doing without `what`."""
    if what not in _kept and what not in _sent:
        from traceback import format_exception

        text = "".join(format_exception(type(error), error, error.__traceback__))
        _kept[what] = {"t": "log", "text": f"{what} failed: {type(error).__name__}", "traceback": text[-16_000:]}


def take() -> list[dict[str, str]]:
    """The messages for those that have not been sent."""
    new = list(_kept)
    _sent.update(new)
    return [_kept.pop(what) for what in new]
