"""Muster as it is sent to another host: an archive of this package, and the code that unpacks and imports it there."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from functools import cache
from pathlib import Path

import muster

_LEFT_OUT = frozenset({"__pycache__", "bench", "lab", "recipes", "training"})
"""Parts of the package that neither a controller nor the commands about jobs need."""

# Sent as one line, so it is short. It runs on any Python 3, to report one that is too old. Numbers and JSON come from
# descriptor 0, and each answer is a line that no shell profile prints.
_STAGE = """\
import sys
if sys.path[:1]==[""]:del sys.path[0]
import json,os
def say(**said):os.write(1,b"\\n\\x01muster "+json.dumps(said).encode()+b"\\n")
def fail(why,hint):say(error=why,hint=hint);sys.exit(125)
def take(n):
 b=bytearray()
 while len(b)<n:
  c=os.read(0,min(n-len(b),1<<20))
  if not c:sys.exit(125)
  b+=c
 return bytes(b)
def frame():return json.loads(take(int(take(16),16)).decode())
if sys.version_info<(3,10):fail("Python 3.10 or newer is required there, this is %d.%d"%sys.version_info[:2],
 "choose another Python with `--python PATH`")
head=frame()
home=os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"),"muster","packages")
try:
 os.makedirs(home,0o700,exist_ok=True)
 found=os.lstat(home)
 if found.st_uid!=os.getuid() or found.st_mode&0o022:fail(
  home+" can be changed by other users","run `chmod 700 "+home+"` there")
 path=os.path.join(home,head["package"])
 if not os.path.isdir(path):
  say(need=True)
  import hashlib,io,shutil,tarfile,tempfile
  sent=frame()
  data=take(sent["size"])
  if hashlib.sha256(data).hexdigest()!=sent["package"]:fail("Muster arrived damaged","try again")
  path=os.path.join(home,sent["package"])
  new=tempfile.mkdtemp(dir=home)
  with tarfile.open(fileobj=io.BytesIO(data)) as tar:
   tar.extractall(new,**({"filter":"data"} if hasattr(tarfile,"data_filter") else {}))
  try:os.rename(new,path)
  except OSError:
   shutil.rmtree(new,True)
   if not os.path.isdir(path):raise
except OSError as e:fail(
 "could not store Muster in %s (%s)"%(home,e.strerror or e),"make room there")
sys.path.insert(0,path)
from muster.cli.remote_host import main
sys.exit(main(head["request"]))
"""

STAGE = b"exec(" + ascii(_STAGE).encode() + b")\n"
"""What `bootstrap.COMMAND` reads on the other host: the line that receives, unpacks and runs the package."""

GREETING = b"\n\x01muster "
"""Precedes each message from the other host; what comes before the first one is the output of a shell profile."""


@cache
def package() -> tuple[str, bytes]:
    """The package's digest, and the package as a compressed tar; the same files give the same bytes."""
    root = Path(muster.__file__).parent
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(_files(root)):
            info = tarfile.TarInfo(f"muster/{path.relative_to(root).as_posix()}")
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data


def _files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in names if not name.endswith((".pyc", ".pyo"))]
    return found
