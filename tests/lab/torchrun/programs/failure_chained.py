# exit: 1
# ranks: 1
"""A traceback with a cause, a context and a message of several lines."""


class Many(Exception):
    def __str__(self):
        return "line one\nline two"


def fail():
    try:
        {}["missing"]
    except KeyError:
        raise Many()


fail()
