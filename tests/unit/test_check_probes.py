"""Probes on a host: old versions of Python, and probes that hang, die or fail."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from healthy import cluster, findings
from waiting import process_state, wait_until

from muster.agent import probes
from muster.agent.check_probes import Probing
from muster.check.checks import BEFORE_RUN, QUICK
from muster.check.definition import PROBE_LIMIT, as_requests, load
from muster.shared.light_selectors import Selector

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")

REQUESTS = as_requests(load(QUICK))
MODULES = sorted(Path(probes.__path__[0]).glob("*.py"))

ASK: dict[str, Any] = {
    "host": "here",
    "env": {},
    "cwd": os.getcwd(),
    "script": "",
    "code": ["pyproject.toml", "gone.py"],
    "master": None,
    "paths": ["pyproject.toml", "/nowhere"],
    "peers": {"other": ["127.0.0.1"]},
    "ranks": 1,
    "world": 2,
}


def ask(
    requests: Sequence[Mapping[str, Any]],
    at_each_turn: Callable[[Probing], None] = lambda probing: None,
    **changes: Any,
) -> dict[str, Any]:
    """Run probes as an agent does, and return its reply."""
    before = children()
    sent: list[dict[str, Any]] = []
    selector = Selector()
    message: Any = {"probes": requests, "ask": {**ASK, **changes}}
    probing = Probing(selector, sent.append, 7, message, nofile=1024)

    def turn() -> bool:
        for key, _ in selector.select(0):
            key.data()
        probing.step()
        at_each_turn(probing)
        return probing.is_over

    wait_until("the end of all probes", turn, 50)
    for pid in children() - before:
        os.waitpid(pid, 0)
    (reply,) = sent
    assert reply["re"] == 7
    return reply["answers"]


def children() -> set[int]:
    return {int(pid) for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()}


def call_it_too_late(probing: Probing) -> None:
    """As if all that runs now had taken a minute already."""
    for child in probing.children:
        child.since -= 60


def probe(name: str, body: str, limit: float = 30.0) -> dict[str, Any]:
    """A request for a probe in a module of its own, beside those of Muster."""
    module = ModuleType(f"{probes.__name__}.test_{name}")
    exec(f"def answer(ask):\n    {body}\n", module.__dict__)
    sys.modules[module.__name__] = module
    return {"name": name, "probe": f"test_{name}.answer", "limit": limit}


def test_every_probe_answers_on_this_machine():
    answers = ask(REQUESTS)
    assert {name: out for name, out in answers.items() if "value" not in out} == {}
    assert answers["same_code"]["value"]["files"]["gone.py"] is None
    assert answers["data"]["value"]["/nowhere"] is None
    assert answers["data"]["value"]["pyproject.toml"][0] == "file"
    assert answers["limits"]["value"]["nofile"]["soft"] == 1024  # what ranks get, not the agent's own


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_probe_is_understood_by_python_3_9(path: Path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    newer = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]
    assert newer == []  # zip(strict=...) came with 3.10


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_probe_of_the_quick_level_imports_torch(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def test_the_check_of_a_run_is_part_of_the_quick_one():
    assert set(BEFORE_RUN) < set(QUICK)


def test_a_probe_that_hangs_is_killed_alone_and_holds_nobody_up():
    answers = ask(
        [
            probe("first", "return 1"),
            probe("hangs", "import time; time.sleep(60)", limit=1.0),
            probe("last", "return 3"),
        ]
    )
    assert answers["first"]["value"] == 1
    assert answers["last"]["value"] == 3
    assert answers["hangs"]["hung"] >= 1.0


def test_what_a_hanging_probe_started_is_killed_with_it(tmp_path: Path):
    mark = tmp_path / "pid"
    body = "import subprocess; p = subprocess.Popen(['sleep', '60']);"
    ask(
        [probe("hangs", f"{body} open({str(mark)!r}, 'w').write(str(p.pid)); p.wait()")],
        lambda probing: call_it_too_late(probing) if mark.exists() and mark.read_text() else None,
    )
    pid = int(mark.read_text())
    wait_until("the end of the probe's child", lambda: process_state(pid) in ("", "Z"))


def test_a_probe_that_dies_is_distinguished_from_one_that_fails():
    answers = ask(
        [
            probe("dies", "import os; os.abort()"),
            probe("fails", "raise ValueError('no')"),
            probe("works", "return ask['host']"),
        ]
    )
    assert answers["dies"]["error"] == "its process died"
    assert answers["fails"]["error"] == "ValueError: no"
    assert answers["works"]["value"] == "here"


def test_many_that_hang_are_killed_side_by_side():
    answers = ask(
        [probe(str(number), "import time; time.sleep(60)") for number in range(6)],
        lambda probing: call_it_too_late(probing) if len(probing.children) == 6 else None,
    )
    assert len(answers) == 6
    assert all("hung" in answer for answer in answers.values())


def test_a_probe_sees_the_environment_and_the_folder_of_the_ranks(tmp_path: Path):
    body = "import os; return [os.environ.get('COLOUR'), os.getcwd()]"
    answers = ask([probe("where", body)], env={"COLOUR": "red"}, cwd=str(tmp_path))
    assert answers["where"]["value"] == ["red", str(tmp_path)]


def test_a_large_answer_arrives_whole():
    assert len(ask([probe("large", "return 'x' * 300000")])["large"]["value"]) == 300000


def test_nothing_to_ask_is_answered_at_once():
    assert ask([]) == {}


def test_no_probe_may_take_longer_than_the_reply_is_waited_for():
    assert all(request["limit"] >= PROBE_LIMIT for request in REQUESTS)
    assert max(request["limit"] for request in REQUESTS) < 10


@pytest.mark.parametrize("nonsense", [None, 3, "x", [], {}, [None], {"x": 1}])
def test_a_host_that_answers_nonsense_does_not_end_the_check_of_the_others(nonsense: Any):
    healthy = cluster(3)
    for probe in healthy.machines[1].answers:
        machine = replace(healthy.machines[1], answers={**healthy.machines[1].answers, probe: nonsense})
        found = findings(replace(healthy, machines=(healthy.machines[0], machine, healthy.machines[2])))
        unjudged = [finding for finding in found if "could not judge" in finding.what]
        assert all(finding.hosts in ((), ("b",)) for finding in unjudged), (probe, unjudged)
