# row: 16
"""Warnings of top-level code with a stacklevel that points beyond the script."""

import warnings


def old():
    warnings.warn("old() is deprecated", DeprecationWarning, stacklevel=2)


old()
warnings.warn("level 1", stacklevel=1)
warnings.warn("level 2", stacklevel=2)
warnings.warn("level 3", stacklevel=3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("caught", stacklevel=2)
print([(str(one.message), one.filename, one.lineno) for one in caught])
