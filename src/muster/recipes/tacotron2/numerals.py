"""Numbers in words, as in the training data of the public checkpoints: 1905 is "nineteen oh five", $2 "two dollars"."""

from __future__ import annotations

import re

ONES = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion")
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def spell_numbers(text: str) -> str:
    """Write every number of a text in words: money, decimals, ordinals, years and the rest."""
    text = re.sub(r"[0-9][0-9,]+[0-9]", lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"£([0-9]+)", r"\1 pounds", text)
    text = re.sub(r"\$([0-9]*\.?[0-9]+)", lambda match: _dollars(match[1]), text)
    text = re.sub(r"([0-9]+)\.([0-9]+)", r"\1 point \2", text)
    text = re.sub(r"([0-9]+)(?:st|nd|rd|th)\b", lambda match: ordinal(int(match[1])), text)
    return re.sub(r"[0-9]+", lambda match: _number(match[0]), text)


def cardinal(number: int, *, conjunction: str = "") -> str:
    """Write a number in words: 1,234 is "one thousand, two hundred thirty-four"."""
    if number == 0:
        return ONES[0]
    groups: list[str] = []
    for scale in SCALES:
        number, group = divmod(number, 1000)
        if group:
            groups.append(f"{_below_1000(group, conjunction)} {scale}".rstrip())
        if not number:
            return ", ".join(reversed(groups))
    return " ".join(ONES[int(digit)] for digit in str(number))


def ordinal(number: int) -> str:
    """Write an ordinal in words: 21 is "twenty-first"."""
    words = cardinal(number, conjunction="and ")
    head, last = re.fullmatch(r"(.*?)([a-z]+)", words, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if last in ORDINALS:
        return head + ORDINALS[last]
    return head + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(number: int) -> str:
    """Write a number from 1001 to 2999 as a year."""
    if number == 2000:
        return "two thousand"
    if 2000 < number < 2010:
        return f"two thousand {cardinal(number % 100)}"
    high, low = divmod(number, 100)
    if low == 0:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"


def _number(digits: str) -> str:
    if len(digits) > 21:  # too large to have a name
        return " ".join(ONES[int(digit)] for digit in digits)
    number = int(digits)
    return year(number) if 1000 < number < 3000 else cardinal(number)


def _dollars(amount: str) -> str:
    whole, _, rest = amount.partition(".")
    dollars, cents = int(whole or 0), int(rest or 0)
    parts = [
        f"{count} {unit}{'' if count == 1 else 's'}" for count, unit in ((dollars, "dollar"), (cents, "cent")) if count
    ]
    return ", ".join(parts) or "zero dollars"


def _below_1000(number: int, conjunction: str) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest:
        tens, ones = divmod(rest, 10)
        small = ONES[rest] if rest < 20 else TENS[tens] + (f"-{ONES[ones]}" if ones else "")
        words.append(f"{conjunction if hundreds else ''}{small}")
    return " ".join(words)
