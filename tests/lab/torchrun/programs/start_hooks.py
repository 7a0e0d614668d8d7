# ranks: 1
"""Prints the hooks of the interpreter, all of which are Python's own when a script starts."""

import builtins
import faulthandler
import gc
import sys
import threading
import tracemalloc
import warnings

print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
print(sys.unraisablehook is sys.__unraisablehook__, threading.excepthook is threading.__excepthook__)
print(sys.breakpointhook is sys.__breakpointhook__, sys.gettrace(), sys.getprofile(), threading.gettrace())
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_freeze_count(), gc.get_debug())
print(tracemalloc.is_tracing(), sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth())
print(warnings.filters)
print(sorted(set(dir(builtins)) - {"_"}), builtins.__import__, builtins.open, builtins.print)
print("faulthandler", faulthandler.is_enabled())
