"""Prints which modules of other packages are loaded at the start."""

import sys

roots = {name.partition(".")[0] for name in sys.modules}
print(sorted(root for root in roots if root not in sys.stdlib_module_names))
print([name for name in ("subprocess", "logging", "asyncio") if name in sys.modules])
