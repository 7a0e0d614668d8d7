"""A thread that is no daemon finishes its work after the script's last line, and before atexit."""

import atexit
import threading
import time

atexit.register(print, "atexit")


def work():
    for number in range(3):
        time.sleep(0.1)
        print("thread", number)
    print(threading.main_thread().is_alive())


threading.Thread(target=work).start()
print("script done")
