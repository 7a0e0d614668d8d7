"""MNIST's four files: download what is missing, read the idx format."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import torch
from torch import Tensor

import muster

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = {  # with the MD5 sums that torchvision also checks
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
DOWNLOAD_LIMIT = 20.0
"""Timeout of a mirror in seconds."""


def find(folder: Path, name: str) -> Path | None:
    """Return the path of an MNIST file, compressed or not, if it exists."""
    return next((path for path in (folder / name.removesuffix(".gz"), folder / name) if path.exists()), None)


def read_idx(path: Path) -> Tensor:
    """Read a file in idx format, compressed or not: two zero bytes, type, dimensions, sizes, data."""
    again = "remove the file to download it again"
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise muster.UsageError(f"cannot read {path}: {error}", hint=again) from None
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise muster.UsageError(f"{path} is not an idx file of bytes", hint=again)
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:]
    wanted = torch.Size(sizes).numel()
    if len(data) != wanted:
        raise muster.UsageError(f"{path} has {len(data):,} bytes of data instead of {wanted:,}", hint=again)
    return data.reshape(sizes)


def download(folder: Path) -> None:
    """Download missing files; each is checked and written atomically."""
    for name, md5 in FILES.items():
        if find(folder, name):
            continue
        troubles = [fetch(mirror + name, folder / name, md5) for mirror in MIRRORS]
        if all(troubles):
            raise muster.UsageError(
                f"{folder} has no {name}, and the download failed: {'; '.join(troubles)}",
                hint="point --data DIR to the four idx files, or use --synthetic to train without them",
            )


def fetch(url: str, target: Path, md5: str) -> str:
    """Download one file; return the error, or an empty string on success."""
    if target.exists():
        return ""
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_LIMIT) as response:
            content = response.read()
        if hashlib.md5(content).hexdigest() != md5:
            return f"{url} has the wrong MD5 sum"
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(target)
    except urllib.error.HTTPError as error:
        return f"{url}: {error}"
    except OSError as error:
        return f"{url}: {getattr(error, 'reason', error)}"
    return ""
