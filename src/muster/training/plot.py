"""A plot of a run as SVG, drawn without a plotting library, which a cluster may not have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 220, 70, 20, 28, 34
_TICKS = 4
"""Approximate number of marks on an axis."""

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
.line { fill: none; stroke: #2da44e; stroke-width: 1.5 } .dot { fill: #2da44e }
.grid { stroke: #d0d7de; stroke-width: 0.5 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #30363d } }"""


def svg(rows: Sequence[Mapping[str, float]], panels: Sequence[str]) -> str:
    """Draw one panel below the other, each with one metric by step."""
    known = {name: [(row["step"], row[name]) for row in rows if name in row] for name in panels}
    drawn = [(name, finite) for name, points in known.items() if (finite := [p for p in points if math.isfinite(p[1])])]
    size = f'viewBox="0 0 {WIDTH} {max(1, len(drawn)) * HEIGHT}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<style>{_STYLE}</style>"]
    body = [line for i, (name, points) in enumerate(drawn) for line in _panel(name, points, i * HEIGHT)]
    return "\n".join([*head, *body, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers that cover a range: the first at or below `low`, the last at or above `high`."""
    largest = max(abs(low), abs(high))
    span = high - low
    if span <= 1e-9 * max(largest, 1e-3):  # a flat line, up to rounding, for which any scale will do
        span = largest if largest > 1e-9 else 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= _TICKS + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def _panel(name: str, points: Sequence[tuple[float, float]], top: float) -> list[str]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    marks = ticks(min(ys), max(ys))
    x0, x1, y0, y1 = min(xs), max(xs), marks[0], marks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across_share = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0)
        px = LEFT + across_share * (WIDTH - LEFT - RIGHT)
        return px, top + HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    lines = [f'<text class="title" x="{LEFT}" y="{top + 18}">{escape(name.replace("_", " "))}</text>']
    for mark in marks:
        _, y = place(x0, mark)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:,.12g}</text>')
    for x, anchor in ((x0, "start"), (x1, "end")):
        px, _ = place(x, y0)
        at = f'x="{px:.1f}" y="{top + HEIGHT - 14}" text-anchor="{anchor}"'
        lines.append(f"<text {at}>step {x:,.12g}</text>")
    if len(points) == 1:
        px, py = place(*points[0])
        return [*lines, f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="3"/>']
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y in points))
    return [*lines, f'<polyline class="line" points="{path}"/>']
