"""The measurements as text: the columns of nccl-tests, and the matrices of pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from muster.bench.measurements import Pair, Rank, Row
from muster.text import significant

_TITLES = ("size", "count", "type", "time", "spread", "algbw", "busbw", "wrong")
_UNITS = ("(B)", "(elements)", "", "(us)", "(%)", "(GB/s)", "(GB/s)", "")
_WIDTHS = (12, 12, 7, 11, 7, 9, 9, 7)


def header(operation: str) -> list[str]:
    """The lines above an operation's rows."""
    return [f"# {operation}", *("#" + _line(cells)[1:] for cells in (_TITLES, _UNITS))]


def row_line(row: Row) -> str:
    """One row under the header."""
    return _line(
        (
            str(row.size),
            str(row.count),
            row.type,
            _number(row.time * 1e6),
            f"{100 * row.spread:.1f}",
            _number(row.algbw / 1e9),
            _number(row.busbw / 1e9),
            str(row.wrong),
        )
    )


def matrices(pairs: Sequence[Pair], ranks: Sequence[Rank]) -> list[str]:
    """Latency and bandwidth of every pair, with one row per sender and one column per receiver."""
    if not pairs:
        return []
    names = rank_names(ranks)
    latencies = {(pair.a, pair.b): pair.latency for pair in pairs}
    both_ways = {**latencies, **{(b, a): latency for (a, b), latency in latencies.items()}}
    rates = directed(pairs)
    scale, unit = (1e9, "GB/s") if max(rates.values()) >= 1e9 else (1e6, "MB/s")
    return [
        "# latency of 8 bytes, one way (us)",
        *_matrix(both_ways, names, lambda seconds: significant(seconds * 1e6)),
        f"# bandwidth from the rank of the row to the rank of the column ({unit})",
        *_matrix(rates, names, lambda rate: significant(rate / scale)),
    ]


def directed(pairs: Sequence[Pair]) -> dict[tuple[int, int], float]:
    """Bytes per second from one rank to another."""
    return {
        **{(pair.a, pair.b): pair.there for pair in pairs},
        **{(pair.b, pair.a): pair.back for pair in pairs},
    }


def rank_names(ranks: Sequence[Rank]) -> dict[int, str]:
    """The host name of a rank that is alone on its host, otherwise host and rank as in the labels of `muster run`."""
    often = Counter(rank.host for rank in ranks)
    return {rank.number: rank.host if often[rank.host] == 1 else f"{rank.host} {rank.number}" for rank in ranks}


def _matrix(
    values: Mapping[tuple[int, int], float], names: Mapping[int, str], text: Callable[[float], str]
) -> list[str]:
    ranks = sorted({rank for pair in values for rank in pair})
    cells = [
        [names[a], *("-" if a == b else text(values[a, b]) if (a, b) in values else "" for b in ranks)] for a in ranks
    ]
    lines = [["", *(names[rank] for rank in ranks)], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(ranks) + 1)]
    first, *rest = ("  " + "  ".join(map(str.rjust, line, widths)) for line in lines)
    return ["#" + first[1:], *rest]


def _line(cells: Sequence[str]) -> str:
    return "".join(map(str.rjust, cells, _WIDTHS)).rstrip()


def _number(value: float) -> str:
    """Format with as many digits as needed; below 0.0001 it is zero, as in nccl-tests."""
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"
