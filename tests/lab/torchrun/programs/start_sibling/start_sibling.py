"""Imports a module that is beside the script, and one from a package there."""

import neighbor
from shelf import book

print(neighbor.WORD, neighbor.__file__, book.__name__, book.__file__)
