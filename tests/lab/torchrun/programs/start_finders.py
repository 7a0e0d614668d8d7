"""Prints who finds modules for the script."""

import sys

print([type(finder).__name__ for finder in sys.path_hooks])
print([finder if isinstance(finder, type) else type(finder) for finder in sys.meta_path])
