"""A daemon thread that never ends does not keep the process alive."""

import threading
import time


def work():
    while True:
        time.sleep(0.01)


threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("script done", threading.active_count())
