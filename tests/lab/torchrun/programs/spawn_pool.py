"""multiprocessing.Pool, left open at the end, and a Manager."""

import multiprocessing


def square(number):
    return number * number


if __name__ == "__main__":
    pool = multiprocessing.Pool(2)
    print(pool.map(square, range(5)))
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["x"] = 1
        print(shared)
    print(pool.apply(square, (9,)))
