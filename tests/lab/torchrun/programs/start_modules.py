# row: 12
"""No module of torch or of the launcher is loaded before the script imports any, and none of the script's own."""

import sys

print([name for name in sys.modules if name.partition(".")[0] in ("torch", "muster", "start_modules", "__mp_main__")])
print("torch" in sys.modules, sys.modules.get("torch"), "torch.distributed" in sys.modules)

import torch

print(sys.modules["torch"] is torch, torch.__spec__.name, torch.__name__)
