"""How `muster run --slurm-args` ends the salloc that runs in its place."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from waiting import ending

DEAF = """
import signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
print("submitting", flush=True)
while len(got) < 2:
    time.sleep(0.01)
sys.exit(1)
"""
"""What salloc does with a signal that comes before it knows the id of its job: it notes it and keeps waiting."""

RUN = """
import sys
from muster.engines.slurm.salloc import _in_our_place
sys.exit(_in_our_place([sys.executable, "-c", sys.argv[1]]))
"""


@pytest.mark.timeout(60)
def test_a_salloc_that_has_missed_a_signal_gets_it_again() -> None:
    with ending(subprocess.Popen([sys.executable, "-c", RUN, DEAF], stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "submitting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
