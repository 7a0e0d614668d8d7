"""A variable that the script sets is seen by C code and by children, and one it deletes is gone."""

import ctypes
import os
import subprocess

os.environ["MINE"] = "set"
del os.environ["ROLE_NAME"]
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"MINE"), libc.getenv(b"ROLE_NAME"), libc.getenv(b"RANK") == os.environ["RANK"].encode())
print(subprocess.run("echo $MINE $ROLE_NAME $RANK", shell=True, stdout=-1).stdout)
