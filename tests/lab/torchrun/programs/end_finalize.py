"""weakref.finalize calls its functions at the end, newest first, unless its `atexit` is False."""

import weakref


class Thing:
    pass


one, two, three = Thing(), Thing(), Thing()
weakref.finalize(one, print, "one finalized")
weakref.finalize(two, print, "two finalized")
weakref.finalize(three, print, "three finalized").atexit = False
print("script done")
