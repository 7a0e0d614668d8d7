"""A shelf with writeback that the script leaves open: it is written when it is destroyed."""

import os
import shelve

path = f"shelf-{os.environ['RANK']}"
shelf = shelve.open(path, writeback=True)
shelf["list"] = [1]
shelf.sync()
shelf["list"].append(2)


class Reader:
    def __del__(self, open=shelve.open, write=os.write):
        write(1, repr(dict(open(path, "r"))).encode())


print(sorted(name for name in os.listdir() if name.startswith(path))[0].startswith(path))
