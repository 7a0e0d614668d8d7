"""The user's code on this host: is it the same as the controller's, and unpacking a copy sent by `--sync`."""

from __future__ import annotations

import hashlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def compare(cwd: str, script: str | None, digest: str | None) -> dict[str, Any]:
    """Whether the working directory exists and the script there has the given SHA-256."""
    if not os.path.isdir(cwd):
        return {"cwd": False, "script": "missing"}
    if script is None:
        return {"cwd": True, "script": "same"}
    try:
        with open(os.path.join(cwd, script), "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return {"cwd": True, "script": "missing"}
    return {"cwd": True, "script": "same" if found == digest else "different"}


class Unpacking:
    """A tar archive that arrives in pieces and becomes a folder of the job."""

    def __init__(self, job: str) -> None:
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self.folder = os.path.join(state, "muster", "jobs", job, "code")
        self.data = bytearray()

    def add(self, piece: str) -> None:
        """Take one base64 piece."""
        from base64 import b64decode

        self.data += b64decode(piece)

    def finish(self) -> str:
        """Write the files and return the folder."""
        import io
        import shutil
        import socket
        import tarfile

        # Hosts that share a home folder unpack at the same time: each into a folder of its own, and one becomes `code`.
        mine = f"{self.folder}.{socket.gethostname()}.{os.getpid()}"
        os.makedirs(mine, mode=0o700)
        with tarfile.open(fileobj=io.BytesIO(bytes(self.data))) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(mine, filter="data")
            else:  # Python before 3.9.17: the archive comes from the user's own controller
                archive.extractall(mine)
        try:
            os.rename(mine, self.folder)
        except OSError:
            if not os.path.isdir(self.folder):
                raise
            shutil.rmtree(mine, ignore_errors=True)
        return self.folder
