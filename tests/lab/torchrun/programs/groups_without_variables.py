"""init_process_group where the script has removed what the launcher set: torch names the variable."""

import os

import torch.distributed as dist

for name in [name for name in os.environ if name.startswith(("MASTER_", "RANK", "WORLD", "TORCHELASTIC_"))]:
    del os.environ[name]
try:
    dist.init_process_group("gloo")
except ValueError as error:
    print(error)
print(dist.is_available(), dist.is_initialized(), dist.is_torchelastic_launched())
