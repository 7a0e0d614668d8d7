"""Random numbers differ between ranks unless they are seeded, and agree when they are."""

import os
import random
import secrets
import tempfile
import time
import uuid
from pathlib import Path

import numpy
import torch

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
mine = [torch.initial_seed(), torch.rand(1).item(), random.random(), numpy.random.rand(), uuid.uuid4().hex]
mine += [secrets.token_hex(), tempfile.mktemp()]
(out / f"ready-new-{rank}").write_text(repr(mine))
(out / f"ready-new-{rank}").rename(out / f"ready-seeds-{rank}")
other = out / f"ready-seeds-{1 - int(rank)}"
while not other.exists():
    time.sleep(0.02)
print([one != two for one, two in zip(mine, eval(other.read_text()), strict=True)])
torch.manual_seed(3), random.seed(3), numpy.random.seed(3)
print(torch.rand(1).item(), random.random(), numpy.random.rand(), torch.initial_seed())
