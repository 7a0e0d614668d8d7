"""`--fetch`: what is copied and where to, whatever hosts call their files; local files are kept."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from muster.agent import job_results
from muster.agent.job_results import ResultFiles
from muster.controller.diagnosis.verdict import Verdict
from muster.controller.fetched_results import FetchedResults
from muster.controller.result_paths import (
    MOST_BYTES,
    MOST_FILES,
    Found,
    check_patterns,
    copies,
    is_asked_for,
    is_safe,
    within_limits,
)
from muster.errors import HostError, UsageError
from muster.hosts import Host
from muster.job import Job
from muster.shared.light_selectors import Selector
from muster.spec import RunSpec


def found(path: str, size: int = 1, mtime_ns: int = 10**9) -> Found:
    return Found(path=path, size=size, mtime_ns=mtime_ns)


# --- which files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "/etc/passwd", "../x", "a/../../b", "~/x"])
def test_a_pattern_that_leads_out_of_the_working_directory_is_refused(pattern: str):
    with pytest.raises(UsageError):
        check_patterns([pattern], sync=True)


def test_fetch_needs_sync():
    with pytest.raises(UsageError, match="--sync"):
        check_patterns(["out"], sync=False)


@pytest.mark.parametrize(
    ("path", "pattern", "asked"),
    [
        ("out/a.pt", "out/*.pt", True),
        ("out/a.pt", "out", True),
        ("out/a.pt", "./out/", True),
        ("out/deep/a.pt", "out", True),
        ("out/deep/a.pt", "out/*", True),
        ("out/deep/a.pt", "**/*.pt", True),
        ("a.pt", "**/*.pt", True),
        ("a.pt", ".", True),
        ("outer/a.pt", "out", False),
        (".git/hooks/pre-commit", "out", False),
        ("out/a.txt", "out/*.pt", False),
        ("train.py", "out/*", False),
        ("out/.hidden", "out", True),
        ("out/.hidden", "*", True),
        (".git/config", "*", False),
        (".git/config", "**", False),
        (".git/config", "**/config", False),
        (".git/config", "*/config", False),
        (".cache/a", ".*", True),
        (".cache/a", ".", True),
        ("out/deep/a.pt", "**", True),
        ("out/a/b/c.pt", "out/**/c.pt", True),
        ("a/" * 2000 + "b", "**/b", True),
        ("out/c.pt", "out/**/c.pt", True),
    ],
)
def test_only_what_a_pattern_names_is_taken_from_a_host(path: str, pattern: str, asked: bool):
    assert is_asked_for(path, [pattern]) == asked


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.", "a\0b", "a\ud800", "a" * 5000]
)
def test_a_name_that_is_no_plain_path_is_not_taken(path: str):
    assert not is_safe(found(path))


@pytest.mark.parametrize("one", [found("a", -1), found("a", 1, -1), found("a", 1, 1 << 70)])
def test_impossible_sizes_and_times_are_not_taken(one: Found):
    assert not is_safe(one)
    assert is_safe(found("a"))


def test_the_first_host_keeps_a_path_and_others_get_a_directory_of_their_own():
    by_host = {"a": [found("log")], "b": [found("log", 2), found("b.txt")], "c": [found("log", 3), found("b.txt", 9)]}
    assert [(one.host, one.target) for one in copies(by_host)] == [
        ("a", "log"),
        ("b", "b/log"),
        ("b", "b.txt"),
        ("c", "c/log"),
        ("c", "c/b.txt"),
    ]


def test_a_directory_that_hosts_share_is_copied_once():
    assert [one.host for one in copies({"a": [found("log")], "b": [found("log")]})] == ["a"]


def test_too_much_is_left_out():
    taken, left = within_limits([found("a", MOST_BYTES - 1), found("b", 2)])
    assert ([one.path for one in taken], [one.path for one in left]) == (["a"], ["b"])
    assert len(within_limits([found(str(n)) for n in range(MOST_FILES + 3)])[1]) == 3


# --- on the host --------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "code"
    (root / "out" / "deep").mkdir(parents=True)
    (root / "out" / "a.pt").write_bytes(b"x" * 1_000_000)
    (root / "out" / "deep" / "empty").touch()
    (root / "train.py").write_text("pass\n")
    os.mkfifo(root / "out" / "fifo")
    (root / "out" / "gone").symlink_to("nowhere")
    (root / "out" / "latest.pt").symlink_to("a.pt")
    monkeypatch.chdir(root)
    return root


def test_files_are_found_by_path_and_glob_and_nothing_that_never_ends(tree: Path):
    paths = [one["path"] for part in job_results.find(["out", "*.py", "none*"]) for one in part["files"]]
    assert sorted(paths) == ["out/a.pt", "out/deep/empty", "out/latest.pt", "train.py"]


def test_a_file_comes_in_pieces_and_one_that_is_missing_with_a_reason(tree: Path):
    parts = list(job_results.read(["out/a.pt", "missing"]))
    data = b"".join(base64.b64decode(part["piece"]) for part in parts if part["path"] == "out/a.pt")
    assert data == b"x" * 1_000_000
    assert parts[-2]["piece"] == ""
    assert (parts[-1]["path"], parts[-1]["problem"]) == ("missing", "No such file or directory")


def test_the_agent_sends_one_part_for_each_request(tree: Path):
    sent: list[Any] = []
    with closing(Selector()) as selector:
        results = ResultFiles(
            selector, lambda data: sent.append(json.loads(data)), {"what": "find", "names": ["out"]}, str(tree)
        )

        def turn() -> None:
            for key, _ in selector.select(0.1):
                key.data()

        for number in (1, 2):
            results.more(number)
            wait_until("a part", lambda number=number: turn() or len(sent) == number)
        results.end()
        assert not selector.get_map()
    assert [message["re"] for message in sent] == [1, 2]
    assert (len(sent[0]["files"]), sent[0]["over"], sent[1]["over"]) == (3, False, True)


def test_a_directory_that_is_missing_is_a_problem_and_the_agent_lives(tmp_path: Path):
    sent: list[Any] = []
    with closing(Selector()) as selector:
        results = ResultFiles(
            selector,
            lambda data: sent.append(json.loads(data)),
            {"what": "find", "names": ["out"]},
            str(tmp_path / "none"),
        )
        results.more(1)
        wait_until("a part", lambda: [key.data() for key, _ in selector.select(0.1)] and bool(sent))
        results.end()
    assert sent[0]["over"]
    assert "No such file or directory" in sent[0]["problem"]


# --- on this machine ----------------------------------------------------------------------------------------------


class Screen:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warning = info


NOTHING = {"files": [], "path": "", "piece": "", "problem": "", "over": False}


class Link:
    """A host with files; it may lie about them."""

    lost = None

    def __init__(self, name: str, files: dict[str, bytes], *, sizes: dict[str, int] | None = None) -> None:
        self.name = name
        self.files = files
        self.sizes = sizes or {}
        self.parts: list[dict[str, Any]] = []
        self.stalls = False
        self.waits = False

    async def request(self, do: str, *, limit: float, what: str = "", names: tuple[str, ...] = ()) -> dict[str, Any]:
        if do == "more_results":
            if self.waits:
                await asyncio.sleep(3600)
            if self.stalls:
                raise HostError(self.name, "no answer to `more_results` within 60 s")
            return {**NOTHING, **self.parts.pop(0)}
        if what == "find":
            listed = [
                {"path": path, "size": self.sizes.get(path, len(data)), "mtime_ns": 5 * 10**9}
                for path, data in self.files.items()
            ]
            self.parts = [{"files": listed}, {"over": True}]
        else:
            pieces = [(name, data) for name in names for data in (self.files[name], b"")]
            self.parts = [{"path": name, "piece": base64.b64encode(data).decode()} for name, data in pieces]
            self.parts.append({"over": True})
        return {}


def fetched(root: Path, *links: Any, patterns: tuple[str, ...] = ("out",)) -> tuple[list[str], int]:
    """What is said, and the exit code of a job whose ranks ended well."""
    screen = Screen()
    results = make(root, screen, patterns)
    asyncio.run(results.copy(links))
    return screen.lines, results.add_to(Verdict(exit_code=0)).exit_code


def make(root: Path, screen: Screen, patterns: tuple[str, ...] = ("out",)) -> FetchedResults:
    spec = RunSpec(target="t.py", cwd=str(root), sync=True, fetch=patterns)
    job = Job(id="job", spec=spec, hosts=(Host(name="a"),), carried={})
    return FetchedResults(job, screen)  # type: ignore[arg-type]


def test_files_come_back_with_their_times(tmp_path: Path):
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"one"}), Link("b", {"out/x": b"other", "out/y": b"two"}))
    assert code == 0
    assert {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        "out/x": b"one",
        "b/out/x": b"other",
        "out/y": b"two",
    }
    assert int((tmp_path / "out/x").stat().st_mtime) == 5
    assert lines == [
        f"copied 3 files (11 bytes) from a, b to {tmp_path}",
        "files that an earlier host has too are in b/",
    ]


def test_a_local_file_is_kept_beside_the_one_that_replaces_it(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").write_text("mine")
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"new"}))
    assert ((tmp_path / "out/x").read_text(), (tmp_path / "out/x~").read_text(), code) == ("new", "mine", 0)
    assert lines[-1] == "1 file replaced; previous versions: out/x~"


def test_a_file_that_did_not_change_is_not_copied(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").write_text("one")
    os.utime(tmp_path / "out/x", (5, 5))
    assert fetched(tmp_path, Link("a", {"out/x": b"one"}), Link("b", {"out/x": b"one"})) == ([], 0)
    assert not (tmp_path / "b").exists()


def test_names_that_were_not_asked_for_are_not_written(tmp_path: Path):
    link = Link("a", {"../evil": b"x", "/tmp/evil": b"x", "train.py": b"x", ".git/hooks/x": b"x", "out/x": b"good"})
    (tmp_path / "p").mkdir()
    _, code = fetched(tmp_path / "p", link)
    assert code == 0
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["p/out/x"]


def test_a_link_of_this_machine_that_leads_out_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "p/out").symlink_to(tmp_path / "elsewhere")
    lines, code = fetched(tmp_path / "p", Link("a", {"out/x": b"x"}))
    assert code == 125
    assert "leads out of the working directory" in lines[0]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("size", [1, 9])
def test_a_file_of_another_size_than_announced_is_not_kept(size: int, tmp_path: Path):
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"three", "out/y": b"y"}, sizes={"out/x": size}))
    assert code == 125
    assert lines[0] == "--fetch: a: out/x: it changed while it was copied"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["y"]


def test_a_pattern_without_a_file_is_a_problem(tmp_path: Path):
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"x"}), patterns=("out", "none*"))
    assert (lines[0], code) == ("--fetch: none*: no host has such a file", 125)


def test_a_host_that_sends_nothing_is_given_up_and_the_others_are_copied(tmp_path: Path):
    silent = Link("b", {"out/y": b"y"})
    silent.stalls = True
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"x"}), silent)
    assert code == 125
    assert "b: no answer" in lines[0]
    assert (tmp_path / "out/x").exists()


def test_results_that_do_not_fit_on_this_machine_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    lines, code = fetched(tmp_path, Link("a", {"out/x": b"x"}, sizes={"out/x": 60 << 30}))
    assert code == 125
    assert "has only" in lines[0]


def test_files_that_a_host_lists_and_does_not_send_are_a_problem(tmp_path: Path):
    class Liar(Link):
        async def request(self, do: str, **about: Any) -> dict[str, Any]:
            if about.get("what") == "send":
                self.parts = [{"problem": "the process that reads the files has died", "over": True}]
                return {}
            return await super().request(do, **about)

    lines, code = fetched(tmp_path, Liar("a", {"out/x": b"x", "out/y": b"y"}))
    assert code == 125
    assert lines == ["--fetch: a: the process that reads the files has died; 2 files not copied"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lie", ["find", "send"])
def test_a_host_that_never_ends_is_given_up(tmp_path: Path, lie: str):
    class Endless(Link):
        async def request(self, do: str, **about: Any) -> dict[str, Any]:
            if do == "more_results" and self.parts == []:
                return {**NOTHING, "path": "out/other", "piece": "eA=="}
            await super().request(do, **about) if do == "read_results" else None
            if about.get("what") == lie:
                self.parts = []
            return {**NOTHING, **self.parts.pop(0)} if do == "more_results" else {}

    assert fetched(tmp_path, Endless("a", {"out/x": b"x"}))[1] == 125
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_has_been_removed_is_a_problem(tmp_path: Path):
    lines, code = fetched(tmp_path / "gone", Link("a", {"out/x": b"x"}))
    assert code == 125
    assert "No such file or directory" in lines[0]


def test_copying_can_be_interrupted(tmp_path: Path):
    screen = Screen()
    results = make(tmp_path, screen)
    link = Link("a", {"out/x": b"x"})
    link.waits = True

    async def interrupted() -> None:
        asyncio.get_running_loop().call_later(0.1, results.interrupt)
        await results.copy([link])  # type: ignore[list-item]

    begin = time.monotonic()
    asyncio.run(interrupted())
    assert time.monotonic() - begin < 60
    assert screen.lines == ["--fetch: copying was interrupted"]
    assert not results.interrupt()


def test_a_job_that_failed_keeps_its_exit_code(tmp_path: Path):
    screen = Screen()
    results = make(tmp_path, screen)
    asyncio.run(results.copy([Link("a", {})]))  # type: ignore[list-item]
    assert results.add_to(Verdict(exit_code=3)).exit_code == 3
