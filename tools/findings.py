"""The reference page of checks: what each one looks for, with an example of every kind of finding.

The examples are findings of the judges' tests, recorded while those tests run, so the page shows what `muster check`
prints.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from muster.check.checks import ASKED_BY_RUN, QUICK
from muster.check.definition import load
from muster.check.finding import SEVERITIES

HEAD = """\
# Checks

All checks of [`muster check`](../check.md), in the order of its report. Each example is a finding from the tests, on
host `b` of the hosts `a`, `b` and others. The row is the number of the fault on the
[scoreboard](../measurements/checks.md).
"""


def findings_page(root: Path) -> str:
    """One section for each check."""
    found = _recorded(root / "tests" / "unit")
    parts = [HEAD]
    for name in QUICK:
        source = (root / "src" / "muster" / "check" / "checks" / f"{name}.py").read_text(encoding="utf-8")
        parts.append(f"## {name}\n\n{_sentence(source)}\n")
        if name not in ASKED_BY_RUN:
            parts.append("`muster run` runs this check too, while it imports torch.\n")
        parts += [_entry(*one) for one in found.get(name, [])]
    return "\n".join(parts).replace("/work", "/home/ann/project")  # the working directory in the tests


def _sentence(source: str) -> str:
    return " ".join((ast.get_docstring(ast.parse(source)) or "").split())


def _entry(finding: Any, command: str) -> str:
    row = f" (row {finding.row})" if finding.row else ""
    lines = [
        f"**{finding.severity}**{row}: {_literal(finding.what)}\n",
        f"- Symptom: {_literal(finding.symptom)}",
    ]
    if command:
        lines.append(f"- Fix: `{command}`" if "`" not in command else f"- Fix: `` {command} ``")
    elif finding.fix.say:
        lines.append(f"- Fix: {_literal(finding.fix.say)}")
    return "\n".join([*lines, ""])


def _literal(text: str) -> str:
    """The text with Markdown escaped outside of backquotes."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(one if one.startswith("`") else re.sub(r"([\\*_\[\]<>])", r"\\\1", one) for one in pieces)


def _recorded(tests: Path) -> dict[str, list[tuple[Any, str]]]:
    """Run the tests of the judges and return one finding of each kind with its command, by check, worst first."""
    import pytest

    sys.path.insert(0, str(tests))
    import healthy

    seen: dict[tuple[str, str, str], tuple[Any, str]] = {}
    judge = healthy.judge_all

    def recording(checks: Any, cluster: Any) -> Any:
        found = judge(checks, cluster)
        for one in found:
            kind = (one.check, one.severity, re.sub(r"[\d.]+|`[^`]*`|\S*[/=]\S*", "", one.what))
            seen.setdefault(kind, (one, cluster.line(one.fix)))
        return found

    healthy.judge_all = recording
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            code = pytest.main([str(tests / "test_check_judges.py"), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
    finally:
        healthy.judge_all = judge
    if code:
        raise SystemExit(f"the unit tests of the checks failed, so there are no examples:\n{said.getvalue()}")
    by_check: dict[str, list[tuple[Any, str]]] = {}
    for (check, _, _), one in seen.items():
        by_check.setdefault(check, []).append(one)
    unknown = set(by_check) - set(load(QUICK))
    if unknown:
        raise SystemExit(f"tools/findings.py: findings of unknown checks: {sorted(unknown)}")
    return {name: sorted(ones, key=lambda one: SEVERITIES.index(one[0].severity)) for name, ones in by_check.items()}
