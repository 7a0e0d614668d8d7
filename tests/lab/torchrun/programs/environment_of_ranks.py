"""Every variable that the launcher adds, with those values that are the same in every run."""

import os

before = os.environ["BEFORE"].split(":")
changing = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
for name in sorted(set(os.environ) - set(before)):
    print(name, "..." if name in changing else os.environ[name])
print([name for name in before if name not in os.environ])
print(os.environ["MASTER_PORT"].isdigit(), bool(os.environ["TORCHELASTIC_RUN_ID"]))
