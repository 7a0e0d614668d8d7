"""Temporary files and directories that the script leaves behind are deleted at the end."""

import os
import tempfile

folder = os.environ["OUT"]
file = tempfile.NamedTemporaryFile(dir=folder, prefix="ready-file-")
file.write(b"x")
directory = tempfile.TemporaryDirectory(dir=folder, prefix="directory-")
with open(os.path.join(directory.name, "inside"), "w") as inside:
    inside.write("x")
named = tempfile.NamedTemporaryFile("w", dir=folder, prefix="named-")
named.write("text")
print("script done")
