# ranks: 1
# row: 12
"""TORCH_LOGS, set by the script before it imports torch, decides which parts of torch log."""

import os

os.environ["TORCH_LOGS"] = "+dynamo"


import logging

print(logging.getLogger("torch._dynamo").getEffectiveLevel())
