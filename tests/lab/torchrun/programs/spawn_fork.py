"""os.fork(): the child ends as Python ends, and runs the functions of atexit of its own copy."""

import atexit
import os
import sys

parent = os.getpid()
atexit.register(lambda: print("atexit", os.getpid() == parent))
pid = os.fork()
if pid == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    raise KeyError("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
