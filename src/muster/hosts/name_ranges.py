"""Host names with ranges in them: `gpu[01-04]` is four names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from muster.errors import UsageError
from muster.hosts.reader import Reader, printable

MAX_HOSTS = 100_000
"""Maximum number of hosts in one list; a longer one is a typing error (`gpu[1-1000000]`)."""

_LONGEST_NAME = 253  # DNS allows no more (RFC 1035)
_LITERAL = re.compile(r"[A-Za-z0-9._-]+")
_START = re.compile(r"[A-Za-z0-9_\[]")
_ADDRESS6 = re.compile(r"\[(?=[^\[\],:]*:)[^\[\],]*\]")
_ADDRESS6_CHARS = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")

_NAME_HINT = "write hosts as `box`, `alice@box`, `box:8`, `gpu[01-04]:8`, separated by commas"
_RANGE_HINT = "write a range as `gpu[01-04]`, with steps `gpu[0-8/2]`, as a list `gpu[1,3,5-7]`"
_ADDRESS_HINT = "no host name is all digits; write addresses as `10.0.0.7`, `10.0.0.[1-4]`, `[fe80::1]`"
ADDRESS6_HINT = "write an IPv6 address in brackets: `[fe80::1]:8`"
"""Hint for positions where a second colon suggests an IPv6 address."""


def expand(text: str, *, source: str = "node list") -> list[str]:
    """Return the names in a node list such as SLURM_JOB_NODELIST: `gpu[01-04,07],login1` gives six.

    Order and duplicates are kept, as by `scontrol show hostnames` (ClusterShell sorts and folds them). Leading zeros
    of the lower end set the width: `[01-100]` is 01 to 100.
    """
    reader = Reader(text, source)
    names: list[str] = []
    for _ in elements(reader):
        names += read_names(reader, room=MAX_HOSTS - len(names))
    return names


def elements(reader: Reader) -> Iterator[None]:
    """Yield at each element of a comma-separated list; the caller reads the element before the next step."""
    while True:
        reader.skip_spaces()
        if reader.next in ("", ","):
            raise reader.error("missing host", hint=_NAME_HINT)
        yield
        reader.skip_spaces()
        if reader.next == "":
            return
        if not reader.accept(","):
            raise _stray(reader)


def read_names(reader: Reader, *, room: int = MAX_HOSTS) -> list[str]:
    """Read one name, range or address and return the names it expands to, at most `room` of them."""
    start = reader.at
    address = reader.match(_ADDRESS6)
    if address is not None:
        return [_checked_address6(reader, address[1:-1], start)]
    names = ["".join(parts) for parts in product(*_read_parts(reader, room))]
    # `1[0-1]` is all digits, `1[0-1]a` is not; all names of a range have this in common with the first.
    if not names[0].strip("0123456789."):
        for name in names:
            if not _is_address4(name):
                raise reader.error(f"`{name}` is neither a name nor an address", at=start, hint=_ADDRESS_HINT)
    return names


def read_numbers(reader: Reader) -> tuple[str, ...]:
    """Read `[1,3,05-07,0-8/2]` and return the numbers with leading zeros kept."""
    opening = reader.at
    reader.accept("[")
    numbers: list[str] = []
    while True:
        reader.skip_spaces()
        numbers += _read_range(reader, opening, room=MAX_HOSTS - len(numbers))
        reader.skip_spaces()
        if reader.accept("]"):
            return tuple(numbers)
        if reader.next == "":
            raise reader.error("this bracket is not closed", at=opening, hint=_RANGE_HINT)
        if not reader.accept(","):
            raise reader.error(f"`{printable(reader.next)}` is not allowed in a range", hint=_RANGE_HINT)


def _read_range(reader: Reader, opening: int, room: int) -> list[str]:
    if reader.next == "":
        raise reader.error("this bracket is not closed", at=opening, hint=_RANGE_HINT)
    start = reader.at
    low = high = reader.number("number", _RANGE_HINT)
    step = 1
    if reader.accept("-"):
        high_at = reader.at
        high = reader.number("end of the range", _RANGE_HINT)
        if int(high) < int(low):
            raise reader.error(f"a range must ascend, but {high} is less than {low}", at=high_at, hint=_RANGE_HINT)
        # In `1-04` and `001-10` the width of the numbers between is ambiguous; in `01-100` and `8-12` it is not.
        if len(high) < len(low) or (len(high) > len(low) and high.startswith("0")):
            raise reader.error(f"{low} and {high} differ in leading zeros", at=high_at, hint=_RANGE_HINT)
        if reader.accept("/"):
            step_at = reader.at
            step = int(reader.number("step", _RANGE_HINT))
            if step == 0:
                raise reader.error("the step must be at least 1, got 0", at=step_at, hint=_RANGE_HINT)
    numbers = range(int(low), int(high) + 1, step)
    # Not len(numbers): it raises OverflowError beyond sys.maxsize on 32-bit systems.
    if (int(high) - int(low)) // step >= room:
        raise reader.error(f"more than {MAX_HOSTS:,} hosts in one list", at=start, hint=_RANGE_HINT)
    return [f"{number:0{len(low)}d}" for number in numbers]


def _read_parts(reader: Reader, room: int) -> list[tuple[str, ...]]:
    """Return the pieces of a name, each with one or more values."""
    if not reader.next or not _START.match(reader.next):
        raise _stray(reader)
    parts: list[tuple[str, ...]] = []
    count, length = 1, 0
    while True:
        start = reader.at
        if reader.next == "[":
            part = read_numbers(reader)
        else:
            literal = reader.match(_LITERAL)
            if literal is None:
                return parts
            part = (literal,)
        # Check each piece before building names: `[1-99999][1-99999]...` would not fit in memory.
        count *= len(part)
        length += max(map(len, part))
        if count > room:
            raise reader.error(f"more than {MAX_HOSTS:,} hosts in one list", at=start, hint=_RANGE_HINT)
        if length > _LONGEST_NAME:
            raise reader.error(f"a host name has at most {_LONGEST_NAME} characters", at=start, hint=_NAME_HINT)
        parts.append(part)


def _stray(reader: Reader) -> UsageError:
    """Return the error for an unexpected character, with messages for common mistakes."""
    char = reader.next
    if char == "":
        return reader.error("missing host name", hint=_NAME_HINT)
    if char == "-":
        return reader.error("a host name cannot start with `-`, which ssh reads as an option", hint=_NAME_HINT)
    if char == ":":
        return reader.error("unexpected `:`", hint=ADDRESS6_HINT)
    before = reader.text[reader.at - 1 : reader.at]
    if char.isspace() or before.isspace():
        return reader.error("hosts are separated by commas, and names have no spaces", hint=_NAME_HINT)
    return reader.error(f"`{printable(char)}` is not allowed in a host name", hint=_NAME_HINT)


def _checked_address6(reader: Reader, address: str, start: int) -> str:
    from ipaddress import IPv6Address  # rarely needed, and slow to import

    try:
        if not _ADDRESS6_CHARS.fullmatch(address):
            raise ValueError
        IPv6Address(address)
    except ValueError:
        sentence = f"`{printable(address)}` is not an IPv6 address"
        raise reader.error(sentence, at=start + 1, hint=_ADDRESS_HINT) from None
    return address


def _is_address4(name: str) -> bool:
    return name.count(".") == 3 and all(map(_is_octet, name.split(".")))


def _is_octet(digits: str) -> bool:
    # Some programs read 010 as eight, so a leading zero is refused.
    return digits == "0" or (0 < len(digits) <= 3 and digits[0] != "0" and int(digits) <= 255)
