"""multiprocessing.Process with each start method."""

import multiprocessing
import os


def work(queue, method):
    queue.put((method, os.environ["RANK"], __name__, multiprocessing.parent_process() is not None))


if __name__ == "__main__":
    print(multiprocessing.get_start_method(), multiprocessing.current_process().name, multiprocessing.parent_process())
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue, method))
        process.start()
        print(queue.get(timeout=30))
        process.join()
        print(process.exitcode, process.name)
