# exit: 1
# ranks: 1
"""Functions of atexit and finally blocks run after an exception too."""

import atexit

atexit.register(print, "atexit")
try:
    raise RuntimeError("the failure")
finally:
    print("finally")
