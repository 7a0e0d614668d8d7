"""Objects in global variables are destroyed when the interpreter ends, with the modules they use still there."""

import os


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        os.write(1, f"{self.name} is gone\n".encode())


a = Noisy("a")
b = Noisy("b")
_private = Noisy("_private")
holder = [Noisy("in a list")]
cycle = Noisy("cycle")
cycle.itself = cycle
print("script done")
