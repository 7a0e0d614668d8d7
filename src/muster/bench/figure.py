"""The figures, as SVG: bus bandwidth by size with the matrix of pairs, and efficiency by number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log2, log10

from muster.bench.expected import limit_of
from muster.bench.measurement_table import directed, rank_names
from muster.bench.measurements import Report
from muster.text import count, rate_text, significant, size_text

_COLORS = ("#2da44e", "#0969da", "#bf3989", "#bc4c00", "#8250df", "#1b7c83")
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 50, 520, 300
_CELL = 56

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 14px }
.grid { stroke: #d0d7de; stroke-width: 1 } .limit { stroke: #cf222e; stroke-dasharray: 6 4; stroke-width: 1.5 }
.small { font-size: 11px } polyline { fill: none; stroke-width: 2 }
rect.paper { fill: #ffffff } .cell { fill: #2da44e } .end { text-anchor: end } .middle { text-anchor: middle }"""


def bandwidth_figure(report: Report) -> str:
    """Bus bandwidth by size for each operation, the capacity of the link, and the bandwidth of every pair."""
    curves = {
        name: [(row.size, row.busbw) for row in report.rows if row.operation == name and row.busbw > 0]
        for name in dict.fromkeys(row.operation for row in report.rows)
    }
    several = len(report.ranks) > 1
    where = report.hosts[0] if len(report.hosts) == 1 else f"{len(report.hosts)} hosts"
    title = f"Bus bandwidth, {count(len(report.ranks), 'rank')} on {where}, {report.backend}"
    body = _curves(
        {name: curve for name, curve in curves.items() if curve}, title, limit_of(report).rate if several else None
    )
    height = _TOP + _HEIGHT + 60
    width = _LEFT + _WIDTH + 150
    if report.pairs:
        matrix, wide, high = _heat_map(report, width)
        body, width, height = [*body, *matrix], width + wide, max(height, high)
    return _document(body, width, height, title)


def efficiency_figure(curves: Mapping[str, Mapping[int, float]], title: str) -> str:
    """Efficiency by number of ranks for each kind of scaling; 1 is perfect scaling."""
    ranks = sorted({number for curve in curves.values() for number in curve})
    top = max(1.0, *(value for curve in curves.values() for value in curve.values()))
    steps = [step / 5 for step in range(ceil(top * 5 - 1e-9) + 1)]
    highest, last = steps[-1], max(len(ranks) - 1, 1)

    def place(number: int, value: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * ranks.index(number) / last, _TOP + _HEIGHT * (1 - value / highest)

    marks = {place(ranks[0], step)[1]: f"{100 * step:.0f} %" for step in steps}
    lines = _axes(title, "ranks", {place(number, 0)[0]: str(number) for number in ranks}, marks)
    lines.append(_across(place(ranks[0], 1.0)[1], "limit"))
    for at, (name, curve) in enumerate(curves.items()):
        lines += _curve([place(number, value) for number, value in sorted(curve.items())], at, name, at)
    return _document(lines, _LEFT + _WIDTH + 150, _TOP + _HEIGHT + 60, title)


def _curves(curves: Mapping[str, Sequence[tuple[int, float]]], title: str, limit: float | None) -> list[str]:
    sizes = [size for curve in curves.values() for size, _ in curve]
    rates = [rate for curve in curves.values() for _, rate in curve] + ([limit] if limit else [])
    if not sizes:
        return [_text(_LEFT, _TOP - 22, title, "title"), _text(_LEFT, _TOP, "no data was transferred between ranks")]
    first, last = floor(log2(min(sizes))), max(ceil(log2(max(sizes))), floor(log2(min(sizes))) + 1)
    low, high = floor(log10(min(rates))), max(ceil(log10(max(rates))), floor(log10(min(rates))) + 1)

    def place(size: float, rate: float) -> tuple[float, float]:
        x = _LEFT + _WIDTH * (log2(size) - first) / (last - first)
        return x, _TOP + _HEIGHT * (1 - (log10(rate) - low) / (high - low))

    powers = range(first, last + 1, max(1, ceil((last - first) / 9)))
    columns = {place(2**power, 10.0**low)[0]: size_text(2**power).replace("bytes", "B") for power in powers}
    marks = {place(2**first, 10.0**power)[1]: rate_text(10.0**power) for power in range(low, high + 1)}
    lines = _axes(title, "size", columns, marks)
    if limit:
        y = place(2**first, limit)[1]
        lines += [_across(y, "limit"), _text(_LEFT + 6, y - 6, f"link: {rate_text(limit)}")]
    ends = sorted(curves, key=lambda name: -curves[name][-1][1])
    for at, (name, curve) in enumerate(curves.items()):
        lines += _curve([place(*point) for point in curve], at, name, ends.index(name))
    return lines


def _axes(title: str, name: str, columns: Mapping[float, str], marks: Mapping[float, str]) -> list[str]:
    """The title, the axis labels by position, and the grid."""
    lines = [_text(_LEFT, _TOP - 22, title, "title"), _text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 42, name, "middle")]
    for y, label in marks.items():
        lines += [_across(y, "grid"), _text(_LEFT - 8, y + 4, label, "end")]
    return lines + [_text(x, _TOP + _HEIGHT + 20, label, "middle") for x, label in columns.items()]


def _curve(points: Sequence[tuple[float, float]], number: int, name: str, line: int) -> list[str]:
    """A curve, and its name in the legend at the right, where names never overlap."""
    color = _COLORS[number % len(_COLORS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
    x, y = _LEFT + _WIDTH + 24, _TOP + 14 + 18 * line
    mark = f'<circle cx="{x - 8}" cy="{y - 4}" r="4" fill="{color}"/>'
    return [f'<polyline points="{path}" stroke="{color}"/>', *dots, mark, _text(x, y, name)]


def _heat_map(report: Report, left: float) -> tuple[list[str], float, float]:
    """The bandwidth of every pair as a heat map with numbers."""
    names, rates = rank_names(report.ranks), directed(report.pairs)
    ranks = sorted({rank for pair in rates for rank in pair})
    highest = max(rates.values())
    scale, unit = (1e9, "GB/s") if highest >= 1e9 else (1e6, "MB/s")
    start = left + 8 * max(len(names[rank]) for rank in ranks)
    lines = [_text(start, _TOP - 22, f"Pairs, from row to column ({unit})", "title")]
    for row, a in enumerate(ranks):
        y = _TOP + 24 + _CELL / 2 * row
        lines.append(_text(start - 8, y + 18, names[a], "end"))
        for column, b in enumerate(ranks):
            x = start + _CELL * column
            if row == 0:
                lines.append(_text(x + _CELL / 2, _TOP + 16, names[b], "middle small"))
            if (a, b) in rates:
                fill = 0.15 + 0.75 * rates[a, b] / highest
                box = f'x="{x:.0f}" y="{y:.0f}" width="{_CELL - 2}" height="{_CELL / 2 - 2:.0f}" rx="3"'
                lines.append(f'<rect class="cell" {box} fill-opacity="{fill:.2f}"/>')
                lines.append(_text(x + _CELL / 2, y + 17, significant(rates[a, b] / scale), "middle small"))
    wide = start - left + max(_CELL * len(ranks), 250) + 20
    return lines, wide, _TOP + 60 + _CELL / 2 * len(ranks)


def _document(body: Sequence[str], width: float, height: float, title: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<title>{escape(title)}</title>"]
    paper = '<rect class="paper" width="100%" height="100%"/>'
    return "\n".join([*head, f"<style>{_STYLE}</style>", paper, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _across(y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{_LEFT:.1f}" y1="{y:.1f}" x2="{_LEFT + _WIDTH:.1f}" y2="{y:.1f}"/>'
