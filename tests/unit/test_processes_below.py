"""Which processes are below another one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import ending

from muster.shared import processes

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux"),
    pytest.mark.timeout(60),
]


def test_a_process_has_only_the_children_that_are_known():
    inner = "sleep 100 & echo $!; wait"
    script = f"sleep 100 & echo $!; sh -c '{inner}' & echo $!; wait"
    with ending(subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, bufsize=1)) as top:
        assert top.stdout is not None
        below = {int(top.stdout.readline()) for _ in range(3)}
        assert set(processes.descendants(top.pid)) == below
        assert processes.has_only(top.pid, below)
        for one in below:
            assert not processes.has_only(top.pid, below - {one})
        processes.kill(below, 9)
    assert not processes.has_only(top.pid, below), "none of them exists any more"
