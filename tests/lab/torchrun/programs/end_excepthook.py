# exit: 1
# ranks: 1
"""sys.excepthook of the script reports the exception; Python's exit code is 1 all the same."""

import sys
import traceback


def hook(kind, value, trace):
    print("hook", kind.__name__, value, [frame.name for frame in traceback.extract_tb(trace)])
    print(sys.exc_info())


def fail():
    raise LookupError("nothing there")


sys.excepthook = hook
fail()
