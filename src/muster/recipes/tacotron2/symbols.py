"""Text to indexes of 148 symbols: letters, punctuation, and ARPAbet sounds in braces, `{HH AH0 L OW1}`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

import muster

from .numerals import spell_numbers

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = re.findall(r"[A-Z]+", "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH")
ARPABET = sorted([*CONSONANTS, *VOWELS, *(vowel + stress for vowel in VOWELS for stress in "012")])

SYMBOLS = (
    "_",
    "-",
    *"!'(),.:;? ",
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    *"abcdefghijklmnopqrstuvwxyz",
    *("@" + s for s in ARPABET),
)
"""All symbols in NVIDIA's order; the first one is padding."""

NUMBER_OF = {symbol: number for number, symbol in enumerate(SYMBOLS)}

ABBREVIATIONS = {
    "mrs": "misess",  # as in the training data of the public checkpoints
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}

_ABBREVIATION = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\.", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]+)\}")

# Characters that NFKD does not change. Pound signs stay until the numbers are spelled out.
_ASCII = {
    0x2018: "'",  # quotes
    0x2019: "'",
    0x201C: '"',
    0x201D: '"',
    0x2013: "-",  # dashes
    0x2014: "-",
    **str.maketrans({"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ß": "ss", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}),
    **str.maketrans({"đ": "d", "ð": "d", "þ": "th"}),
}


def to_ascii(text: str) -> str:
    """Remove accents, and replace typographic quotes and dashes by ASCII."""
    spread = unicodedata.normalize("NFKD", text.translate(_ASCII))
    return "".join(letter for letter in spread if ord(letter) < 128 or letter == "£")


def one_space(text: str) -> str:
    """Collapse whitespace to single spaces."""
    return re.sub(r"\s+", " ", text)


def english_cleaners(text: str) -> str:
    """ASCII, lowercase, numbers and abbreviations in words."""
    spelled = spell_numbers(to_ascii(text).lower())
    return one_space(_ABBREVIATION.sub(lambda match: ABBREVIATIONS[match[1].lower()], spelled))


def transliteration_cleaners(text: str) -> str:
    """ASCII and lowercase."""
    return one_space(to_ascii(text).lower())


def basic_cleaners(text: str) -> str:
    """Lowercase."""
    return one_space(text.lower())


CLEANERS: dict[str, Callable[[str], str]] = {
    "english_cleaners": english_cleaners,
    "transliteration_cleaners": transliteration_cleaners,
    "basic_cleaners": basic_cleaners,
}


def find_cleaners(names: Sequence[str]) -> list[Callable[[str], str]]:
    """Return the cleaners of these names."""
    unknown = next((name for name in names if name not in CLEANERS), None)
    if unknown:
        raise muster.UsageError(f"unknown text cleaner {unknown}", hint=f"choose from {', '.join(CLEANERS)}")
    return [CLEANERS[name] for name in names]


def symbols_of(text: str, cleaners: Sequence[Callable[[str], str]] = (english_cleaners,)) -> list[int]:
    """Return the symbol indexes of a text; characters that are not symbols after cleaning are dropped."""
    numbers: list[int] = []
    # Splitting by a pattern with one group alternates text and sounds.
    for i, part in enumerate(_BRACES.split(text)):
        if i % 2:
            numbers += [NUMBER_OF["@" + sound] for sound in part.split() if "@" + sound in NUMBER_OF]
            continue
        for clean in cleaners:
            part = clean(part)
        numbers += [NUMBER_OF[letter] for letter in part if letter in NUMBER_OF and letter != "_"]
    return numbers


def unknown_letters(text: str, cleaners: Sequence[Callable[[str], str]] = (english_cleaners,)) -> str:
    """Return the letters and sounds of a text that are not symbols, each once; other characters are ignored."""
    unknown: list[str] = []
    for i, part in enumerate(_BRACES.split(text)):
        if i % 2:
            unknown += [sound for sound in part.split() if "@" + sound not in NUMBER_OF]
            continue
        for letter in filter(str.isalnum, part):
            cleaned = letter
            for clean in cleaners:
                cleaned = clean(cleaned)
            if not any(each in NUMBER_OF for each in cleaned):
                unknown.append(letter)
    return " ".join(dict.fromkeys(unknown))
