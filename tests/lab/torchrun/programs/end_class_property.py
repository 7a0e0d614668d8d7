# row: 9
"""Holds an object whose `__class__` is a property that raises: nobody but the script may run its code."""


class Odd:
    @property
    def __class__(self):
        print("user code ran")
        raise RuntimeError("asked for __class__")

    def __getattr__(self, name):
        print("user code ran for", name)
        raise RuntimeError(f"asked for {name}")


keep = Odd()
print("script done")
