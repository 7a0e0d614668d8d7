"""Handlers of SIGTERM, SIGUSR1, SIGUSR2, SIGHUP and SIGINT run, and the script continues."""

import os
import signal


def handle(number, frame):
    print("got", signal.Signals(number).name, frame.f_code.co_name)


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    print(signal.signal(number, handle) in (signal.SIG_DFL, signal.default_int_handler))
    os.kill(os.getpid(), number)
print("script done")
