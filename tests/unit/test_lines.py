"""Text as it arrives becomes the same lines, however it is cut."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.output.lines import Line, LineSplitter, without_rank_tag


def split(*pieces: str) -> list[Line]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


def test_lines_end_at_newlines_and_empty_lines_are_kept():
    assert split("a\n\nb\n") == [Line("a", "\n"), Line("", "\n"), Line("b", "\n")]


def test_a_line_that_has_not_ended_waits_for_the_rest():
    splitter = LineSplitter()
    assert splitter.feed("half") == []
    assert splitter.feed(" and half\nmore") == [Line("half and half", "\n")]
    assert splitter.finish() == [Line("more", "")]
    assert splitter.finish() == []


def test_a_progress_bar_gives_one_line_for_each_state():
    assert split("10%\r20%\r30%\n") == [Line("10%", "\r"), Line("20%", "\r"), Line("30%", "\n")]


def test_tqdm_which_writes_the_return_before_the_bar_gives_no_empty_lines():
    assert split("\r10%", "\r20%", "\n") == [Line("10%", "\r"), Line("20%", "\n")]


def test_the_state_of_a_progress_bar_is_known_before_its_line_ends():
    splitter = LineSplitter()
    assert (splitter.feed("text"), splitter.bar) == ([], "")
    splitter = LineSplitter()
    for text, bar in (("\r10%", "10%"), ("\r20", "20"), ("%", "20%"), ("\n", ""), ("plain", ""), ("\r", "plain")):
        splitter.feed(text)
        assert splitter.bar == bar


def test_nested_bars_of_tqdm_are_states_and_their_empty_lines_are_left_out():
    up = "\x1b[A"
    assert split(f"\router 0%\n\rinner 1%{up}\n\rinner 2%{up}\nafter\n") == [
        Line("outer 0%", "\n"),
        Line("inner 1%", "\r"),
        Line("inner 2%", "\r"),
        Line("after", "\n"),
    ]
    assert split(f"\r3rd 1%{up}{up}\n\n\r3rd 2%{up}{up}\n\n\n") == [
        Line("3rd 1%", "\r"),
        Line("3rd 2%", "\r"),
        Line("", "\n"),
    ]
    splitter = LineSplitter()
    splitter.feed(f"\rinner 1%{up}")
    assert splitter.bar == "inner 1%"


def test_the_tag_that_torch_puts_before_errors_is_left_out():
    assert without_rank_tag("[rank1]: ValueError", 1) == "ValueError"
    assert without_rank_tag("[rank1]:   File", 1) == "  File"
    assert without_rank_tag("[rank1]:[W1116 warning", 1) == "[W1116 warning"
    assert without_rank_tag("[rank1]: of another", 11) == "[rank1]: of another"


def test_windows_line_ends_are_newlines_even_when_cut_in_two():
    assert split("a\r\nb\r\n") == [Line("a", "\n"), Line("b", "\n")]
    assert split("a\r", "\nb\r", "\n") == [Line("a", "\n"), Line("b", "\n")]


def test_a_state_of_a_progress_bar_is_shown_when_the_next_one_begins():
    splitter = LineSplitter()
    assert splitter.feed("10%\r") == []
    assert splitter.feed("20%") == [Line("10%", "\r")]


@pytest.mark.parametrize("other", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_newline_and_carriage_return_end_a_line(other: str):
    assert split(f"a{other}b\n") == [Line(f"a{other}b", "\n")]


def test_bytes_that_are_no_utf8_stay_in_their_line_as_surrogates():
    assert split("a\udcff\udcfeb\n") == [Line("a\udcff\udcfeb", "\n")]


@given(st.text(alphabet="ab\r\né\udcff", max_size=60), st.lists(st.integers(0, 60), max_size=12))
def test_any_cut_of_a_text_gives_the_same_lines(text: str, cuts: list[int]):
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[start:stop] for start, stop in itertools.pairwise(edges)]
    whole = split(text)
    assert split(*pieces) == whole
    assert split(*text) == whole


@given(st.text(alphabet="ab \r\n", max_size=60))
def test_nothing_but_line_ends_is_lost(text: str):
    kept = "".join(line.text for line in split(text))
    assert kept == text.replace("\r", "").replace("\n", "")


@given(st.text(alphabet="ab\n", max_size=60))
def test_without_carriage_returns_the_text_can_be_put_together_again(text: str):
    assert "".join(line.text + line.end for line in split(text)) == text


def test_a_long_line_of_small_pieces_takes_no_long_time():
    # A script that prints dots: twice as many must take twice as long, not four times.
    splitter = LineSplitter()
    begin = time.process_time()
    lines = [line for _ in range(100_000) for line in splitter.feed(".")] + splitter.feed("\n")
    assert time.process_time() - begin < 4
    assert "".join(line.text for line in lines) == "." * 100_000
    assert [line.end for line in lines if line.end] == ["\n"]


def test_dots_after_a_carriage_return_take_no_long_time():
    splitter = LineSplitter()
    splitter.feed("\r")
    begin = time.process_time()
    for _ in range(100_000):
        splitter.feed(".")
        assert len(splitter.bar) <= 4096
    assert time.process_time() - begin < 20
    assert splitter.finish() == [Line("." * 100_000, "")]
