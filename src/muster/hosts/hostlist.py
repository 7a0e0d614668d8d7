"""The host list of `-H`: `gpu[01-04]:8,box:2,alice@big:0,2,5`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.errors import UsageError
from muster.hosts.host import Host
from muster.hosts.name_ranges import ADDRESS6_HINT, MAX_HOSTS, elements, read_names, read_numbers
from muster.hosts.reader import Reader, printable

MAX_SLOTS = 1024
"""Maximum number of ranks on one host; a larger number is most often a port (`box:2222`)."""

_SLOTS_HINT = "write `box:8` for eight ranks, `box:0,2,5` for three GPUs, `box:[3]` for GPU 3 alone"
_PORT_HINT = "write a port as ssh does, `ssh://box:2222`, with slots `ssh://box:2222:8`"
_USER_HINT = "write a user as `alice@box`; put anything else into ~/.ssh/config (`User`)"

_NAMESPACE_HINT = "give the namespace of pods with -n: `-n NAMESPACE -H pod/train-0`"

_GROUP_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_USER = re.compile(r"[^,\[\]:@/\s]*@")
_USER_CHARS = re.compile(r"(?!-)[A-Za-z0-9._+-]*")
_NEXT_GPU = re.compile(r"[ \t]*,[ \t]*(?=[0-9]+[ \t]*(?:,|$))")


Group = tuple[str, str]
"""A host group: its hosts as `-H` takes them, with or without other groups, and the file and line for errors."""


@dataclass(frozen=True, kw_only=True)
class Mention:
    """One host at one position of a host list or hostfile."""

    host: Host
    reader: Reader
    at: int
    in_group: bool = False

    def error(self, sentence: str, *, hint: str) -> UsageError:
        """Return an error that points at this mention."""
        return self.reader.error(sentence, at=self.at, hint=hint)


def parse_hosts(text: str, *, source: str = "-H", groups: Mapping[str, Group] | None = None) -> tuple[Host, ...]:
    """Read a host list; errors start with `source` and point at the wrong character.

    Commas separate elements; spaces around them are ignored:

    - `box`, `alice@box`, `10.0.0.7`, `[fe80::1]`: a host, with one rank per GPU
    - `box:8`: eight ranks. One number is a count, so GPU 3 alone is `box:[3]`
    - `box:0,2,5`: these GPUs. After `box:` two or more numbers are a list, which ends at the first element
      that is not all digits (no host name is); a list may have brackets, too: `box:[0-3]`
    - `gpu[01-04]:8`, `r[1-2]n[01-16]`, `gpu[1,3,5-7]`, `gpu[0-8/2]`: ranges. Brackets with a colon inside
      are an IPv6 address
    - `ssh://alice@box:2222`, `ssh://box:2222:8`: a port, in the form of ssh. After `ssh://` the first number
      is the port and the second the slots; everywhere else numbers are slots
    - `pod/train-0`, `pod/train-[0-3]:8`: pods of Kubernetes
    - `@lab`: the hosts of a group in `groups`

    A host listed more than once (same name, user and port) is one host at the position of its first mention:
    counts add up, GPU lists are merged, and plain mentions count one each, as for mpirun (`box,box` is two ranks).
    A host that several groups list in the same way counts once.
    """
    return merge(_without_repeats(read_mentions(Reader(text, source), groups=groups)))


def read_mentions(
    reader: Reader,
    *,
    room: int = MAX_HOSTS,
    groups: Mapping[str, Group] | None = None,
    inside: tuple[str, ...] = (),
) -> list[Mention]:
    """Read a host list up to the end of `reader`, ranges and groups expanded, duplicates kept.

    `inside` are the groups whose expansion this is part of.
    """
    mentions: list[Mention] = []
    for _ in elements(reader):
        start = reader.at
        if groups is not None and reader.accept("@"):
            mentions += _read_group(reader, groups, inside, room=room - len(mentions))
            continue
        pod = reader.accept("pod/") or reader.accept("pods/")
        url = not pod and reader.accept("ssh://")
        user = None if pod else _read_user(reader)
        names = read_names(reader, room=room - len(mentions))
        port = None
        if url and reader.accept(":"):
            at = reader.at
            port = checked_port(reader, reader.number("port", _PORT_HINT), at)
        slots, gpus = _read_slots(reader, names[0]) if reader.accept(":") else (None, None)
        if reader.next == "/":
            raise reader.error("unexpected `/`", hint=_NAMESPACE_HINT if pod else _PORT_HINT)
        hosts = (
            Host(name=name, pod=name if pod else "", user=user, port=port, slots=slots, gpus=gpus) for name in names
        )
        mentions += (Mention(host=host, reader=reader, at=start, in_group=bool(inside)) for host in hosts)
    return mentions


def _read_group(reader: Reader, groups: Mapping[str, Group], inside: tuple[str, ...], *, room: int) -> list[Mention]:
    at = reader.at - 1
    name = reader.match(_GROUP_NAME) or ""
    group = groups.get(name)
    if group is None:
        raise reader.error(f"unknown host group `@{name}`", at=at, hint=_group_hint(name, groups))
    if reader.next == ":":
        hint = f'write the number into the group: {name} = ["gpu01:8"]'
        raise reader.error("a host group cannot be followed by a number", hint=hint)
    if name in inside:
        chain = " -> ".join(f"@{each}" for each in (*inside[inside.index(name) :], name))
        raise reader.error(f"the host group contains itself: {chain}", at=at, hint="remove one of them")
    return read_mentions(Reader(*group), room=room, groups=groups, inside=(*inside, name))


def _group_hint(name: str, groups: Mapping[str, Group]) -> str:
    from difflib import get_close_matches

    from muster.text import names

    near = get_close_matches(name, groups, 1)
    if near:
        return f"did you mean `@{near[0]}`?"
    if groups:
        return f"the groups are {names([f'@{each}' for each in groups])}"
    return f'define it in muster.toml: [hosts] {name or "lab"} = ["gpu01:8", "gpu02:8"]; write a user as alice@box'


def _without_repeats(mentions: Sequence[Mention]) -> Iterator[Mention]:
    """Yield each mention, but of a host in groups only the first one, and none if it is also listed by itself."""
    seen = {mention.host for mention in mentions if not mention.in_group}
    for mention in mentions:
        if mention.in_group:
            if mention.host in seen:
                continue
            seen.add(mention.host)
        yield mention


def merge(mentions: Iterable[Mention]) -> tuple[Host, ...]:
    """Combine all mentions of the same name, user and port into one host."""
    groups: dict[tuple[str, str, str | None, int | None], list[Mention]] = {}
    for mention in mentions:
        host = mention.host
        groups.setdefault((host.name, host.pod, host.user, host.port), []).append(mention)
    return tuple(_merge_one(group) for group in groups.values())


def checked_slots(reader: Reader, digits: str, at: int, name: str) -> int:
    """Return the number of slots written as `digits`; UsageError if a host cannot have that many."""
    slots = int(digits)
    if slots == 0:
        hint = f"leave the host out, or write `{name}:[0]` for GPU 0 alone"
        raise reader.error(f"slots of {name} must be at least 1, got 0", at=at, hint=hint)
    if slots > MAX_SLOTS:
        raise reader.error(f"slots of {name} must be at most {MAX_SLOTS}, got {slots}", at=at, hint=_PORT_HINT)
    return slots


def checked_port(reader: Reader, digits: str, at: int) -> int:
    """Return the port written as `digits`; UsageError if it is out of range."""
    port = int(digits)
    if not 1 <= port <= 65535:
        raise reader.error(f"a port must be from 1 to 65535, got {port}", at=at, hint=_PORT_HINT)
    return port


def checked_user(reader: Reader, user: str, at: int) -> str:
    """Return the user name `user`; UsageError if ssh would not accept it."""
    good = _USER_CHARS.match(user)
    end = good.end() if good else 0
    if end < len(user):
        raise reader.error(f"`{printable(user[end])}` is not allowed in a user name", at=at + end, hint=_USER_HINT)
    if not user:
        raise reader.error("missing user name", at=at, hint=_USER_HINT)
    return user


def _read_user(reader: Reader) -> str | None:
    start = reader.at
    user = reader.match(_USER)
    return None if user is None else checked_user(reader, user[:-1], start)


def _read_slots(reader: Reader, name: str) -> tuple[int, tuple[int, ...] | None]:
    start = reader.at
    if reader.next == "[":
        gpus = tuple(_checked_gpu(reader, digits, start) for digits in read_numbers(reader))
        if len(set(gpus)) < len(gpus):
            raise reader.error(f"a GPU of {name} is listed twice", at=start, hint=_SLOTS_HINT)
        return len(gpus), gpus
    if reader.next == ":":
        raise reader.error("unexpected `:`", hint=ADDRESS6_HINT)
    first = reader.number("number of slots", _SLOTS_HINT)
    if reader.next == "-":
        raise reader.error("a range needs brackets", hint="write `box:[0-3]` or `box:0,1,2,3` for GPUs 0 to 3")
    if not _NEXT_GPU.match(reader.text, reader.at, reader.end):
        return checked_slots(reader, first, start, name), None
    listed = {_checked_gpu(reader, first, start): None}
    while reader.match(_NEXT_GPU) is not None:
        at = reader.at
        gpu = _checked_gpu(reader, reader.number("GPU", _SLOTS_HINT), at)
        if gpu in listed:
            raise reader.error(f"GPU {gpu} of {name} is listed twice", at=at, hint=_SLOTS_HINT)
        listed[gpu] = None
    return len(listed), tuple(listed)


def _checked_gpu(reader: Reader, digits: str, at: int) -> int:
    if int(digits) >= MAX_SLOTS:
        raise reader.error(f"a GPU must be less than {MAX_SLOTS}, got {digits}", at=at, hint=_SLOTS_HINT)
    return int(digits)


def _merge_one(group: list[Mention]) -> Host:
    first = group[0].host
    if len(group) == 1:
        return first
    for mention in group[1:]:
        if _kind(mention.host) != _kind(first):
            kinds = f"once with {_kind(first)} and once with {_kind(mention.host)}"
            raise mention.error(f"{first.name} is listed {kinds}", hint=_SLOTS_HINT)
    if first.gpus is not None:
        gpus = _unite(group)
        return replace(first, slots=len(gpus), gpus=gpus)
    slots = sum(1 if mention.host.slots is None else mention.host.slots for mention in group)
    if slots > MAX_SLOTS:
        raise group[-1].error(f"slots of {first.name} must be at most {MAX_SLOTS}, got {slots}", hint=_SLOTS_HINT)
    return replace(first, slots=slots)


def _kind(host: Host) -> str:
    if host.gpus is not None:
        return "a list of GPUs"
    return "no count" if host.slots is None else "a count"


def _unite(group: list[Mention]) -> tuple[int, ...]:
    united: dict[int, None] = {}
    for mention in group:
        for gpu in mention.host.gpus or ():
            if gpu in united:
                raise mention.error(f"GPU {gpu} of {mention.host.name} is listed twice", hint=_SLOTS_HINT)
            united[gpu] = None
    return tuple(united)
