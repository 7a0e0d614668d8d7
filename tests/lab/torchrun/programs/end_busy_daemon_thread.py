# runs: 50
"""Daemon threads that compute and print nothing while the interpreter ends."""

import threading


def work():
    while True:
        sum(range(1000))


for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("script done")
