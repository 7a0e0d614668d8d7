"""An exception in a thread is printed, and the exit code stays 0."""

import threading


def fail():
    raise RuntimeError("in a thread")


thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
print("script done")
