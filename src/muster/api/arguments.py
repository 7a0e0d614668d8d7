"""An argument parser with Muster's error format (one sentence and a hint), and the types of option values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from muster.errors import UsageError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""Seconds in each unit of a duration."""

LONGEST = 10_000 * 86400.0
"""Seconds; the longest duration, which every timeout of the operating system can still hold."""

_RANKS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MOST_RANKS = 1_000_000
_MOST_DIGITS = 9
_MOST_CORES = 10_000

_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_WITH_UNIT = re.compile(rf"({_NUMBER})(ms|[smhdw])")


class Parser(argparse.ArgumentParser):
    """argparse with Muster's errors, no abbreviations, `_` accepted for `-` in options, and unwrapped examples."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        self.taking_options: set[str] = set()
        """Options whose value may start with a dash: `--container-args -v`."""
        self._before = ""

    def _parse_optional(self, arg_string: str) -> Any:
        word = with_dashes(arg_string, self._option_string_actions)
        before, self._before = self._before, word
        return None if before in self.taking_options else super()._parse_optional(word)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse what no option means: an empty value, most often a variable that is not set, or a NUL."""
        known = action.option_strings and action.help != argparse.SUPPRESS  # torchrun's need not be complete
        if action.option_strings and arg_strings == ["--"]:  # argparse would drop it and return a list
            raise argparse.ArgumentError(action, "needs a value, got `--`")
        for text in arg_strings:
            if known and not text.strip() and action.metavar != "ARGS":
                raise argparse.ArgumentError(action, "must not be empty")
            if "\0" in text:
                raise argparse.ArgumentError(action, "must not contain a NUL character")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing the usage and exiting."""
        unknown = re.search(r"unrecognized arguments: (--?[\w-]+)", message)
        hint = f"`{self.prog} --help` lists the options and shows examples"
        if unknown:
            from muster.api.hints import nearest

            word = unknown.group(1)
            near = nearest(word, self.shown_options())
            message = f"unknown option {word}"
            hint = f"did you mean `{near}`?" if near else hint
        # argparse starts with all names of the option: `argument -H/--hosts: ...`
        message = re.sub(r"^argument ([^\s/]+?)(/\S+)?: ", r"\1: ", message)
        raise UsageError(f"{self.prog}: {message}", hint=hint)

    def shown_options(self) -> list[str]:
        """Return the options that --help lists."""
        return [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]


class Inverse(argparse.Action):
    """`--no-sync` for `--sync`: hidden from --help, it overrides a default of a configuration file."""

    is_inverse = True

    def __init__(self, option_strings: Sequence[str], dest: str, const: object) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *given: object) -> None:
        """Set the value."""
        setattr(namespace, self.dest, self.const)


def flag(group: argparse._ActionsContainer, names: str, about: str, **settings: Any) -> None:
    """Add a flag, and its inverse: `--no-sync` for `--sync`, `--zygote` for `--no-zygote`."""
    option(group, names, about, **settings)
    first = names.split()[0]
    action = group._option_string_actions[first]
    group.add_argument(inverse(first), dest=action.dest, action=Inverse, const=not action.const)


def inverse(name: str) -> str:
    """Return the flag with the opposite meaning."""
    bare = name.removeprefix("--no-")
    return f"--{bare}" if bare != name else f"--no-{name.removeprefix('--')}"


def option(group: argparse._ActionsContainer, names: str, about: str, **settings: Any) -> None:
    """Add an option written as in --help: a flag `"--sync"`, a value `"-H --hosts HOSTS"`, an argument `"JOB"`."""
    *flags, last = names.split()
    if last.startswith("-"):
        flags.append(last)
        if "choices" not in settings:
            settings.setdefault("action", "store_true")
    else:
        settings["metavar"] = last
    group.add_argument(*(flags or [settings.pop("dest", last.lower())]), help=about, **settings)


def with_dashes(word: str, known: Container[str]) -> str:
    """Replace `_` with `-` in the name of an option if that makes it a known one; return other words unchanged."""
    name, equals, value = word.partition("=")
    dashed = name.replace("_", "-")
    return f"{dashed}{equals}{value}" if word.startswith("-") and name not in known and dashed in known else word


def _whole(text: str) -> int | None:
    """Read a number of ASCII digits; None for anything else. int() also reads `٣`, and refuses 5,000 digits."""
    if re.fullmatch("[0-9]+", text) is None:
        return None
    if len(text.lstrip("0")) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"must have at most {_MOST_DIGITS} digits, got `{text}`")
    return int(text.lstrip("0") or "0")


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    number = _whole(text)
    if not number:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got `{text}`")
    return number


def natural(text: str) -> int:
    """Read an integer of at least 0."""
    number = _whole(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got `{text}`")
    return number


def rank_set(text: str) -> frozenset[int]:
    """Read ranks: `3`, `0,4-7`."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise argparse.ArgumentTypeError(f"must be ranks such as 0 or 0,4-7, got `{part}`")
        if last > _MOST_RANKS:
            raise argparse.ArgumentTypeError(f"ranks must be at most {_MOST_RANKS}, got `{part}`")
        ranks |= set(range(first, last + 1))
    return frozenset(ranks)


def port(text: str) -> int:
    """Read a TCP port."""
    number = _whole(text)
    if not number or number > 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, got `{text}`")
    return number


def percentage(text: str) -> float:
    """Read a percentage: `10`, `0.5`."""
    if re.fullmatch(_NUMBER, text) is None or float(text) > 100:
        raise argparse.ArgumentTypeError(f"must be a percentage from 0 to 100, got `{text}`")
    return float(text)


def cores(text: str) -> float:
    """Read a number of CPU cores: `0.1`, `2`."""
    if re.fullmatch(_NUMBER, text) is None or not 0 < float(text) <= _MOST_CORES:
        raise argparse.ArgumentTypeError(f"must be a number of cores, such as 0.1 or 2, got `{text}`")
    return float(text)


def has_unit(text: str) -> bool:
    """Return whether a duration is more than a plain number."""
    return re.fullmatch(_NUMBER, text) is None


def seconds(text: str) -> float:
    """Read a duration as seconds: a plain number, or numbers with units, such as 500ms, 5m or 1h30m."""
    if not has_unit(text):
        value = float(text)
    elif re.fullmatch(rf"(?:{_WITH_UNIT.pattern})+", text.lower()):
        value = sum(float(number) * _UNITS[unit] for number, unit in _WITH_UNIT.findall(text.lower()))
    else:
        value = float("inf")
    if value == float("inf"):
        raise argparse.ArgumentTypeError(f"must be a duration such as 30s, 500ms, 5m or 1h30m, got `{text}`")
    if value > LONGEST:
        raise argparse.ArgumentTypeError(f"must be at most {LONGEST / 86400:.0f}d, got `{text}`")
    return value


def silence(text: str) -> float:
    """Read how long a host may be silent before it is lost."""
    from muster.spec import SHORTEST_LEASE  # here, because commands without a run do not load it

    value = seconds(text)
    if value < SHORTEST_LEASE:
        raise argparse.ArgumentTypeError(f"must be at least {SHORTEST_LEASE:g}s, got `{text}`")
    return value


def rejoin(text: str) -> float:
    """Read when returned hosts are used: `restart` or 0, or a duration."""
    if text == "restart":
        return 0.0
    try:
        return seconds(text)
    except argparse.ArgumentTypeError:
        sentence = f"must be `restart` or a duration such as 30s, 10m or 1h30m, got `{text}`"
        raise argparse.ArgumentTypeError(sentence) from None
