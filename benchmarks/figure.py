"""The figure of the README: seconds until all ranks work, Muster compared with torchrun, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.table import Result

BARS = {"first_8": "8 ranks", "first_32": "32 ranks", "ddp_8": "8 ranks, DDP's first step"}
"""The rows that are drawn, with their labels."""

_LEFT, _WIDTH, _BAR, _GAP = 210, 420, 18, 26

_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f } .muster { fill: #2da44e } .peer { fill: #b6bcc4 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .peer { fill: #6e7681 } }"""


def svg(results: Sequence[Result]) -> str:
    """Two bars for each row that was measured."""
    drawn = [result for result in results if result.row.name in BARS and result.samples]
    pairs = [
        (BARS[result.row.name], _middle(result, "muster"), _middle(result, "peer"), result.row.peer) for result in drawn
    ]
    longest = max((max(muster, peer) for _, muster, peer, _ in pairs), default=1.0)
    lines: list[str] = []
    y = 10
    for label, muster, peer, peer_name in pairs:
        lines.append(f'<text x="{_LEFT - 12}" y="{y + _BAR + 5}" text-anchor="end">{label}</text>')
        for name, seconds, kind in (("Muster", muster, "muster"), (peer_name, peer, "peer")):
            width = max(2, round(_WIDTH * seconds / longest))
            lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" rx="2"/>')
            lines.append(f'<text x="{_LEFT + width + 8}" y="{y + 14}">{name} {seconds:.1f} s</text>')
            y += _BAR + 2
        y += _GAP
    size = f'viewBox="0 0 {_LEFT + _WIDTH + 140} {y - _GAP + 10}"'
    title = "Seconds from the command to the last rank's first all_reduce"
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<title>{title}</title>"]
    return "\n".join([*head, f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def _middle(result: Result, side: str) -> float:
    return median(getattr(sample, side) for sample in result.samples)
