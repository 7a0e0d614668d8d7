"""Inject one fault and judge its explanation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.explanations.fault import Fault
from muster.controller.diagnosis.verdict import FIX
from muster.lab import Lab

MUSTER = str(Path(sys.executable).with_name("muster"))
FOLDER = Path(__file__).parent
LIMIT = 90.0
VERDICT = r"(^|; then )(rank \d+ on \S+ (failed first|ended with)|host \S+ is lost)"
"""The first line of the verdict, and of no message before it."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of one fault."""

    fault: Fault
    found: bool = False
    """Whether the verdict mentions the fault."""
    named: bool = False
    """Whether the verdict names the rank or host at fault."""
    words: bool = False
    """Whether the explanation is correct, or absent if none is needed."""
    fix: bool = False
    seconds: float = 0.0
    said: str = ""

    @property
    def right(self) -> bool:
        """Whether everything is correct."""
        return self.named and self.words and self.fix


def try_fault(lab: Lab, fault: Fault, folder: Path) -> Score:
    """Break the hosts, run the script on them, repair them, and judge the output."""
    with TemporaryDirectory(dir=folder) as shared:
        (Path(shared) / fault.script).write_text((FOLDER / fault.script).read_text())
        fault.before(lab)
        try:
            begin = time.monotonic()
            said = _run(lab, fault, Path(shared))
            seconds = time.monotonic() - begin
        finally:
            fault.after(lab)
    return judge(fault, said, seconds)


def _run(lab: Lab, fault: Fault, shared: Path) -> str:
    state = shared / "state"
    options = ["--grace", "1", "--no-check", *(() if fault.torch else ("--no-zygote",))]
    process = lab.popen(
        "h1",
        [MUSTER, "run", *options, "-H", fault.hosts, fault.script, fault.mode, str(fault.culprit)],
        cwd=str(shared),
        env={"PATH": os.environ["PATH"], "HOME": os.path.expanduser("~"), "XDG_STATE_HOME": str(state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while len(list(shared.glob("up-*"))) < 2 and process.poll() is None and time.monotonic() < deadline:
            if fault.torch:
                break  # these ranks wait for each other in torch
            time.sleep(0.05)
        fault.during(lab)
        return process.communicate(timeout=LIMIT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"{fault.name}: still running after {LIMIT:.0f} s") from None


def judge(fault: Fault, said: str, seconds: float) -> Score:
    """Compare the output with the expected explanation."""
    lines = [line.removeprefix("muster: ") for line in said.splitlines() if line.startswith("muster: ")]
    # The verdict, without earlier messages.
    starts = [n for n, line in enumerate(lines) if re.search(VERDICT, line)]
    verdict = lines[starts[0] :] if starts else []
    others = ", ".join(str(rank) for rank in range(3) if rank != fault.culprit)

    def has(pattern: str, among: list[str]) -> bool:
        filled = pattern.replace("{culprit}", str(fault.culprit)).replace("{others}", others)
        return any(re.search(filled, line) for line in among)

    fixes = [line for line in verdict if line.startswith(FIX)]
    return Score(
        fault=fault,
        found=bool(verdict),
        named=has(fault.named, verdict[:1]),
        words=has(fault.why, verdict) if fault.why else len(verdict) <= 3 and not fixes,
        fix=has(fault.fix, fixes) if fault.fix else not fixes,
        seconds=seconds,
        said=said,
    )
