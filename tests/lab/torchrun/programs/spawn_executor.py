# ranks: 1
"""ProcessPoolExecutor by spawn, left open at the end."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def square(number):
    return number * number


if __name__ == "__main__":
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    print(list(pool.map(square, range(5))))
