"""A script behind a symbolic link: Python looks for modules where the file really is."""

import os
import sys

import beside_real

print(sys.path[0], os.getcwd(), sys.argv[0], __file__, beside_real.WORD)
