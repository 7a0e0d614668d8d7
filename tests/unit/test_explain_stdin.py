"""Scripts that ask where nobody can answer, explained."""

from __future__ import annotations

import pytest
from explaining import end, nothing_is_said, why

from muster.controller.diagnosis.rank_end import RankEnd

EOF = "EOF when reading a line"


def asks(rank: int, **more: bool) -> RankEnd:
    return end(rank, message=EOF, kind="EOFError", **more)


def test_a_rank_without_stdin_gets_the_hint_that_rank_0_has_one():
    found = why(asks(3), end(0, status=-15, stopped=True, has_stdin=True))
    assert found.sentence == "rank 3 on h4 has no stdin, so input() cannot read there; only rank 0 has stdin"
    assert "rank 0 only" in found.fix


@pytest.mark.parametrize("rank", [0, 3])
def test_a_job_without_stdin_gets_a_hint_how_to_provide_it(rank: int):
    found = why(end(rank, summary="bdb.BdbQuit"), end(1, status=-15, stopped=True))
    assert found.sentence.startswith("this job has no stdin, so breakpoint() cannot read")
    assert "foreground" in found.fix


def test_ranks_that_share_one_stdin_are_reported():
    found = why(asks(1, has_stdin=True), end(0, status=0, has_stdin=True))
    assert found.sentence == "all ranks on h2 share one stdin, and it was at its end when rank 1 read it"


def test_the_end_of_a_file_and_a_debugger_that_the_user_left_need_no_explanation():
    assert nothing_is_said(asks(0, has_stdin=True), end(1, status=-15, stopped=True))
    assert nothing_is_said(end(0, summary="bdb.BdbQuit", has_stdin=True), end(1, status=0, has_stdin=True))
    assert nothing_is_said(end(0, message="Ran out of input", kind="EOFError"))
