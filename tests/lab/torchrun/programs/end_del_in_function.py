"""Objects that only a closure, a class or a generator holds are destroyed too."""

import os


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        os.write(1, f"{self.name} is gone\n".encode())


class Config:
    held = Noisy("class attribute")


def make():
    kept = Noisy("closure")
    return lambda: kept


def generate():
    try:
        yield 1
    finally:
        os.write(1, b"generator closed\n")


function = make()
generator = generate()
next(generator)
print("script done")
