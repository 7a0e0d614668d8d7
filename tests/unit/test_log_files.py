"""The ranks' log files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.output.log_files import LogFiles


def write(texts: list[tuple[Path, str]]) -> list[str]:
    said: list[str] = []
    logs = LogFiles(said.append)
    for path, text in texts:
        logs.write(path, text)
    logs.close()
    return said


def test_a_log_file_holds_exactly_what_the_rank_wrote_and_is_private(tmp_path: Path):
    path = tmp_path / "a" / "rank-0.log"
    assert write([(path, "x\r50%\rü"), (path, "\udcff\udcfe\n")]) == []
    assert path.read_bytes() == b"x\r50%\r\xc3\xbc\xff\xfe\n"
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_disk_that_is_full_is_reported_once_and_stops_nothing_else(tmp_path: Path):
    full, good = Path("/dev/full"), tmp_path / "rank-1.log"
    said = write([(full, "a" * 100_000), (good, "one\n"), (full, "b" * 100_000), (good, "two\n")])
    assert said == ["Muster stopped writing /dev/full: No space left on device"]
    assert good.read_text() == "one\ntwo\n"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    (word,) = write([(tmp_path / "file" / "rank-0.log", "x")])
    assert "rank-0.log: " in word


def test_hundreds_of_ranks_over_many_attempts_do_not_use_up_the_descriptors(tmp_path: Path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    said: list[str] = []
    logs = LogFiles(said.append)
    for number in range(2000):
        logs.write(tmp_path / f"rank-{number}.log", "x\n")
        if number % 100 == 0:
            threading.Event().wait(0.01)
    logs.close()
    assert said == []
    assert len(list(tmp_path.iterdir())) == 2000
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_rewritten_file_has_the_last_content_and_leaves_nothing_else(tmp_path: Path):
    said: list[str] = []
    logs = LogFiles(said.append)
    for number in range(50):
        logs.replace(tmp_path / "state.json", lambda number=number: str(number).encode())
    logs.close()
    assert said == []
    assert (tmp_path / "state.json").read_bytes() == b"49"
    assert list(tmp_path.iterdir()) == [tmp_path / "state.json"]


def test_a_file_that_cannot_be_rewritten_is_reported_once_and_retried(tmp_path: Path):
    said: list[str] = []
    logs = LogFiles(said.append)
    path = tmp_path / "later" / "state.json"
    logs.replace(path, lambda: b"1")
    logs.replace(path, lambda: b"2")
    while not said:
        threading.Event().wait(0.01)
    path.parent.mkdir()
    logs.replace(path, lambda: b"3")
    logs.close()
    assert said == [f"could not write {path}: No such file or directory"]
    assert path.read_bytes() == b"3"


@contextmanager
def held_up(logs: LogFiles, folder: Path) -> Iterator[None]:
    """Let the thread that writes do nothing until all is queued."""
    go_on = threading.Event()
    logs.replace(folder / "first", lambda: b"1" if go_on.wait(30) else b"0")
    yield
    go_on.set()


def test_what_a_rank_wrote_can_be_read_as_soon_as_a_state_was_written_after_it(tmp_path: Path):
    logs = LogFiles(lambda sentence: None)
    seen: list[bytes] = []

    def look() -> bytes:
        """Called when the state is about to be written."""
        seen.extend((tmp_path / name).read_bytes() for name in ("rank-0.log", "order"))
        return b"{}"

    with held_up(logs, tmp_path):
        logs.write(tmp_path / "rank-0.log", "x\n", "0 1")
        logs.replace(tmp_path / "state.json", look)
    logs.close()
    assert (seen[0], seen[1][:6]) == (b"x\n", b"0 1 2 ")


def test_what_ranks_wrote_in_one_attempt_can_be_read_when_the_folder_of_the_next_is_there(tmp_path: Path):
    logs = LogFiles(lambda sentence: None)
    first, second = (tmp_path / f"attempt-{number}" / "rank-0.log" for number in range(2))
    seen: list[bytes] = []

    class Watched(type(tmp_path)):
        """A directory that reports what is to be read when it is created."""

        def mkdir(self, *args: Any, **kwargs: Any) -> None:
            seen.append(first.read_bytes())
            super().mkdir(*args, **kwargs)

    with held_up(logs, tmp_path):
        logs.write(first, "x\n")
        logs.write(Watched(second.parent) / second.name, "y\n")
    logs.close()
    assert seen == [b"x\n"]
    assert second.read_bytes() == b"y\n"


def test_content_that_cannot_be_created_is_reported_once_and_logs_continue(tmp_path: Path):
    said: list[str] = []
    logs = LogFiles(said.append)
    for _ in range(2):
        logs.replace(tmp_path / "state.json", lambda: b"%d" % {}["epoch"])
    logs.write(tmp_path / "rank-0.log", "x\n")
    logs.close()
    assert said == [f"could not write {tmp_path}/state.json: KeyError: 'epoch'"]
    assert (tmp_path / "rank-0.log").read_text() == "x\n"
