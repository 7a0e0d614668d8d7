"""Running recipes for tests."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bare import ENV
from waiting import end, ending, patience

KEEP = ("--keep=5m", "--preload=torch._dynamo", "--preload=torch.distributed.checkpoint")
"""Options of `muster run` with which the runs of a module share a zygote that has imported what recipes need.

An optimizer's first step imports torch._dynamo, which takes 1.0 s of CPU time.
"""

SERVER = """
import contextlib, io, json, os, runpy, sys, traceback, warnings
warnings.simplefilter("error", FutureWarning)
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    request = json.loads(line)
    os.chdir(request["folder"])
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv[1:] = request["argv"]
        sys.modules.pop(request["module"], None)  # an import of an earlier run; runpy warns about it
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        except SystemExit as left:
            code = left.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    answers.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\\n")
    answers.flush()
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command or a recipe that has run to its end."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line printed."""
        return self.out.splitlines()[-1]


class Command:
    """A command on this machine, with an environment of its own."""

    def __init__(self, *argv: object, folder: Path | None = None, stderr: int = subprocess.PIPE, **env: str) -> None:
        self._process = subprocess.Popen(
            [str(word) for word in argv],
            cwd=folder,
            env={**ENV, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def end(self) -> Ended:
        """Wait for its end."""
        with ending(self._process) as process:
            out, err = process.communicate(timeout=patience(170))
        return Ended(code=process.returncode, out=out, err=err or "")


class Interpreter:
    """A Python process which runs one recipe after the other, as a world of one."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._folder = folder
        pipe = subprocess.PIPE
        argv = [python, "-c", SERVER]
        self._process = subprocess.Popen(argv, cwd=folder, env=ENV, stdin=pipe, stdout=pipe, text=True)

    def run(self, module: str, *argv: object, folder: Path | None = None) -> Ended:
        """`python -m MODULE ARGV` in a folder."""
        request = {"module": module, "argv": [str(word) for word in argv], "folder": str(folder or self._folder)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the interpreter has ended; its stderr says why"
        code, out, err = json.loads(answer)
        return Ended(code=code, out=out, err=err)

    def close(self) -> None:
        """End it."""
        end(self._process)


def wrong(ended: Ended, *words: str, code: int = 2) -> None:
    """Check that stderr has one `error:` line with these words, perhaps a hint, and nothing else."""
    assert ended.code == code, ended.err
    lines = ended.err.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2
    assert all(word in lines[0] for word in words), lines[0]


def write_idx(path: Path, sizes: tuple[int, ...], data: bytes) -> None:
    """Write a file of the idx format, as MNIST's are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + data)


def write_mnist(folder: Path, train: int, test: int) -> None:
    """Write the four files with images that a network learns at once: each class has its own bright stripe."""
    stripes = [
        bytes(
            200 if row in (2 * label + 4, 2 * label + 5) else (row * column * 7) % 32
            for row in range(28)
            for column in range(28)
        )
        for label in range(10)
    ]
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(i % 10 for i in range(count))
        images = b"".join(stripes[label] for label in labels)
        write_idx(folder / f"{name}-images-idx3-ubyte", (count, 28, 28), images)
        write_idx(folder / f"{name}-labels-idx1-ubyte", (count,), labels)


def write_cifar(folder: Path, train: int, test: int) -> Path:
    """Write `cifar-10-batches-py` with images of one color for each class."""
    import numpy
    from numpy.typing import NDArray

    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name, count in (("data_batch_1", train // 2), ("data_batch_2", train - train // 2), ("test_batch", test)):
        labels = [i % 10 for i in range(count)]
        colours = numpy.array([[25 * label, 255 - 25 * label, (80 * label) % 256] for label in labels], numpy.uint8)
        noise = numpy.random.default_rng(0).integers(0, 8, (count, 3, 32, 32), numpy.uint8)
        data: NDArray[numpy.uint8] = numpy.reshape(colours[:, :, None, None] // 2 + noise, (count, -1))
        with (batches / name).open("wb") as file:
            pickle.dump({b"data": data, b"labels": labels}, file, protocol=2)
    return batches
