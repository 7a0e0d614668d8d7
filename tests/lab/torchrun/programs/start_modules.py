# row: 12
"""Prints which modules are loaded before the script imports any: none of torch, none of the launcher."""

import sys

roots = {name.partition(".")[0] for name in sys.modules}
print(sorted(root for root in roots if root not in sys.stdlib_module_names))
print([name for name in ("torch", "numpy", "muster", "subprocess", "logging", "asyncio") if name in sys.modules])
