"""Running recipes for tests: forks of one interpreter that has imported torch, since that is most of their cost."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bare import ENV
from waiting import patience

KEEP = ("--keep=5m", "--preload=torch._dynamo", "--preload=torch.distributed.checkpoint")
"""Options of `muster run` with which the runs of a module share a zygote that has imported what recipes need.

An optimizer's first step imports torch._dynamo, which takes half a second.
"""

# It computes nothing itself: a fork has no thread but its own.
TEMPLATE = """
import gc, json, os, runpy, socket, sys, warnings
import torch, torch.distributed, torch.distributed.checkpoint, torch._dynamo
gc.freeze()  # else the garbage collector copies all that forks share: 0.8 s of CPU time instead of 0.2 at their end

requests, here = socket.socket(fileno=os.dup(0)), os.getpid()
while os.getpid() == here:
    data, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
    if not data:
        sys.exit()
    request = json.loads(data)
    if "wait" in request:
        answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
    else:
        answer = os.fork()
    if os.getpid() == here:
        for file in files:
            os.close(file)
        requests.send(json.dumps(answer).encode())

requests.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
os.environ.clear()
os.environ.update(request["env"])
os.chdir(request["folder"])
if request["strict"]:
    warnings.simplefilter("error")
first, *rest = request["argv"]
if first == "-c":
    exec(rest[0], {"__name__": "__main__"})
elif first == "-m":
    sys.path[0], sys.argv = os.getcwd(), rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0], sys.argv = os.path.dirname(first), request["argv"]
    runpy.run_path(first, run_name="__main__")
"""

SERVER = """
import contextlib, io, json, os, runpy, sys, traceback
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
    """A recipe that has run to its end."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line printed."""
        return self.out.splitlines()[-1]


class Template:
    """A Python process with torch imported, whose forks run programs."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error::FutureWarning", "-c", TEMPLATE],
                env=ENV,
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,  # as little a terminal as what its forks get
            )

    def ask(self, request: dict[str, Any], *files: int) -> int:
        """The answer to a request: the ID of a new process, or the exit code of one that has ended."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        answer = self._socket.recv(100)
        assert answer, f"the template ended with {self._process.wait(10)}"
        return json.loads(answer)

    def wait(self, pid: int, limit: float) -> int:
        """Wait for the end of a fork, and kill it if that does not come."""
        self._socket.settimeout(patience(limit))
        try:
            return self.ask({"wait": pid})
        except BaseException:  # a test that pytest ends, too: the answer must not be taken for that to the next request
            os.kill(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            self._socket.recv(100)
            raise
        finally:
            self._socket.settimeout(None)


@cache
def template() -> Template:
    """The template of this process. It ends when this process does and so nobody can ask it any longer."""
    return Template()


class Forked:
    """`python ARGV` in a folder, as a fork of the template; ARGV may begin with -m or -c."""

    def __init__(
        self, *argv: object, folder: Path, strict: bool = False, stderr: int | None = None, **env: str
    ) -> None:
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        words = [str(word) for word in argv]
        request = {"argv": words, "folder": str(folder), "strict": strict, "env": {**ENV, **env}}
        with open(os.devnull, "rb") as null:
            self._pid = template().ask(request, null.fileno(), self._out, self._err if stderr is None else stderr)

    def end(self, limit: float = 100) -> Ended:
        """Wait for its end."""
        code = template().wait(self._pid, limit)
        texts: list[str] = []
        for number in (self._out, self._err):
            with os.fdopen(number) as file:
                file.seek(0)
                texts.append(file.read())
        return Ended(code=code, out=texts[0], err=texts[1])


class Interpreter:
    """A Python process with torch imported, which runs one recipe after the other, as a world of one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        request = {"argv": ["-c", SERVER], "folder": str(folder), "strict": False, "env": ENV}
        (stdin, requests), (answers, stdout) = os.pipe(), os.pipe()
        self._requests, self._answers = os.fdopen(requests, "w"), os.fdopen(answers)
        self._pid = template().ask(request, stdin, stdout, 2)
        os.close(stdin)
        os.close(stdout)

    def run(self, module: str, *argv: object, folder: Path | None = None) -> Ended:
        """`python -m MODULE ARGV` in a folder."""
        request = {"module": module, "argv": [str(word) for word in argv], "folder": str(folder or self._folder)}
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        assert answer, "the interpreter has ended; its stderr says why"
        code, out, err = json.loads(answer)
        return Ended(code=code, out=out, err=err)

    def close(self) -> None:
        """End it."""
        self._requests.close()
        self._answers.close()
        template().wait(self._pid, 10)


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
