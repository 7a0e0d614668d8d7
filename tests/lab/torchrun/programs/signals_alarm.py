"""An alarm interrupts a sleep."""

import signal
import time


class Timeout(Exception):
    pass


def handle(number, frame):
    raise Timeout


signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    time.sleep(30)
except Timeout:
    print("interrupted")
