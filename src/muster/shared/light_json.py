"""JSON by the C code of the module `json`, which itself imports `re`: 5 ms of CPU in every agent and rank."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_SPACE = " \t\n\r"
_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Decoder:
    """The attributes of `json.JSONDecoder` that the C code reads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = _CONSTANTS.__getitem__


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


_scan: Callable[[str, int], tuple[Any, int]]
_encode: Callable[[object, bool], Iterable[str]]
try:
    import _json

    _scan = vars(_json)["make_scanner"](_Decoder)
    _encode = vars(_json)["make_encoder"](
        None, _refuse, vars(_json)["encode_basestring_ascii"], None, ":", ",", False, False, True
    )
except (ImportError, LookupError, TypeError):  # another implementation of Python, or a future version
    import json

    _scan = vars(json.JSONDecoder())["scan_once"]
    _encode = json.JSONEncoder(separators=(",", ":")).iterencode


def dumps(value: object) -> str:
    """A value as JSON, in ASCII and without spaces."""
    return "".join(_encode(value, False))


def loads(text: str) -> Any:
    """The value of a JSON text; raises ValueError if it is invalid."""
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value
