"""Settings shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Checks that several files of tests share.
pytest.register_assert_rewrite("engine_promises", "engine_witness", "recipes")

# `make test &` in a script passes down an ignored SIGINT and SIGQUIT, nohup an ignored SIGHUP. Programs that the tests
# start would ignore them too (so does Muster, on purpose), and every test of Ctrl-C or of a closed terminal would fail.
# Python itself ignores SIGPIPE and SIGXFSZ, and subprocess restores those two.
for _number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])

# Python searches for garbage after 700 new objects, which takes a fifth of the time of tests that make many.
gc.set_threshold(20_000)

# A configuration file of whoever runs the tests must not change what they see.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"

# A busy machine must not fail a property; pytest-timeout stops one that hangs.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")

LONGEST = (
    "test_documents.py",
    "test_run_mpi.py",
    "test_run_container.py",
    "test_run_no_orphans.py",
    "test_requeue.py",
    "test_run_pbs.py",
    "test_remote_controller.py",
    "test_conformance.py",
    "test_drain.py",
    "test_keep.py",
    "test_run_outages.py",
    "test_recovery_matrix.py",
    "test_run_in_pods.py",
    "test_run_slurm.py",
    "test_run_failures.py",
    "test_check.py",
    "test_pbs_standin.py",
    "test_recipe_gpt.py",
    "test_spares.py",
    "test_run_pods.py",
    "test_recovery_recipes.py",
    "test_shrink.py",
    "test_hang.py",
    "test_launch_on_hosts.py",
    "test_recipe_resnet50.py",
    "test_run_outages_slurm.py",
    "test_recipes_under_mpi.py",
    "test_recipes_under_launchers.py",
    "test_submit_k8s.py",
    "test_rank_ends.py",
    "test_jobs.py",
    "test_bad_hosts.py",
    "test_recipe_checkpoints.py",
)
"""Files whose tests are started first, so that none of them is what the other workers wait for at the end."""

APART = {
    "test_conformance.py": 4,
    "test_rank_ends.py": 2,
    "test_recipes_under_launchers.py": 2,
}
"""Files whose tests may run on several workers, each with fixtures of its own, and how many parts each file has."""

HEAVIEST = (
    "test_container.py",
    "test_dial_back.py",
    "test_find_rank_0.py",
    "test_screen.py",
    "test_remote_job.py",
    "test_notifications.py",
    "test_notices.py",
    "test_check_probes.py",
    "test_recovery.py",
    "test_dashboard_server.py",
    "test_rank_sessions.py",
    "test_bad_places.py",
    "test_agent_loop.py",
    "test_link.py",
    "test_kubectl_proxy.py",
    "test_bad_options.py",
    "test_job_server.py",
    "test_local_ranks.py",
    "test_agents.py",
    "test_resumed_session.py",
)
"""Unit tests that take longest, from 15 s to 1 s per file, so that each part gets a long one and many short ones."""

LIMIT = 120
"""Seconds that a test may take on an idle machine, unless it says otherwise."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="N/OF", default="1/1", help="run a part of the files, such as 1/2 and 2/2")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether another part has this file: `make unit` starts a process per part, and each imports only its own files.

    Workers of xdist would each import all of them, and send three reports of each of thousands of tests.
    """
    number, parts = map(int, config.option.part.split("/"))
    if parts == 1 or not collection_path.match("test_*.py"):
        return None
    return True if _part_of(collection_path, parts) != number - 1 else None  # None: pytest decides


def _part_of(file: Path, parts: int) -> int:
    """The part that runs a file: from the heaviest on, each part gets one, then one more from the last part on."""
    turn, place = divmod(_by_weight(file.parent)[file.name], parts)
    return parts - 1 - place if turn % 2 else place


@cache
def _by_weight(folder: Path) -> dict[str, int]:
    """The places of the files of tests in a directory: known heavy ones, then large ones."""
    heavy = {name: number for number, name in enumerate(HEAVIEST)}
    size = {file.name: file.stat().st_size for file in folder.glob("test_*.py")}
    names = sorted(size, key=lambda name: (heavy.get(name, len(heavy)), -size[name], name))
    return {name: number for number, name in enumerate(names)}


class ByFile(LoadScopeScheduling):
    """Gives all tests of a file to one worker, because they share virtual hosts."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return f"{path} {zlib.crc32(nodeid.encode()) % APART.get(path.rpartition('/')[2], 1)}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """How `-n` without `--dist` distributes tests: by file, in the order in which they were collected."""
    if config.option.dist != "load":
        return None
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of each search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, unit tests last; and more time for tests that share a core with others."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (order.get(item.path.name, len(order)), "lab" not in item.path.parts))
    for item in items:
        limit = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(3 * (limit.args[0] if limit else LIMIT)), append=False)
