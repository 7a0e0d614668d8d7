"""Types for argparse: numbers within limits, so that a bad flag is one sentence and exit code 2 before anything starts.

parser.add_argument("--epochs", type=integer(), default=3)
parser.add_argument("--lr", type=number(above=0), default=0.05)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import muster

MOST = 2**31 - 1
"""The largest number of anything."""

MOST_SEED = 2**63 - 1
"""The largest seed that every random number generator accepts."""


def integer(at_least: int = 1, at_most: int = MOST, *, odd: bool = False) -> Callable[[str], int]:
    """Return a type for whole numbers from `at_least` to `at_most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {_shown(text)}") from None
        if value < at_least:
            raise argparse.ArgumentTypeError(f"must be at least {at_least}, got {_shown(text)}")
        if value > at_most:
            raise argparse.ArgumentTypeError(f"must be at most {at_most}, got {_shown(text)}")
        if odd and value % 2 == 0:
            raise argparse.ArgumentTypeError(f"must be odd, got {value}")
        return value

    return parse


def number(
    *, at_least: float = -math.inf, above: float = -math.inf, at_most: float = math.inf, below: float = math.inf
) -> Callable[[str], float]:
    """Return a type for finite numbers within these limits."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"must be a finite number, got {_shown(text)}")
        limits = (
            (value >= at_least, f"at least {at_least:g}"),
            (value > above, f"above {above:g}"),
            (value <= at_most, f"at most {at_most:g}"),
            (value < below, f"below {below:g}"),
        )
        for is_met, limit in limits:
            if not is_met:
                raise argparse.ArgumentTypeError(f"must be {limit}, got {_shown(text)}")
        return value

    return parse


def timeout() -> Callable[[str], float]:
    """Return a type for seconds to wait."""
    return number(above=0, at_most=MOST)


def seed() -> Callable[[str], int]:
    """Return a type for the seed of random number generators."""
    return integer(0, MOST_SEED)


def parse_shares(text: str) -> list[float]:
    """Parse the numbers of `--share 8,2`; whether they suit the ranks is checked by `muster.Batches`."""
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise muster.UsageError(f"invalid --share {text}", hint="use --share 8,2 or --share measured") from None


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
