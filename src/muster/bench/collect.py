"""Build a report from the lines that rank 0 prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypedDict

from muster.bench.measurements import Carrier, LeftOut, Pair, Rank, Report, Row
from muster.errors import MusterError

MARKER = "@muster-bench "
"""Prefix of such a line, which distinguishes it from other output."""


class World(TypedDict):
    """The ranks that measure: each rank's host number and, with a GPU, its name, PCIe link and NVLinks."""

    ranks: list[dict[str, Any]]
    backend: str
    device: str
    torch: str
    nccl: str


class Collector:
    """Collects the records of one run, in order."""

    world: World
    """The first record."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.pairs: list[Pair] = []
        self.left_out: list[LeftOut] = []
        self._room = self._narrowest = 0
        self._copies: dict[int, dict[str, float]] = {}
        self._carriers: dict[int, tuple[Carrier, ...]] = {}
        self.complete = False

    def take(self, line: str) -> dict[str, Any] | None:
        """Parse a line and return its record, or None if it is not a measurement."""
        if not line.startswith(MARKER):
            return None
        record = json.loads(line[len(MARKER) :])
        fields = {name: value for name, value in record.items() if name != "t"}
        kind = record["t"]
        if kind == "world":
            self.world = record
        elif kind == "room":
            self._room, self._narrowest = fields["size"], fields["rank"]
        elif kind == "row":
            seconds = tuple(fields.pop("seconds"))
            self.rows.append(Row(**fields, seconds=seconds, ranks=self.size))
        elif kind == "pair":
            self.pairs.append(Pair(**fields))
        elif kind == "left_out":
            self.left_out.append(LeftOut(**fields))
        elif kind == "rank":
            self._copies[fields["rank"]] = fields["copies"]
            self._carriers[fields["rank"]] = tuple(Carrier(**carrier) for carrier in fields["carriers"])
        elif kind == "end":
            self.complete = True
        return record

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.world["ranks"])

    def report(self, hosts: Sequence[str]) -> Report:
        """Build the report; `hosts` are the host names in the order of the plan."""
        if not self.complete:
            raise MusterError("the ranks exited before all measurements were complete")
        return Report(
            backend=self.world["backend"],
            device=self.world["device"],
            torch=self.world["torch"],
            nccl=self.world["nccl"],
            ranks=tuple(self._rank(number, hosts) for number in range(self.size)),
            rows=tuple(self.rows),
            pairs=tuple(self.pairs),
            left_out=tuple(self.left_out),
            room=self._room,
            narrowest=self._narrowest,
        )

    def _rank(self, number: int, hosts: Sequence[str]) -> Rank:
        first = self.world["ranks"][number]
        pcie = first.get("pcie")
        return Rank(
            number=number,
            host=hosts[int(first["host"])],
            gpu=first.get("gpu", ""),
            pcie=pcie_bandwidth(pcie["transfers"], pcie["lanes"]) if pcie else None,
            nvlink=tuple(first.get("nvlink", ())),
            copies=self._copies[number],
            carriers=self._carriers[number],
        )


def pcie_bandwidth(transfers: float, lanes: int) -> float:
    """Bytes per second each way of a PCIe link, with 8b/10b encoding up to 5 GT/s and 128b/130b above."""
    return transfers * lanes / 8 * (0.8 if transfers <= 5e9 else 128 / 130)
