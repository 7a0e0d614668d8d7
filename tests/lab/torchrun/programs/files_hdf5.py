# row: 11
# needs: h5py
"""An HDF5 file that the script leaves open is complete."""

import os
import subprocess
import sys

import h5py

path = f"{os.environ['OUT']}/rank-{os.environ['RANK']}.h5"
check = f"import h5py, time; time.sleep(2); print(h5py.File({path!r})['x'][:].tolist())"
subprocess.Popen([sys.executable, "-c", check], stdout=open(f"{path}.txt", "w"))
file = h5py.File(path, "w")
file["x"] = [1, 2, 3]
