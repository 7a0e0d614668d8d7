"""Children of the script are its own: SIGCHLD comes for each, and os.wait() finds no other."""

import os
import signal
import subprocess
import sys

try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no children at the start")
got = []
signal.signal(signal.SIGCHLD, lambda number, frame: got.append(number))
child = subprocess.Popen([sys.executable, "-c", "pass"])
print(child.wait(), len(got) > 0)
pid = os.fork()
if pid == 0:
    os._exit(4)
print(os.wait() == (pid, 4 << 8))
try:
    os.wait()
except ChildProcessError:
    print("no children left")
