"""Functions of atexit run last in, first out, and an exception in one keeps none from running."""

import atexit


@atexit.register
def first():
    print("first registered")


@atexit.register
def failing():
    raise ValueError("in atexit")


@atexit.register
def last():
    print("last registered")
    atexit.register(print, "registered at the end")


print("script done")
