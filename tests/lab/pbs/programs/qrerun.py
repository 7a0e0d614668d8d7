"""qrerun: PBS ends a job and runs it again under the same id; an operator may do that, the owner of a job may not."""

from __future__ import annotations

import os
import sys

import records
from wire import call

UNKNOWN = 15001 % 256
FORBIDDEN = 15007 % 256


def main() -> int:
    for text in sys.argv[1:]:
        record = records.named(text)
        if record is None:
            print(f"qrerun: Unknown Job Id {text}", file=sys.stderr)
            return UNKNOWN
        if not os.environ.get("STAND_IN_OPERATOR"):
            print(f"qrerun: Unauthorized Request  {record['id']}", file=sys.stderr)
            return FORBIDDEN
        records.change(record["id"], rerun=True)
        call(record["chunks"][0]["host"], job=record["id"], do="terminate")
    return 0


sys.exit(main())
