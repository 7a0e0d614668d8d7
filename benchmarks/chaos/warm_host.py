"""The process inside a lab host that starts `muster` commands as forks of itself (warm.py), seen from outside."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiment import Failed
from muster.lab import Lab

LIMIT = 120.0


@dataclass
class Started:
    """One child of the warm process."""

    pid: int
    """On this machine."""
    inner: int
    """In its host."""
    code: int | None = None


class WarmHost:
    """The warm process of one host; it ends with the lab."""

    def __init__(self, lab: Lab, host: str, env: Mapping[str, str]) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("warm.py"))]
        pipe = subprocess.PIPE
        self._process = lab.popen(host, argv, env=dict(env), stdin=pipe, stdout=pipe, bufsize=0)
        self._lock = threading.Lock()
        self._begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended: dict[int, int] = {}
        self._children: dict[int, Started] = {}
        threading.Thread(target=self._read, daemon=True).start()
        self.pid = 0
        """On this machine, known after the first start."""

    def start(
        self,
        argvs: Sequence[Sequence[str]],
        folder: Path,
        env: Mapping[str, str],
        *,
        out: str = "output",
        become: bool = False,
    ) -> Started:
        """Run `muster` with these arguments, one after the other; `become`: become the first one, any command."""
        request = {"argvs": argvs, "cwd": str(folder), "env": dict(env), "out": str(folder / out), "exec": become}
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            inner = self._begun.get(timeout=LIMIT)
        except queue.Empty:
            raise Failed(f"no command was started within {LIMIT:.0f} s") from None
        self.pid = self.pid or _child_of(self._process.pid)
        with self._lock:
            code = self._ended.get(inner)
            child = Started(pid=0 if code is not None else _outer(self.pid, inner), inner=inner, code=code)
            self._children[inner] = child
        return child

    def close(self) -> None:
        """Forget it; the lab has ended it."""
        assert self._process.stdin
        self._process.wait(30)
        self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            what, pid, *code = line.split()
            if what == b"started":
                self._begun.put(int(pid))
                continue
            with self._lock:
                self._ended[int(pid)] = int(code[0])
                if int(pid) in self._children:
                    self._children[int(pid)].code = int(code[0])


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _outer(parent: int, inner: int) -> int:
    """The child of a process that has this id in its host; 0 if it has ended."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except OSError:
            continue
        if status.partition("NSpid:")[2].partition("\n")[0].split()[-1] == str(inner):
            return int(child)
    return 0


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
