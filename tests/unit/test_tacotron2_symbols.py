"""Text to symbols, as in the training data of the public checkpoints."""

from __future__ import annotations

import pytest

import muster
from muster.recipes.tacotron2.numerals import cardinal, ordinal, spell_numbers, year
from muster.recipes.tacotron2.symbols import (
    NUMBER_OF,
    SYMBOLS,
    basic_cleaners,
    english_cleaners,
    find_cleaners,
    symbols_of,
    unknown_letters,
)


def test_there_are_148_symbols_in_nvidias_order():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 148
    assert "".join(SYMBOLS[:12]) == "_-!'(),.:;? "
    assert (SYMBOLS[12], SYMBOLS[37], SYMBOLS[38], SYMBOLS[63]) == ("A", "Z", "a", "z")
    assert (SYMBOLS[64], SYMBOLS[65], SYMBOLS[-1]) == ("@AA", "@AA0", "@ZH")


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("7", "seven"),
        ("42 men", "forty-two men"),
        ("1,234", "twelve thirty-four"),
        ("12,345", "twelve thousand, three hundred forty-five"),
        ("1905", "nineteen oh five"),
        ("1900", "nineteen hundred"),
        ("2000", "two thousand"),
        ("2004", "two thousand four"),
        ("2017", "twenty seventeen"),
        ("3.14", "three point fourteen"),
        ("21st", "twenty-first"),
        ("112th", "one hundred and twelfth"),
        ("30th", "thirtieth"),
        ("$1", "one dollar"),
        ("$2.50", "two dollars, fifty cents"),
        ("$0.01", "one cent"),
        ("£20", "twenty pounds"),
    ],
)
def test_numbers_are_spelled_out(text, spoken):
    assert spell_numbers(text) == spoken


def test_numbers_of_any_length_have_words():
    assert cardinal(0) == "zero"
    assert cardinal(1_000_000) == "one million"
    assert spell_numbers("9" * 30).split() == ["nine"] * 30
    for number in range(1, 3000):
        assert ordinal(number).isascii()
        assert not any(letter.isdigit() for letter in ordinal(number) + cardinal(number) + year(1001 + number % 1998))


def test_english_is_cleaned_as_the_original_does():
    assert english_cleaners("Dr.  Smith's  café") == "doctor smith's cafe"
    assert english_cleaners("Mrs. Jones, Ltd.") == "misess jones, limited"
    assert english_cleaners("\u201cQuoted\u201d \u2014 text") == '"quoted" - text'


def test_sounds_in_braces_are_read_as_they_are():
    assert symbols_of("Turn {HH AW1 S}.") == [NUMBER_OF[s] for s in ("t", "u", "r", "n", " ", "@HH", "@AW1", "@S", ".")]


def test_padding_is_never_part_of_a_text():
    assert symbols_of("a_b") == [NUMBER_OF["a"], NUMBER_OF["b"]]


def test_letters_without_a_symbol_are_found():
    assert unknown_letters("Hello, world! [sic] \u201cx\u201d 5%") == ""
    assert unknown_letters("日本 {HH QQ}") == "日 本 QQ"
    assert unknown_letters("café", [basic_cleaners]) == "é"


def test_an_unknown_cleaner_is_named():
    with pytest.raises(muster.UsageError, match="unknown text cleaner klingon"):
        find_cleaners(["klingon"])
