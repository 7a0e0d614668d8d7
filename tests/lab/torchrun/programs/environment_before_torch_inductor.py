# ranks: 1
# row: 12
"""TORCHINDUCTOR_MAX_AUTOTUNE, set by the script before it imports torch, decides settings of inductor."""

import os

os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "3"


from torch._inductor import config

print(config.max_autotune, config.compile_threads)
