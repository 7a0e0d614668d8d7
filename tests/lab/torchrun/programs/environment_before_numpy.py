# row: 12
# ranks: 1
"""OPENBLAS_NUM_THREADS, set by the script before it imports numpy, decides how many threads multiply matrices."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy

numpy.ones((500, 500)) @ numpy.ones((500, 500))
print(len(os.listdir("/proc/self/task")))
