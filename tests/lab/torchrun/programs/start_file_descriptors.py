"""Prints which file descriptors are open at the start, and of which kind the standard ones are."""

import os
import stat

found = []
for number in range(256):
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        continue
    found.append(number)
    if number == 0:
        print("stdin", stat.S_ISCHR(mode), os.readlink("/proc/self/fd/0"))
print(found)
print([os.isatty(number) for number in range(3)], [os.get_inheritable(number) for number in range(3)])
print([os.get_blocking(number) for number in range(3)])
