"""Create a corpus in the format of LJSpeech with espeak-ng: one clear voice, any length, for tests and demos.

    apt install espeak-ng
    python -m muster.recipes.tacotron2.corpus spoken --hours 1
    python -m muster.recipes.tacotron2.corpus spoken --hours 0.1 --texts sentences.txt

writes spoken/metadata.csv and spoken/wavs/ES000001.wav and so on, 22,050 samples per second, 16 bits, one channel. An
hour takes about 15 s on one core. Without --texts the sentences are composed of common words and of words that do not
exist.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import muster
from muster.recipes._flag_types import number

RATE = 22050
LIMIT = 60.0
"""Timeout of espeak-ng for one sentence, in seconds."""

NOUNS = """
    river teacher neighbour captain child garden village stranger judge bridge box apple paper street answer clock
    loaf harbour kitchen journey window letter mountain doctor farmer horse basket candle engine forest guitar
    hammer island jacket ladder market needle orchard pencil queen rabbit saddle table uncle valley wagon zebra
    mirror shadow thunder blanket chimney dragon elephant feather giraffe helmet insect jungle kettle lantern
    magnet notebook ocean painter quarrel robin sailor tailor umbrella violin whistle yard bucket cottage dentist
    evening fountain glacier hotel idea jewel king library museum nurse office palace quilt rocket school temple
    uniform vase winter author barrel circus diamond envelope family ghost hunter iron joke knife lemon minister
    number owner pocket rope spoon tower voice wheel
"""
ADJECTIVES = """
    old quiet broken wooden fresh narrow bright heavy gentle clever curious distant empty famous golden hungry icy
    jolly kind lonely modern nervous orange patient rapid silent tiny useful violet warm young angry blue cheap
    deep early fair green huge strange loud muddy noble odd proud rough sharp thick ugly vast wide yellow
"""
ACTIONS = """
    watched carried remembered built followed painted promised measured opened described repeated wanted admired
    borrowed counted delivered examined found guarded heard ignored joined kept lifted mended noticed ordered
    pushed questioned received sold touched understood visited washed answered bought caught dropped enjoyed forgot
    gathered hid invited judged knew loved moved needed offered pulled reached saved threw used valued warned
"""
PLACES = """
    near before under behind above beside beyond inside outside without against around across between towards below
"""
ONSETS = "b bl br ch d dr f fl fr g gl gr h j k kr l m n p pl pr r s sh sk sl st t th tr v w y z"
VOWELS = "a e i o u ai ee oa oo ow"
CODAS = "b d ft g ld lk lt m mp n nd nk nt p rd rk rm rn rt sh sk sp st t th x"
LINKS = ("and then", "because", "while", "although", "so that", "until", "but", "when", "since", "as if")


def main() -> None:
    """Synthesize sentences until the corpus is long enough."""
    args = parse()
    try:
        count, seconds = make_corpus(Path(args.folder), hours=args.hours, texts=args.texts, voice=args.voice)
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)
    print(f"{args.folder}: {count} clips, {seconds / 3600:.2f} hours")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tacotron2.corpus",
        description="Create a corpus in the format of LJSpeech with espeak-ng.",
        epilog="example: python -m muster.recipes.tacotron2.corpus spoken --hours 1",
        allow_abbrev=False,
    )
    parser.add_argument("folder", help="a new directory")
    parser.add_argument("--hours", type=number(above=0), default=1.0, help="hours of speech (1.0)")
    parser.add_argument("--texts", metavar="FILE", help="sentences to speak, one per line")
    parser.add_argument("--voice", default="en-us", help="voice of espeak-ng (en-us)")
    return parser.parse_args()


def make_corpus(folder: Path, *, hours: float, texts: str | None, voice: str) -> tuple[int, float]:
    """Write wavs and metadata.csv, and return the number of clips and their seconds."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise muster.UsageError("espeak-ng is not installed", hint="apt install espeak-ng")
    if (folder / "metadata.csv").exists():
        raise muster.UsageError(f"{folder} already has a corpus", hint="choose a new directory")
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    sentences = read_sentences(Path(texts)) if texts else synthetic_sentences(random.Random(0))
    lines: list[str] = []
    seconds = 0.0

    def say(numbered: tuple[int, str]) -> tuple[str, str, float]:
        number, text = numbered
        name = f"ES{number:06}"
        return name, text, speak(program, text, folder / "wavs" / f"{name}.wav", voice)

    with ThreadPoolExecutor() as speakers:
        numbered = enumerate(sentences, 1)
        while seconds < hours * 3600:
            some = [each for _, each in zip(range(64), numbered, strict=False)]
            for name, text, length in speakers.map(say, some):
                lines.append(f"{name}|{text}|{text}\n")
                seconds += length
            if len(some) < 64:
                break
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return len(lines), seconds


def speak(program: str, text: str, path: Path, voice: str) -> float:
    """Let espeak-ng write a sentence to a wav file, and return its duration in seconds."""
    command = [program, "-v", voice, "-s", "200", "-w", str(path), "--", text]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise muster.MusterError(f"espeak-ng timed out after {LIMIT:.0f} s for: {text}") from None
    if done.returncode:
        raise muster.MusterError(f"espeak-ng failed for: {text}: {done.stderr.strip()}")
    with wave.open(str(path), "rb") as file:
        return file.getnframes() / RATE


def read_sentences(path: Path) -> Iterator[str]:
    """The lines of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise muster.UsageError(f"cannot read {path}: {error.strerror}") from None
    return (line.strip().replace("|", " ") for line in lines if line.strip())


def synthetic_sentences(chance: random.Random) -> Iterator[str]:
    """An endless stream of sentences: half take one to two seconds, a third up to four, the others up to nine.

    Any word may follow any other, and half of the nouns are not real words ("the muddy zeefuft"): previous words do
    not predict the next one, so a model has to attend to the text. Many sentences are short because models learn
    alignment from short ones first.
    """
    nouns, adjectives, actions, places = (words.split() for words in (NOUNS, ADJECTIVES, ACTIONS, PLACES))

    def thing() -> str:
        first = [chance.choice(("the", "my", "every", "some", "this", "her"))]
        name = chance.choice(nouns) if chance.random() < 0.5 else synthetic_word(chance)
        return " ".join([*first, *([chance.choice(adjectives)] if chance.random() < 0.3 else []), name])

    def clause() -> str:
        place = [chance.choice(places), thing()] if chance.random() < 0.25 else []
        return " ".join([thing(), chance.choice(actions), thing(), *place])

    while True:
        text = clause() if chance.random() < 0.6 else thing()
        for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2))):
            text += f", {chance.choice(LINKS)} {clause()}"
        yield text[0].upper() + text[1:] + "."


def synthetic_word(chance: random.Random) -> str:
    """A word of two or three syllables that could be English."""
    onsets, vowels, codas = ONSETS.split(), VOWELS.split(), CODAS.split()
    count = chance.choice((2, 2, 3))
    return "".join(chance.choice(onsets) + chance.choice(vowels) for _ in range(count)) + chance.choice(codas)


if __name__ == "__main__":
    main()
