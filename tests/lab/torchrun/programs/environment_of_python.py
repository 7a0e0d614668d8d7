# env: PYTHONHASHSEED=5
# env: PYTHONOPTIMIZE=1
# env: PYTHONPATH=/nowhere/at/all
# env: PYTHONBREAKPOINT=0
# env: PYTHONDONTWRITEBYTECODE=1
# env: PYTHONUTF8=1
"""Variables that Python itself reads at its start."""

import sys

assert sys.flags.optimize == 0, "PYTHONOPTIMIZE removes this"
breakpoint()
print(hash("a word"), sys.flags.optimize, "/nowhere/at/all" in sys.path, sys.flags.utf8_mode, sys.dont_write_bytecode)
