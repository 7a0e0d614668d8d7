"""Prints what each signal does at the start, and which are blocked."""

import signal
from pathlib import Path

for number in sorted(signal.valid_signals()):
    handler = signal.getsignal(number)
    if handler not in (signal.SIG_DFL, None):
        print(number, handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
status = Path("/proc/self/status").read_text().splitlines()
print([line for line in status if line.startswith(("SigBlk", "SigIgn", "SigPnd", "ShdPnd"))])
print(signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1))
