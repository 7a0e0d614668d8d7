"""The faults, in the order of the catalog."""

from __future__ import annotations

from benchmarks.scoreboard.access_faults import FAULTS as ACCESS
from benchmarks.scoreboard.address_faults import FAULTS as ADDRESSES
from benchmarks.scoreboard.environment_faults import FAULTS as ENVIRONMENT
from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.machine_faults import FAULTS as MACHINES
from benchmarks.scoreboard.network_faults import FAULTS as NETWORK

FAULTS: tuple[Fault, ...] = tuple(
    sorted((*ADDRESSES, *NETWORK, *ACCESS, *ENVIRONMENT, *MACHINES), key=lambda fault: fault.row)
)

BEFORE_LAUNCH = (1, *range(3, 34), 44, 45, 48, 49)
"""The 36 rows of the catalog that can be detected before launch."""
