"""Logs of ranks read back: merged in the order they came, while they grow and afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from muster.jobs.log_reader import LogTimes, Merged, RankLine, Tail, attempts, pieces_before_last
from muster.output.lines import Line
from muster.output.log_files import LogFiles

PIECES = [(0, 1, "a0\n"), (1, 1, "b0\nb"), (0, 2, "err"), (0, 1, "a1\n"), (1, 1, "1\n"), (0, 2, "or\n"), (1, 1, "ü")]


def write(folder: Path, pieces: list[tuple[int, int, str]]) -> None:
    logs = LogFiles(lambda sentence: None)
    for rank, stream, text in pieces:
        logs.write(folder / f"rank-{rank}.log", text, f"{rank} {stream}")
    logs.close()


def shown(lines: list[RankLine]) -> list[str]:
    return [f"{rank} {line.text}" for rank, line, _ in lines]


def test_lines_come_in_the_order_in_which_they_were_complete_each_stream_by_itself(tmp_path: Path):
    write(tmp_path, PIECES)
    merged = Merged(tmp_path)
    assert shown(list(merged.new())) == ["0 a0", "1 b0", "0 a1", "1 b1", "0 error"]
    assert shown(list(merged.new())) == []
    assert shown(list(merged.rest())) == ["1 ü"]


def test_what_is_added_later_comes_later(tmp_path: Path):
    merged = Merged(tmp_path)
    assert list(merged.new()) == []
    write(tmp_path, PIECES[:3])
    assert shown(list(merged.new())) == ["0 a0", "1 b0"]
    write(tmp_path, PIECES[3:])
    assert shown(list(merged.rest())) == ["0 a1", "1 b1", "0 error", "1 ü"]


def test_a_piece_that_is_announced_and_not_there_yet_is_waited_for(tmp_path: Path):
    (tmp_path / "rank-0.log").write_bytes(b"ab")
    (tmp_path / "order").write_bytes(b"0 1 5\n1 1 3\n0")
    merged = Merged(tmp_path)
    assert list(merged.new()) == []
    (tmp_path / "rank-0.log").write_bytes(b"abcd\n")
    assert list(merged.new()) == [RankLine(0, Line("abcd", "\n"))]
    (tmp_path / "rank-1.log").write_bytes(b"xy\n")
    assert list(merged.new()) == [RankLine(1, Line("xy", "\n"))]


def test_a_letter_that_was_cut_in_two_is_whole_again(tmp_path: Path):
    write(tmp_path, [(0, 1, "\udcc3"), (1, 1, "x\n"), (0, 1, "\udcbc\n")])
    assert shown(list(Merged(tmp_path).rest())) == ["1 x", "0 ü"]


def test_logs_without_their_order_come_rank_by_rank(tmp_path: Path):
    write(tmp_path, PIECES)
    (tmp_path / "order").unlink()
    assert shown(list(Merged(tmp_path).rest())) == ["0 a0", "0 erra1", "0 or", "1 b0", "1 b1", "1 ü"]


def test_hundreds_of_ranks_are_merged_without_using_up_the_descriptors(tmp_path: Path):
    write(tmp_path, [(rank, 1, f"{turn}\n") for turn in range(2) for rank in range(300)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    most = 0
    ranks: list[int] = []
    for rank, _, _ in Merged(tmp_path).rest():
        ranks.append(rank)
        most = max(most, len(list(Path("/proc/self/fd").iterdir())))
    assert ranks == [*range(300), *range(300)]
    assert most < before + 200


def test_a_tail_gives_every_byte_once(tmp_path: Path):
    tail = Tail(tmp_path / "rank-0.log")
    assert list(tail.new()) == []
    (tmp_path / "rank-0.log").write_bytes(b"\xff one")
    assert b"".join(tail.new()) == b"\xff one"
    with (tmp_path / "rank-0.log").open("ab") as file:
        file.write(b" two")
    assert b"".join(tail.new()) == b" two"


def test_attempts_are_counted_by_their_folders(tmp_path: Path):
    for name in ("attempt-10", "attempt-2", "attempt-x", "code"):
        (tmp_path / name).mkdir()
    assert attempts(tmp_path) == [2, 10]


def test_each_line_has_the_time_at_which_it_arrived(tmp_path: Path):
    before = time.time()
    write(tmp_path, PIECES)
    times = [line.time for line in Merged(tmp_path).rest()]
    assert all(moment is not None and before - 0.001 <= moment <= time.time() for moment in times)
    assert times == sorted(times, key=lambda moment: moment or 0.0)


def test_the_time_of_any_byte_of_a_log_is_known(tmp_path: Path):
    (tmp_path / "order").write_bytes(b"0 1 3 1000\n1 1 9 1500\n0 2 2 2500\n")
    times = LogTimes(tmp_path)
    times.update()
    assert [times.at(0, offset) for offset in range(6)] == [1.0, 1.0, 1.0, 2.5, 2.5, None]
    assert times.at(7, 0) is None
    with (tmp_path / "order").open("ab") as file:
        file.write(b"0 1 1 3000\n")
    times.update()
    assert times.at(0, 5) == 3.0


def test_logs_of_an_older_version_have_no_times(tmp_path: Path):
    (tmp_path / "rank-0.log").write_bytes(b"ab\ncd\n")
    (tmp_path / "order").write_bytes(b"0 1 3\n0 1 3\n")
    assert [line.time for line in Merged(tmp_path).rest()] == [None, None]


@pytest.mark.parametrize(
    "order",
    [
        b"junk\n",
        b"\xff\x00\n",
        b"0 1 -3 5\n",
        b"0 1 " + b"9" * 5000 + b"\n",
        b"9" * 5000,
        b"0 3 2 1\n",
        b"0 1 9999999999 1\n",
    ],
)
def test_a_damaged_order_loses_no_line(tmp_path: Path, order: bytes):
    (tmp_path / "rank-0.log").write_bytes(b"one\ntwo\n")
    (tmp_path / "order").write_bytes(b"0 1 4 1000\n" + order)
    assert shown(list(Merged(tmp_path).rest())) == ["0 one", "0 two"]


def test_directories_and_pipes_in_place_of_logs_are_skipped(tmp_path: Path):
    (tmp_path / "order").mkdir()
    os.mkfifo(tmp_path / "rank-0.log")
    (tmp_path / "rank-1.log").mkdir()
    (tmp_path / "rank-2.log").write_bytes(b"x\n")
    assert shown(list(Merged(tmp_path).rest())) == ["2 x"]
    assert list(Merged(tmp_path / "order" / "none").rest()) == []


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RankLine]]:
    """A directory with long logs, and all of their lines."""
    folder = tmp_path_factory.mktemp("long")
    write(folder, [(number % 3, 1 + number % 2, f"a{number}\nb{number}\n") for number in range(3000)])
    return folder, list(Merged(folder).rest())


@pytest.mark.parametrize("ranks", [None, {0}, {0, 2}])
@pytest.mark.parametrize("lines", [0, 1, 10, 10_000])
def test_the_last_lines_of_a_long_log_are_found_without_reading_all_of_it(
    long_log: tuple[Path, list[RankLine]], lines: int, ranks: set[int] | None
):
    folder, everything = long_log
    skip = pieces_before_last(folder, lines, None if ranks is None else frozenset(ranks))
    assert (skip > 2900) == (lines <= 10)

    def last(read: list[RankLine]) -> list[str]:
        chosen = [line for line in read if ranks is None or line.rank in ranks]
        return shown(chosen[max(0, len(chosen) - lines) :])

    assert last(list(Merged(folder, skip=skip).rest())) == last(everything)
