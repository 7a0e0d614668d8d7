# row: 9
"""Holds a weak reference proxy whose object is gone, as compiled models do."""

import weakref


class A:
    pass


a = A()
keep = weakref.proxy(a)
callback = weakref.ref(a, lambda reference: print("callback"))
del a
print("script done")
