"""The verdict as text: expected and measured bandwidth, outliers, and what was not measured."""

from __future__ import annotations

from statistics import median

from muster.bench.expected import Limit, copies_sentence, limit_of
from muster.bench.measurement_table import directed
from muster.bench.measurements import Report
from muster.bench.odd import ODD, odd_ones
from muster.text import duration, rate_text, size_text

FULL = 1 << 20
"""Size in bytes below which an operation measures latency rather than bandwidth."""

GOOD = 0.8
"""Fraction of a link's capacity that counts as full speed; protocols and startup take the rest."""


def verdict(report: Report) -> list[str]:
    """Sentences, the most important first."""
    said = [
        f"WRONG DATA: {row.operation} of {size_text(row.size)} produced {row.wrong} wrong elements."
        for row in report.rows
        if row.wrong
    ]
    if len(report.ranks) == 1:
        return [*said, *_alone(report), *_left_out(report)]
    limit = limit_of(report)
    said += [limit.sentence, *_reached(report, limit)]
    return [*said, *_odd(report), *_left_out(report)]


def _reached(report: Report, limit: Limit) -> list[str]:
    """The measured bandwidth of pairs and operations, as a fraction of the limit."""
    said: list[str] = []
    host_of = {rank.number: rank.host for rank in report.ranks}
    apart = len(report.hosts) > 1
    rates = [rate for (a, b), rate in directed(report.pairs).items() if (host_of[a] != host_of[b]) == apart]
    usual = median(rates) if rates else 0.0
    rows = [row for row in report.rows if row.size >= FULL]
    rows = [row for row in rows if row.operation == "all-reduce"] or rows
    best = max(rows, key=lambda row: row.busbw, default=None)
    found: list[str] = []
    if rates:
        who = "hosts" if apart else "ranks"
        found.append(f"median of pairs of {who} {rate_text(usual)}{_share(usual, limit)}")
    if best is not None:
        share = _share(best.busbw, limit)
        found.append(f"{best.operation} {rate_text(best.busbw)} bus bandwidth{share} at {size_text(best.size)}")
    if found:
        said.append(f"Measured with {report.backend}: {'; '.join(found)}.")
    highest = max(usual, best.busbw if best else 0.0)
    if limit.rate is not None and highest > 0:
        said.append(_judgment(highest / limit.rate, report))
    return said


def _share(rate: float, limit: Limit) -> str:
    return f" ({100 * rate / limit.rate:.0f} %)" if limit.rate else ""


def _judgment(part: float, report: Report) -> str:
    if part >= GOOD:
        return "This is the full speed of the link."
    if part >= ODD:
        return "This is slightly below the full speed of the link (80 % or more)."
    if report.backend == "gloo":
        return (
            "This is less than the link can carry. gloo uses one CPU thread and one connection for each pair of ranks, "
            "so on a fast link gloo may be the bottleneck rather than the link."
        )
    return "This is less than the link can carry. Check for a wrong network interface, a slow port or other traffic."


def _odd(report: Report) -> list[str]:
    found = odd_ones(report)
    if found or not report.pairs or (report.device == "cpu" and len(report.hosts) == 1):
        return found
    return [f"No {'host or ' if len(report.hosts) > 2 else ''}link is slower than {100 * ODD:.0f} % of the median."]


def _alone(report: Report) -> list[str]:
    (rank,) = report.ranks
    calls = [row for row in report.rows if row.operation == "all-reduce"]
    call = f"; an all-reduce call takes {duration(calls[0].time)} at {size_text(calls[0].size)}" if calls else ""
    said = [
        f"There is only one rank, so no data was transferred: this shows that {report.backend} works and its results "
        f"are correct{call}. The bandwidths above do not measure any link; use at least 2 ranks for that."
    ]
    if "memory" in rank.copies:
        return [*said, f"Memory copies on {rank.host} run at {rate_text(rank.copies['memory'])}."]
    return [*said, f"{rank.gpu}: {copies_sentence(rank)}."]


def _left_out(report: Report) -> list[str]:
    said: list[str] = []
    paired = {report.ranks[rank].host for pair in report.pairs for rank in (pair.a, pair.b)}
    if paired and len(paired) < len(report.hosts):
        said.append(f"Pairs were measured only among the first {len(paired)} of {len(report.hosts)} hosts.")
    late = [left for left in report.left_out if left.why == "time"]
    if late:
        names = ", ".join(f"{left.operation} from {size_text(left.size)}" for left in late)
        slowest = max(late, key=lambda left: left.seconds)
        said.append(
            f"Skipped to save time: {names}; one call of {slowest.operation} would take about "
            f"{duration(slowest.seconds)}. Use --max 1G to measure them anyway."
        )
    if any(left.why == "memory" for left in report.left_out):
        rank = report.ranks[report.narrowest]
        said.append(
            f"Sizes above {size_text(report.room)} were skipped: rank {rank.number} on {rank.host} does not have "
            "enough memory."
        )
    return said
