"""Tasks that a ThreadPoolExecutor still has when the script ends are done."""

import time
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)


def task(number):
    time.sleep(0.05)
    with open(f"task-{number}", "w"):
        pass


futures = [pool.submit(task, number) for number in range(6)]
futures[-1].add_done_callback(lambda future: print("last task done"))
print("script done")
