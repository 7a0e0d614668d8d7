# exit: 1
# ranks: 1
"""An uncaught exception: the traceback shows the script's frames only."""


def outer():
    inner(0)


def inner(number):
    try:
        1 / number
    except ZeroDivisionError as error:
        raise ValueError("chained") from error


outer()
