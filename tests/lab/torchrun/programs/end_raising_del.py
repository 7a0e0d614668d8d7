"""An exception in __del__ at the end is reported on stderr, and the exit code stays 0."""


class Raising:
    def __del__(self):
        raise ValueError("in __del__")


keep = Raising()
print("script done")
