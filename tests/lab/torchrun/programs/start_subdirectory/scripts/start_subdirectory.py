"""A script in a directory other than the working directory: sys.path[0] is the script's."""

import os
import sys

import beside

print(sys.path[0], os.getcwd(), sys.argv[0], __file__, beside.WORD)
