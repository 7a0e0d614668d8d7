"""Secondary tracebacks become one line on the screen, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Sequence

from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.traceback_folding import TracebackFolder, reason_to_fold
from muster.output.lines import Line

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:12184. GLHF!"
TRACE = f"""Traceback (most recent call last):
  File "/x/train.py", line 10, in <module>
    dist.all_reduce(t)
{GLOO}
"""


def lines(text: str) -> list[Line]:
    return [Line(line, "\n") for line in text.splitlines()]


def shown(folder: TracebackFolder, text: str) -> list[str]:
    return [item if isinstance(item, str) else item.text for item in folder.pass_on(lines(text))]


def expecting(traceback: str = TRACE) -> TracebackFolder:
    folder = TracebackFolder()
    folder.expect(traceback, "(folded)")
    return folder


def end(rank: int, message: str, traceback: str) -> RankEnd:
    return RankEnd(rank=rank, host="h1", status=1, time=0, summary=message, message=message, traceback=traceback)


def test_an_expected_traceback_becomes_one_line_and_other_lines_stay_in_order():
    assert shown(expecting(), f"before\n{TRACE}after") == ["before", "(folded)", "after"]


def test_only_one_traceback_is_folded():
    folder = expecting()
    assert shown(folder, TRACE) == ["(folded)"]
    assert shown(folder, TRACE) == TRACE.splitlines()


def test_a_traceback_in_pieces_is_folded():
    folder = expecting()
    got = [item for line in TRACE.splitlines() for item in shown(folder, line)]
    assert got == ["(folded)"]


def test_carets_that_python_prints_but_did_not_report_are_folded_too():
    printed = TRACE.replace("all_reduce(t)\n", "all_reduce(t)\n    ^^^^^^^^^^^^\n")
    assert shown(expecting(), printed) == ["(folded)"]


def test_a_colored_traceback_is_folded():
    printed = TRACE.replace('"/x/train.py"', '\x1b[35m"/x/train.py"\x1b[0m')
    assert shown(expecting(), printed) == ["(folded)"]


def test_a_chain_whose_exceptions_have_the_same_text_is_folded_as_a_whole():
    chain = f"{TRACE}\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}"
    assert shown(expecting(chain), f"{chain}after") == ["(folded)", "after"]


def test_another_traceback_is_shown_whole():
    other = TRACE.replace(GLOO, "KeyError: 'mine'")
    assert shown(expecting(), other + "after") == [*other.splitlines(), "after"]


def test_a_traceback_that_breaks_off_is_shown_at_the_end_of_the_rank():
    folder = expecting()
    begun: Sequence[str] = TRACE.splitlines()[:2]
    assert shown(folder, "\n".join(begun)) == []
    assert [line.text for line in folder.give_up()] == begun
    assert folder.give_up() == []


def test_endless_indented_output_is_not_held_back():
    assert len(shown(expecting(), "Traceback (most recent call last):\n" + "  more\n" * 1000)) == 1001


def test_a_lost_connection_and_a_repeated_traceback_are_folded_and_the_first_of_a_kind_is_not():
    known: dict[int, int] = {}
    assert reason_to_fold(end(1, GLOO, TRACE), known) == "rank 1 on h1 lost its connection to another rank"
    mine = TRACE.replace(GLOO, "KeyError: 'mine'")
    assert reason_to_fold(end(2, "KeyError: 'mine'", mine), known) == ""
    assert reason_to_fold(end(3, "KeyError: 'mine'", mine), known).endswith("the same traceback as rank 2")
    assert reason_to_fold(end(4, "KeyError: 'other'", mine + "x"), known) == ""
    assert reason_to_fold(end(5, "exit", ""), known) == ""


def test_a_connection_to_a_server_is_not_called_one_to_another_rank():
    trace = 'Traceback (most recent call last):\n  File "/x/train.py", line 4, in <module>\n    connect()\n'
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    assert reason_to_fold(end(0, refused, trace + refused), {}) == ""
    assert "same traceback as rank 0" in reason_to_fold(end(1, refused, trace + refused), {hash(trace + refused): 0})
