"""The kinds of hangs, as implemented in benchmarks/hangs/script.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("script.py")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of hang."""

    name: str
    title: str
    ends: bool = False
    """Whether the backend or the heartbeat ends the job, so that the verdict names the rank or host."""
    at: str = ""
    """The mark of its line, if several cases share one."""
    no_line: str = ""
    """Why no file and line can be reported."""

    @property
    def place(self) -> str:
        """The location of the culprit, such as `script.py:22`; empty if there is none to report."""
        for number, line in enumerate(SCRIPT.read_text().splitlines(), start=1):
            if line.endswith(f"# HERE {self.at or self.name}") and not self.no_line:
                return f"{SCRIPT.name}:{number}"
        return ""


CASES = (
    Case(name="sleep", title="never arrives: sleeps"),
    Case(name="lock", title="never arrives: waits for a lock"),
    Case(name="read", title="never arrives: a read that blocks"),
    Case(name="program", title="never arrives: waits for a program it started"),
    Case(name="group", title="never arrives in its sub-group, others wait in theirs and in that of all", at="sleep"),
    Case(name="p2p", title="never sends what another rank receives", at="sleep"),
    Case(name="async", title="never sends what another rank has asked for with irecv", at="sleep"),
    Case(name="new-group", title="never comes to new_group", at="sleep"),
    Case(name="init", title="never comes to init_process_group", at="sleep"),
    Case(name="other-op", title="calls another collective"),
    Case(name="other-shape", title="another shape", ends=True),
    Case(name="other-type", title="another dtype", ends=True),
    Case(name="uneven", title="uneven inputs: is at the end while others train"),
    Case(name="left", title="left early with exit code 0", ends=True, no_line="it has ended"),
    Case(name="gil-sleep", title="holds the GIL in C, asleep"),
    Case(name="gil-spin", title="holds the GIL in C, using the CPU"),
    Case(name="stop", title="stopped (SIGSTOP)", no_line="cannot be asked"),
    Case(name="disk", title="in disk sleep (D)"),
    Case(name="loader", title="its DataLoader's worker is stuck"),
    Case(name="host", title="its host is dead", ends=True, no_line="the host is named"),
)
