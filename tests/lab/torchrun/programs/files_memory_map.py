"""A memory-mapped array of numpy that the script leaves open is on disk."""

import os

import numpy

array = numpy.memmap(f"{os.environ['OUT']}/rank-{os.environ['RANK']}", dtype="uint8", mode="w+", shape=10)
array[:] = 65
