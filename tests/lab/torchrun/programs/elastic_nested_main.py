# ranks: 1
# args: inner
"""Starts itself again below the rank, with runpy and with exec, as wrappers do."""

import runpy
import sys

if len(sys.argv) > 1 and sys.argv[1] == "inner":
    sys.argv = [sys.argv[0], "second", "turn"]
    print("first", __name__)
    names = runpy.run_path(__file__, run_name="__main__")
    print(sorted(name for name in names if not name.startswith("__")))
else:
    print("second", __name__, sys.argv[1:])
