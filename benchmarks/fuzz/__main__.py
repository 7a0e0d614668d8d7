"""`python -m benchmarks.fuzz`: feed mutated lines to controller and agent; exit code 1 if one was not handled."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.fuzz.agent_side import fuzz_agent
from benchmarks.fuzz.controller_side import fuzz_controller
from benchmarks.fuzz.tally import Tally

SIDES: dict[str, Callable[[Path, int, int], Tally]] = {"controller": fuzz_controller, "agent": fuzz_agent}


def main() -> int:
    """Run both sides, or the one that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz")
    parser.add_argument("--side", choices=list(SIDES), help="only this side")
    parser.add_argument("--lines", type=int, default=100_000, help="mutated lines for each side")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for side in [options.side] if options.side else SIDES:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            tally = SIDES[side](Path(folder), options.lines, options.seed)
        for what, times in tally.uncaught.most_common():
            print(f"{side}: {times} x {what}\n{tally.examples[what]}\n")
        count = sum(tally.uncaught.values())
        print(
            f"{side}: {tally.lines} mutated lines (seed {options.seed}), {count} uncaught exceptions; "
            f"{tally.lost} lines cost the sender its link or were refused; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        failed = failed or count > 0
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
