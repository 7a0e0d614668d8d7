# row: 11
"""A zip archive that the script leaves open is completed when it is destroyed."""

import os
import zipfile

archive = zipfile.ZipFile(f"{os.environ['OUT']}/rank-{os.environ['RANK']}.zip", "w")
archive.writestr("a.txt", "in the archive")
archive.writestr("b.txt", "too")
