"""Records a run as an SVG: a terminal in which each line appears at the time it was printed.

    python tools/recording.py muster run --lab 2 --nproc 2 ddp.py > docs/run.svg

It runs the command and records every line with its time; nothing is added. The animation plays once, at the speed of
the run; without animations, or with reduced motion, all lines are visible.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import time

LINE, TOP, LEFT, LETTER = 19, 46, 18, 7.9

STYLE = """\
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }
.back { fill: #f6f8fa; stroke: #d0d7de } .dot { fill: #d0d7de }
.talk { fill: #57606a } .rank { fill: #0969da } .bad { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .back { fill: #0d1117; stroke: #30363d } .dot { fill: #30363d }
  .talk { fill: #9da7b3 } .rank { fill: #58a6ff } .bad { fill: #ff7b72 }
}
@keyframes come { from { opacity: 0 } to { opacity: 1 } }
.line { animation: come 0.05s linear both }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }"""


def main() -> int:
    """Run the command and print the SVG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", help="command line shown in the image (default: the command)")
    parser.add_argument("--limit", type=float, default=60, help="timeout of the run in seconds (default: 60)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    lines = record(args.command, args.limit)
    print(draw(args.show or " ".join(args.command), lines))
    return 0


def record(command: list[str], limit: float) -> list[tuple[float, str]]:
    """Run the command and return every line of both streams with its time in seconds."""
    lines: list[tuple[float, str]] = []
    start = time.monotonic()
    argv = ["timeout", str(limit), *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            line = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.rstrip())
            lines.append((time.monotonic() - start, line.replace(os.path.expanduser("~"), "~")))
    if process.returncode == 124:
        sys.exit(f"the run timed out after {limit} s")
    return lines


def draw(typed: str, lines: list[tuple[float, str]]) -> str:
    """The SVG."""
    height = TOP + LINE * (len(lines) + 1)
    width = round(2 * LEFT + LETTER * max(len(text) for _, text in lines))
    rows = [_row(0, None, f"$ {typed}", "")]
    rows += [_row(number, at, text, _kind(text)) for number, (at, text) in enumerate(lines, 1)]
    dots = "".join(f'<circle class="dot" cx="{20 + 18 * i}" cy="18" r="6"/>' for i in range(3))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{html.escape(typed)}, recorded</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>{dots}',
            *rows,
            "</svg>",
        ]
    )


def _kind(text: str) -> str:
    if text.startswith("error") or "failed" in text:
        return "bad"
    return "talk" if text.startswith("muster:") else ""


def _row(number: int, at: float | None, text: str, kind: str) -> str:
    delay = f' style="animation-delay: {at:.2f}s"' if at is not None else ""
    rank = re.match(r"\[\S+ +\d+\]", text)
    body = html.escape(text)
    if rank:
        label = html.escape(rank.group())
        body = f'<tspan class="rank">{label}</tspan>{html.escape(text[rank.end() :])}'
    classes = " ".join(filter(None, ["line" if at is not None else "", kind]))
    return f'<text x="{LEFT}" y="{TOP + LINE * number}" class="{classes}"{delay}>{body}</text>'


if __name__ == "__main__":
    sys.exit(main())
