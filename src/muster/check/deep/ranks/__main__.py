"""One rank of the deep check: `python -m muster_check MARK` prints MARK and one line of JSON."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from .device_tests import measure_collectives, measure_device
from .link_tests import measure_links
from .world import World


def main() -> None:
    """Measure and print the result."""
    world = World()
    result: dict[str, object] = {"rank": world.rank, "host": world.host, "links": []}
    if world.hosts > 1:
        if world.local == 0:
            result["links"] = links = measure_links(world)
            bad = any("hole" in link or "problem" in link for link in links)
            world.store.set(f"links/{world.host}", "bad" if bad else "good")
        states = [world.store.get(f"links/{host}") for host in range(world.hosts)]
    else:
        states = []
    world.together("devices", world.size)
    result.update(measure_device(world))
    if b"bad" not in states:  # a collective over a bad link would hang
        result.update(measure_collectives(world))
    if world.local == 0:  # this directory was sent only for the check
        shutil.rmtree(Path(__file__).resolve().parents[1], ignore_errors=True)
    sys.stdout.write(sys.argv[1] + json.dumps(result) + "\n")


main()
