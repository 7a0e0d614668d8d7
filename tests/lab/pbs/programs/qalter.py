"""qalter: give a job another walltime, which an operator may do while it runs."""

from __future__ import annotations

import getopt
import sys

import records
from request import read_request


def main() -> int:
    options, ids = getopt.getopt(sys.argv[1:], "l:")
    walltime = read_request([value for _, value in options])["walltime"]
    for text in ids:
        record = records.named(text)
        if record is None:
            print(f"qalter: Unknown Job Id {text}", file=sys.stderr)
            return 15001 % 256
        records.change(record["id"], walltime=walltime)
    return 0


sys.exit(main())
