"""podman in a lab: it runs on every host, with an image that has almost no files of its own.

`localhost/muster-lab:latest` has empty directories and the symlinks /bin, /lib and so on, but no programs: with
`-v /usr:/usr:ro` the programs of this machine run in it, with `volumes()` also this Python. Building it takes a
fraction of a second and needs no network.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from muster.errors import LabError
from muster.lab.service import Run, Service

IMAGE = "localhost/muster-lab:latest"

FOLDERS = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var", "var/tmp")
OPEN_TO_ALL = ("tmp", "var/tmp")
FILES = {"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"}


def image() -> bytes:
    """The file system of the image, as a tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name in OPEN_TO_ALL else 0o755
            tar.addfile(folder)
        for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
            if os.path.isdir(f"/usr/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
        for name, text in FILES.items():
            file = tarfile.TarInfo(name)
            file.size = len(text)
            tar.addfile(file, io.BytesIO(text.encode()))
        # The loader needs it to find libraries outside its default directories, such as those below /usr/local.
        if os.path.exists("/etc/ld.so.cache"):
            tar.add("/etc/ld.so.cache", "etc/ld.so.cache")
    return archive.getvalue()


def volumes() -> list[str]:
    """The options of `podman run` that let this Python and its packages run in the image."""
    needed = {"/usr", sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])}
    outer = [path for path in sorted(needed) if not any(path.startswith(f"{other}/") for other in needed)]
    return [f"--volume={path}:{path}:ro" for path in outer]


class Podman(Service):
    """podman and an image on all hosts of a lab."""

    title = "podman"
    script = "podman.sh"
    programs = ("podman", "crun")

    def write(self, folder: Path, header: str = "") -> None:
        """Write the image and the boot script that imports it."""
        (folder / "image.tar").write_bytes(image())
        super().write(folder, f"IMAGE={IMAGE}\n{header}")

    def wait(self, hosts: Sequence[str], run: Run) -> None:
        """Try one container on the first host; if it fails there, it fails on the others too."""
        argv = ["podman", "run", "--rm", "--network=host", *volumes(), IMAGE, "true"]
        done = run(hosts[0], argv, timeout=30)
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise LabError(f"podman could not run a container on {hosts[0]}: {said}")
