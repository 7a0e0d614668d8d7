"""One rank of `muster bench`: `python -m muster_bench SETTINGS`, with the settings as JSON."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Run what the settings describe."""
    settings = json.loads(sys.argv[1])
    if settings.pop("what") == "step":
        from .training_step import train

        train(**settings)
    else:
        from .bench_session import measure

        measure(**settings)


main()
