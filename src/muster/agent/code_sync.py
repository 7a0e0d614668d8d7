"""Compares the user's code on this host with the controller's, and unpacks a copy sent by `--sync`."""

from __future__ import annotations

import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..shared.light_selectors import Selector
    from ..shared.replies import Comparison, Done, Unpacked
    from ..shared.requests import MoreResults, ReadResults
    from .job_results import ResultFiles


def compare(cwd: str, script: str | None, digest: Sequence[int] | None) -> Comparison:
    """Whether the working directory exists and the script there has the given fingerprint."""
    if not os.path.isdir(cwd):
        return {"cwd": False, "script": "missing", "missing": ""}
    if script is None:
        return {"cwd": True, "script": "same", "missing": ""}
    try:
        with open(os.path.join(cwd, script), "rb") as file:
            found = fingerprint(file.read())
    except OSError:
        return {"cwd": True, "script": "missing", "missing": ""}
    return {"cwd": True, "script": "same" if found == digest else "different", "missing": ""}


def first_missing(imports: Sequence[str], cwd: str, script: str | None) -> str:
    """The first of these top-level modules that is not installed on this host, without importing any; empty if none.

    Modules after one of the user's own are not checked, because that one may change sys.path.
    """
    path = os.path.join(cwd, script or "")
    folders = {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}
    before = sys.path
    sys.path = [*folders, *filter(None, before)]
    try:
        for name in imports:
            specs = (finder.find_spec(name, None) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return "" if name in sys.modules else name  # __main__, or a module that a .pth file creates
            if spec.origin in ("built-in", "frozen"):
                continue
            home = os.path.dirname(spec.origin or "")
            if not home or {home, os.path.dirname(home)} & folders:
                return ""
    except Exception:  # a finder of the site's: the import itself will show what is wrong
        return ""
    finally:
        sys.path = before
    return ""


def fingerprint(data: bytes) -> list[int]:
    """Size and CRC, which is enough to detect an old copy; importing hashlib would take 4 ms."""
    return [len(data), zlib.crc32(data)]


def code_folder(job: str) -> str:
    """Where --sync puts the code of a job."""
    return os.path.join(_state_folder(), "jobs", job, "code")


def _state_folder() -> str:
    """The state directory of Muster on this host, by the same rule as muster.job.state_folder.

    In a container whose root is read-only, a directory in /tmp or in /dev/shm, which is always writable.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    others = [f"{base}/muster-{os.getuid()}/state" for base in ("/tmp", "/dev/shm")]
    found = (folder for folder in (state, *others) if _is_writable(folder))
    return os.path.join(next(found, state), "muster")


def _is_writable(folder: str) -> bool:
    """Whether this directory of ours can be made, or be written to."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
        if folder in ("/tmp", "/dev/shm"):  # they belong to everybody
            return os.access(folder, os.W_OK)
    is_own = os.getuid() in (0, os.lstat(folder).st_uid)
    return os.access(folder, os.W_OK) and (is_own or not folder.startswith(("/tmp/", "/dev/shm/")))


class Unpacking:
    """Receives a tar archive in pieces, and unpacks it into the job directory in a child process.

    Only this user can read it. The archive has no name while it arrives, so that nothing of it is left by SIGKILL.
    """

    def __init__(self, job: str) -> None:
        self.folder = code_folder(job)
        # Hosts that share a home directory unpack concurrently, each into its own directory; one becomes `code`.
        self.mine = f"{self.folder}.{os.uname().nodename}.{os.getpid()}"
        before = os.umask(0o077)  # makedirs gives a mode to the last directory only
        try:
            os.makedirs(self.mine)
            os.chmod(_state_folder(), 0o700)  # it may be older
            name = self.mine + ".tar"
            self.archive = open(name, "w+b")  # noqa: SIM115, closed by finish
            os.unlink(name)
        finally:
            os.umask(before)
        self.child = 0
        self.request = 0

    def add(self, piece: str) -> None:
        """Add a base64 piece."""
        from base64 import b64decode

        self.archive.write(b64decode(piece))

    def finish(self, request: int) -> None:
        """Unpack in a child process; call `outcome` after it has exited."""
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

        self.archive.seek(0)
        with tarfile.open(fileobj=self.archive) as archive:
            # The archive is the user's own, so links to outside the directory, for example to data, are allowed.
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
        """The reply: the directory, or an error whose cause the child has printed to stderr."""
        if status:
            return {"problem": "see the message above", "folder": ""}
        return {"problem": "", "folder": self.folder}


class Results:
    """Files that ranks have left in the code of a job, for --fetch; nothing is loaded before they are asked for."""

    def __init__(self, selector: Selector, transmit: Callable[[bytes], None], job: str) -> None:
        self._selector = selector
        self._transmit = transmit
        self._job = job
        self._files: ResultFiles | None = None

    def begin(self, message: ReadResults, number: int) -> Done:
        """Begin to look for files, or to read them."""
        from .job_results import ResultFiles  # here, because only --fetch needs it

        self.end()
        self._files = ResultFiles(self._selector, self._transmit, message, code_folder(self._job))
        return {}

    def more(self, message: MoreResults, number: int) -> None:
        """Send the next part of them."""
        if self._files is not None:
            self._files.more(number)

    def end(self) -> None:
        """End the process that reads them."""
        if self._files is not None:
            self._files.end()
            self._files = None
