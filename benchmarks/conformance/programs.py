"""The programs of `tests/lab/torchrun/programs`, and the options that each declares in comments on its first lines."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "lab" / "torchrun" / "programs"

OPTIONS = (
    "ranks",
    "args",
    "stdin",
    "env",
    "muster",
    "signal",
    "needs",
    "exit",
    "row",
    "stderr",
    "torchrun",
    "runs",
    "slow",
)
"""The options of a header:

- `# ranks: 1`: number of ranks, 2 by default.
- `# args: --lr 0.1 "a b"`: arguments of the program.
- `# stdin: text`: its standard input; `\\n` is a line break. The default is /dev/null.
- `# env: NAME=VALUE`: an environment variable of the launcher. May be repeated.
- `# muster: --restarts 1`: options of `muster run`.
- `# signal: SIGINT`: sent to the launcher when every rank has written `$OUT/ready-RANK`.
- `# needs: h5py`: a module or a program without which the program is skipped.
- `# exit: 3`: the exit code with which it fails, also used if torchrun does not run it.
- `# row: 9`: the row of shared/notes/held-out.md that it reproduces.
- `# stderr: not compared: REASON`: only stdout and files count.
- `# torchrun: aborts sometimes: REASON`, `fails sometimes`, `hangs sometimes`: torchrun gets three tries, Muster one.
- `# torchrun: not run: REASON`: Muster must end with `exit`.
- `# slow: REASON`: pytest runs it only if CONFORMANCE_SLOW is set.
- `# runs: 50`: the default number of runs of the stress driver.
"""

_HEADER = re.compile(rf"# ({'|'.join(OPTIONS)}): (.*)")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and the options of its header."""

    name: str
    path: Path
    """A file, or a directory with a file of the same name somewhere in it, or with a `__main__.py`: a package."""
    ranks: int = 2
    args: tuple[str, ...] = ()
    stdin: bytes | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    muster: tuple[str, ...] = ()
    signal: str = ""
    needs: tuple[str, ...] = ()
    exit: int = 0
    row: int = 0
    without_stderr: bool = False
    fails_under_torchrun: bool = False
    """Whether it sometimes fails because of a bug in torch that does not affect Muster."""
    only_muster: bool = False
    runs: int = 50
    slow: str = ""

    def place_in(self, folder: Path) -> tuple[str, ...]:
        """Copy it into a directory, and return what to type there: `train.py`, or `-m package`."""
        if self.path.is_file():
            shutil.copy(self.path, folder)
            return (self.path.name, *self.args)
        if (self.path / "__main__.py").exists():
            shutil.copytree(self.path, folder / self.name)
            return ("-m", self.name, *self.args)
        shutil.copytree(self.path, folder, symlinks=True, dirs_exist_ok=True)
        (script,) = folder.rglob(f"{self.name}.py")
        return (str(script.relative_to(folder)), *self.args)

    @property
    def missing(self) -> str:
        """A requirement that this machine lacks."""
        return ", ".join(name for name in self.needs if not (importlib.util.find_spec(name) or shutil.which(name)))


def load(path: Path) -> Program:
    """A program with the options of its header."""
    source = path
    if path.is_dir():
        found = [path / "__main__.py", *path.rglob(f"{path.name}.py")]
        source = next(file for file in found if file.exists())
    said: dict[str, list[str]] = {}
    for line in source.read_text().splitlines():
        if not (match := _HEADER.fullmatch(line)):
            break
        said.setdefault(match[1], []).append(match[2])
    last = {name: values[-1] for name, values in said.items()}
    stdin = last["stdin"].replace("\\n", "\n").encode() if "stdin" in last else None
    return Program(
        name=path.stem,
        path=path,
        ranks=int(last.get("ranks", 2)),
        args=tuple(shlex.split(last.get("args", ""))),
        stdin=stdin,
        env=dict(one.split("=", 1) for one in said.get("env", [])),
        muster=tuple(shlex.split(last.get("muster", ""))),
        signal=last.get("signal", ""),
        needs=tuple(last.get("needs", "").split()),
        exit=int(last.get("exit", 0)),
        row=int(last.get("row", 0)),
        without_stderr=last.get("stderr", "").startswith("not compared: "),
        fails_under_torchrun=re.match("(aborts|fails|hangs) sometimes: ", last.get("torchrun", "")) is not None,
        only_muster=last.get("torchrun", "").startswith("not run: "),
        runs=int(last.get("runs", 50)),
        slow=last.get("slow", ""),
    )


def load_all(folder: Path = FOLDER) -> dict[str, Program]:
    """All programs by name."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix == ".py" or path.is_dir()]
    return {program.name: program for program in map(load, paths) if program.name != "__pycache__"}
