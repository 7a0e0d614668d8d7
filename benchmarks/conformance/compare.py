"""How a run under Muster differs from one under torchrun."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from benchmarks.conformance.explained import EXPLAINED
from benchmarks.conformance.launchers import Outcome
from benchmarks.conformance.programs import Program


def unexplained(program: Program, torchrun: Outcome | None, muster: Outcome) -> list[str]:
    """The differences that are not explained, one line each."""
    found = list(differences(program, torchrun, muster))
    explained = EXPLAINED.get(program.name)
    if explained is None:
        return found
    if explained.always and not found:
        return [f"no longer differs, but explained by: {explained.why}"]
    return [line for line in found if not re.search(explained.lines, line)]


def differences(program: Program, torchrun: Outcome | None, muster: Outcome) -> Iterator[str]:
    """All differences, one line each. If torchrun did not run, or failed due to a torch bug, Muster must succeed."""
    if torchrun is None or (program.fails_under_torchrun and torchrun.code):
        if muster.code != program.exit:
            yield f"exit code: {program.exit} expected, Muster {muster.code}"
        return
    if bool(torchrun.code) != bool(program.exit) and not program.signal:
        yield f"the program is wrong: torchrun {torchrun.code}, its header {program.exit}"
    if not program.signal:  # launchers have different exit codes for signals
        if torchrun.code != muster.code:
            yield f"exit code: torchrun {torchrun.code}, Muster {muster.code}"
        if torchrun.first != muster.first:
            yield f"rank that failed first: torchrun {torchrun.first}, Muster {muster.first}"
    if muster.left and not torchrun.left:
        yield f"processes left by Muster: {muster.left}"
    yield from unequal(torchrun.files, muster.files)
    compared = [name for name in torchrun.streams if not (program.without_stderr and name.endswith("stderr"))]
    yield from unequal({name: torchrun.streams[name] for name in compared}, muster.streams, extra=False)


def unequal(torchrun: Mapping[str, list[str]], muster: Mapping[str, list[str]], *, extra: bool = True) -> Iterator[str]:
    """The lines that differ between files or streams of the same name; `extra` includes those that only Muster has."""
    for name in sorted(torchrun.keys() | muster.keys() if extra else torchrun):
        if name not in muster or name not in torchrun:
            yield f"{name}: only under {'torchrun' if name in torchrun else 'Muster'}"
            continue
        for line in list(difflib.unified_diff(torchrun[name], muster[name], n=0))[2:]:
            if line[0] in "-+":
                yield f"{name}: {'torchrun' if line[0] == '-' else 'Muster'}: {line[1:400]}"
