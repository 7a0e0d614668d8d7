"""Exits successfully from inside a function, a try block and a with block."""

import contextlib
import sys


@contextlib.contextmanager
def closing():
    try:
        yield
    finally:
        print("with block left")


def main():
    try:
        with closing():
            sys.exit()
    finally:
        print("finally")


main()
print("never")
