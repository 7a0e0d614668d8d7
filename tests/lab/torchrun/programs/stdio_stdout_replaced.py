# exit: 120
# ranks: 1
"""sys.stdout is an object without flush() or fileno()."""

import sys


class Tee:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text.upper())


sys.stdout = Tee(sys.stdout)
print("shouted")
