# row: 12
"""TMPDIR, set by the script, is where temporary files go."""

import os

os.environ["TMPDIR"] = os.environ["OUT"]

import tempfile

print(tempfile.gettempdir())
with tempfile.NamedTemporaryFile() as file:
    print(file.name.startswith(os.environ["OUT"]))
