"""A multiprocessing.Process that runs when the script ends is waited for; a daemon is ended."""

import multiprocessing
import os
import time


def work(seconds):
    time.sleep(seconds)
    with open(f"{os.environ['OUT']}/child-{os.environ['RANK']}-{seconds}", "w") as file:
        file.write("finished")


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    context.Process(target=work, args=(0.5,)).start()
    context.Process(target=work, args=(30,), daemon=True).start()
    print("script done")
