"""Pieces of a log: its end, what is new, what is found; never more than a browser can take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.dashboard.log_pieces import find, find_in_all, last_lines, new_lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.log"


def texts(piece: object) -> list[str]:
    return [line.text for line in piece.lines]  # pyright: ignore


def test_a_short_log_comes_whole(log: Path):
    log.write_bytes(b"one\ntwo\nthr")
    piece = last_lines(log)
    assert texts(piece) == ["one", "two"]
    assert piece.unfinished == "thr"
    assert (piece.start, piece.end, piece.size) == (0, 8, 11)


def test_going_back_piece_by_piece_meets_every_line_once(log: Path):
    lines = [f"line {number} " + "x" * (number % 90) for number in range(9000)]
    log.write_text("\n".join(lines) + "\n")
    found: list[str] = []
    before = None
    while before != 0:
        piece = last_lines(log, before)
        assert len(piece.lines) <= 1000
        found[:0] = texts(piece)
        before = piece.start
    assert found == lines


def test_following_meets_every_line_once(log: Path):
    log.write_bytes(b"a\nb")
    first = last_lines(log)
    log.write_bytes(b"a\nbc\nd\ne")
    second = new_lines(log, first.end)
    log.write_bytes(b"a\nbc\nd\nef\n")
    third = new_lines(log, second.end)
    assert [texts(piece) for piece in (first, second, third)] == [["a"], ["bc", "d"], ["ef"]]
    assert [piece.unfinished for piece in (first, second, third)] == ["b", "e", ""]


def test_a_rank_that_writes_faster_than_one_reads_costs_lines_not_memory(log: Path):
    log.write_bytes(b"start\n" + b"much\n" * 100_000 + b"end\n")
    piece = new_lines(log, 6)
    assert texts(piece)[-1] == "end"
    assert piece.skipped == piece.start - 6 > 400_000
    assert len(piece.lines) <= 1000


def test_a_log_that_became_shorter_is_read_again(log: Path):
    log.write_bytes(b"new\n")
    assert texts(new_lines(log, 5000)) == ["new"]


def test_a_line_without_end_does_not_grow_the_answer(log: Path):
    log.write_bytes(b"x" * 3_000_000)
    assert len(last_lines(log).unfinished) < 5000
    assert len(texts(find(log, "XXX"))[0]) < 5000


def test_a_search_finds_the_last_lines_in_capitals_or_not(log: Path):
    log.write_bytes(b"".join(b"Loss is NaN %d\nother\n" % number for number in range(1000)))
    piece = find(log, "nan")
    assert texts(piece) == [f"Loss is NaN {number}" for number in range(800, 1000)]
    assert texts(find(log, "nan", piece.start))[-1] == "Loss is NaN 799"
    assert find(log, "nothing of it").start == 0


def test_where_a_line_was_found_is_where_it_stands(log: Path):
    log.write_bytes("ä\nneedle\n".encode())
    (line,) = find(log, "needle").lines
    assert log.read_bytes()[line.at :] == b"needle\n"


def test_a_huge_log_is_searched_for_a_limited_time(log: Path):
    with log.open("wb") as file:
        file.write(b"needle\n")
        file.truncate(1 << 30)  # zeros that take no room on the disk
    piece = find(log, "needle", seconds=0.01)
    assert piece.lines == ()
    assert 0 < piece.start < 1 << 30  # it says how far it came
    assert len(last_lines(log).unfinished) < 5000


def test_a_search_in_all_logs_leaves_no_rank_out(tmp_path: Path):
    paths = {rank: tmp_path / f"rank-{rank}.log" for rank in range(40)}
    for rank, path in paths.items():
        if rank != 7:
            path.write_text(f"needle {rank}\n" * 100)
    found = find_in_all(paths, "needle")
    assert {rank for rank, _ in found.lines} == set(paths) - {7}
    assert len(found.lines) <= 200
    assert set(found.not_all_of) == set(paths) - {7}


def test_colours_bars_and_control_characters_become_plain_text(log: Path):
    log.write_bytes(b"\x1b[1;31mred\x1b[0m\n 10%\r 50%\r100%\ntitle\x1b]0;x\x07!\na\x00b\x08c\n\xff\xfe\nwindows\r\n")
    assert texts(last_lines(log)) == ["red", "100%", "title!", "a␀b␈c", "\ufffd\ufffd", "windows"]


def test_a_log_that_is_a_pipe_is_refused_and_blocks_nobody(log: Path):
    os.mkfifo(log)
    for read in (lambda: last_lines(log), lambda: new_lines(log, 0), lambda: find(log, "x")):
        with pytest.raises(OSError, match="not a regular file"):
            read()
