"""How deep the script may recurse: no frame of a launcher takes a part of the limit."""

import sys


def deeper(level):
    try:
        return deeper(level + 1)
    except RecursionError:
        return level


print(sys.getrecursionlimit() - deeper(1))
