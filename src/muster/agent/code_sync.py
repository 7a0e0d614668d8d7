"""The user's code on this host: is it the same as the controller's, and unpacking a copy sent by `--sync`."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..shared.replies import Comparison, Unpacked


def compare(cwd: str, script: str | None, digest: Sequence[int] | None) -> Comparison:
    """Whether the working directory exists and the script there has the given fingerprint."""
    if not os.path.isdir(cwd):
        return {"cwd": False, "script": "missing"}
    if script is None:
        return {"cwd": True, "script": "same"}
    try:
        with open(os.path.join(cwd, script), "rb") as file:
            found = fingerprint(file.read())
    except OSError:
        return {"cwd": True, "script": "missing"}
    return {"cwd": True, "script": "same" if found == digest else "different"}


def fingerprint(data: bytes) -> list[int]:
    """Size and CRC: it is to find an old copy, not an attacker, and hashlib costs every host 4 ms to load."""
    return [len(data), zlib.crc32(data)]


def code_folder(job: str) -> str:
    """Where --sync puts the code of a job: the rule of muster.job.state_folder, on this host."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "muster", "jobs", job, "code")


class Unpacking:
    """A tar archive that arrives in pieces and becomes a folder of the job; a child unpacks it meanwhile."""

    def __init__(self, job: str) -> None:
        self.folder = code_folder(job)
        # Hosts that share a home folder unpack at the same time: each into a folder of its own, and one becomes `code`.
        self.mine = f"{self.folder}.{os.uname().nodename}.{os.getpid()}"
        os.makedirs(self.mine, mode=0o700)
        self.archive = open(self.mine + ".tar", "w+b")  # noqa: SIM115, closed by finish
        self.child = 0
        self.request = 0

    def add(self, piece: str) -> None:
        """Take one base64 piece."""
        from base64 import b64decode

        self.archive.write(b64decode(piece))

    def finish(self, request: int) -> None:
        """Unpack in a child; `outcome` tells how it went when it has ended."""
        self.request = request
        self.archive.flush()
        self.child = os.fork()
        if self.child == 0:
            code = 1
            try:
                self._extract()
                code = 0
            except BaseException as error:
                os.write(2, f"muster: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)
        self.archive.close()

    def _extract(self) -> None:
        import shutil
        import tarfile

        os.unlink(self.archive.name)
        self.archive.seek(0)
        with tarfile.open(fileobj=self.archive) as archive:
            # The archive is the user's own: links that leave the folder, to data for example, stay what they are.
            if hasattr(tarfile, "tar_filter"):
                archive.extractall(self.mine, filter="fully_trusted")
            else:  # before Python 3.9.17
                archive.extractall(self.mine)
        try:
            os.rename(self.mine, self.folder)
        except OSError:
            if not os.path.isdir(self.folder):
                raise
            shutil.rmtree(self.mine, ignore_errors=True)

    def outcome(self, status: int) -> Unpacked:
        """The reply: the folder, or that it could not be written (the child has said why on stderr)."""
        if status:
            return {"problem": "see the message above", "folder": ""}
        return {"problem": "", "folder": self.folder}
