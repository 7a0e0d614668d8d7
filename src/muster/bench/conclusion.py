"""The verdict in words: what the links should give, what they give, who is the odd one, what was left out."""

from __future__ import annotations

from statistics import median

from muster.bench.expected import Limit, copies_sentence, limit_of
from muster.bench.measurement_table import directed
from muster.bench.measurements import Report
from muster.bench.odd import ODD, odd_ones
from muster.text import duration, rate_text, size_text

FULL = 1 << 20
"""Bytes below which an operation tells of latency, not of what a link carries."""

GOOD = 0.8
"""From this part of what a link carries on, nothing is missing: protocols and the first packets take the rest."""


def verdict(report: Report) -> list[str]:
    """Sentences, the most important first."""
    said = [
        f"WRONG DATA: {row.operation} of {size_text(row.size)} left {row.wrong} elements with a wrong value."
        for row in report.rows
        if row.wrong
    ]
    if len(report.ranks) == 1:
        return [*said, *_alone(report), *_left_out(report)]
    limit = limit_of(report)
    said += [limit.sentence, *_reached(report, limit)]
    return [*said, *_odd(report), *_left_out(report)]


def _reached(report: Report, limit: Limit) -> list[str]:
    """What pairs and operations give, and how much of the limit that is."""
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
        found.append(f"a pair of {who} {rate_text(usual)} in the median{_share(usual, limit)}")
    if best is not None:
        share = _share(best.busbw, limit)
        found.append(f"{best.operation} {rate_text(best.busbw)} of bus bandwidth{share}, at {size_text(best.size)}")
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
        return "That is what such a link gives."
    if part >= ODD:
        return "That is a little less than such a link gives (80 % and more)."
    if report.backend == "gloo":
        return (
            "That is less than the link can carry. gloo moves data with one CPU thread and one connection for each "
            "pair of ranks, so on a fast link that may be the limit and not the link."
        )
    return "That is less than the link can carry: look for a wrong interface, a slow port or other traffic."


def _odd(report: Report) -> list[str]:
    found = odd_ones(report)
    if found or not report.pairs or (report.device == "cpu" and len(report.hosts) == 1):
        return found
    return [f"No {'host or ' if len(report.hosts) > 2 else ''}link is below {100 * ODD:.0f} % of the median."]


def _alone(report: Report) -> list[str]:
    (rank,) = report.ranks
    calls = [row for row in report.rows if row.operation == "all-reduce"]
    quick = f"; a call of all-reduce takes {duration(calls[0].time)} at {size_text(calls[0].size)}" if calls else ""
    said = [
        f"There is one rank, so no data went from one to another: this shows that {report.backend} works here and its "
        f"results are right{quick}. It cannot show what links between GPUs or hosts give: the bandwidths above are of "
        "no link."
    ]
    if "memory" in rank.copies:
        return [*said, f"Memory of {rank.host} is copied at {rate_text(rank.copies['memory'])}."]
    return [*said, f"{rank.gpu}: {copies_sentence(rank)}."]


def _left_out(report: Report) -> list[str]:
    said: list[str] = []
    paired = {report.ranks[rank].host for pair in report.pairs for rank in (pair.a, pair.b)}
    if paired and len(paired) < len(report.hosts):
        said.append(f"Pairs were measured among the first {len(paired)} of {len(report.hosts)} hosts only.")
    late = [left for left in report.left_out if left.why == "time"]
    if late:
        names = ", ".join(f"{left.operation} from {size_text(left.size)}" for left in late)
        slowest = max(late, key=lambda left: left.seconds)
        said.append(
            f"Left out to save time: {names}; one call of {slowest.operation} would take about "
            f"{duration(slowest.seconds)} there. `--max 1G` measures all the same."
        )
    if any(left.why == "memory" for left in report.left_out):
        rank = report.ranks[report.narrowest]
        said.append(
            f"Sizes above {size_text(report.room)} were left out: rank {rank.number} on {rank.host} has not the memory."
        )
    return said
