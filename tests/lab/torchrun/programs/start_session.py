"""Each rank leads a session and a process group of its own, so that a signal to its group reaches only it."""

import os

print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getppid() > 1)
try:
    print(open("/dev/tty"))
except OSError as error:
    print(error)
