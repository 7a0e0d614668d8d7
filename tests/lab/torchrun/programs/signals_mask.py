"""A signal that is blocked waits until sigwait() takes it."""

import os
import signal
import threading

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending())
print(signal.sigwait([signal.SIGUSR1]))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
print(signal.sigtimedwait([signal.SIGUSR1], 10).si_signo)
