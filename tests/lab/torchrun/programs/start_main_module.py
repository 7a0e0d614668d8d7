"""Prints what the module __main__ has before the script defines anything."""

names = {name: value for name, value in globals().items() if name not in ("__builtins__", "__loader__")}
print(sorted(globals()))
print({name: value for name, value in names.items() if name != "names"})
print(type(__loader__).__name__, __loader__.name, __loader__.path, type(__builtins__).__name__)

import sys

print(sys.modules["__main__"].__dict__ is globals(), __import__("__main__").__dict__ is globals())
print("__mp_main__" in sys.modules)
