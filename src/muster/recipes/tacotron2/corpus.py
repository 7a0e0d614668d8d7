"""Make a corpus of the form of LJSpeech with espeak-ng: one clear voice, any amount of speech, for tests and shows.

    apt install espeak-ng
    python -m muster.recipes.tacotron2.corpus spoken --hours 1
    python -m muster.recipes.tacotron2.corpus spoken --hours 0.1 --texts sentences.txt

writes spoken/metadata.csv and spoken/wavs/ES000001.wav and so on, 22,050 samples per second, 16 bits, one channel. An
hour takes about half a minute on one core. Without --texts the sentences are put together from common words.
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

RATE = 22050
LIMIT = 60.0
"""Seconds that one sentence may take to be spoken."""

NAMES = "the river|a teacher|my neighbour|the old captain|every child|the garden|our village|a stranger|the judge"
ACTIONS = "watched|carried|remembered|built|followed|painted|promised|measured|opened|described|repeated|wanted"
THINGS = "the bridge|a wooden box|seven apples|the morning paper|a quiet street|his answer|the broken clock|fresh bread"
PLACES = "near the harbour|before the winter|under the bright moon|in the narrow kitchen|after a long journey|at noon"
LINKS = "and then|because|while|although|so that|until"


def main() -> None:
    """Speak sentences until there are enough hours."""
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
        prog="tacotron2.corpus", description="Make a corpus of the form of LJSpeech with espeak-ng.", allow_abbrev=False
    )
    parser.add_argument("folder", help="a new folder")
    parser.add_argument("--hours", type=float, default=1.0, help="of speech (1.0)")
    parser.add_argument("--texts", metavar="FILE", help="sentences to speak, one in each line")
    parser.add_argument("--voice", default="en-us", help="of espeak-ng (en-us)")
    return parser.parse_args()


def make_corpus(folder: Path, *, hours: float, texts: str | None, voice: str) -> tuple[int, float]:
    """Write wavs and metadata.csv, and return the number of clips and their seconds."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise muster.UsageError("there is no espeak-ng on this machine", hint="apt install espeak-ng")
    if (folder / "metadata.csv").exists():
        raise muster.UsageError(f"{folder} holds a corpus already", hint="choose a new folder")
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    sentences = read_sentences(Path(texts)) if texts else made_up_sentences(random.Random(0))
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
    """Let espeak-ng say a sentence into a file, and return its seconds."""
    command = [program, "-v", voice, "-s", "160", "-w", str(path), "--", text]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise muster.MusterError(f"espeak-ng took more than {LIMIT:.0f} s for: {text}") from None
    if done.returncode:
        raise muster.MusterError(f"espeak-ng failed for: {text}: {done.stderr.strip()}")
    with wave.open(str(path), "rb") as file:
        return file.getnframes() / RATE


def read_sentences(path: Path) -> Iterator[str]:
    """The lines of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise muster.UsageError(f"{path} cannot be read: {error.strerror}") from None
    return (line.strip().replace("|", " ") for line in lines if line.strip())


def made_up_sentences(chance: random.Random) -> Iterator[str]:
    """Sentences of common words without end, as long as those of LJSpeech."""

    def clause() -> str:
        parts = [chance.choice(words.split("|")) for words in (NAMES, ACTIONS, THINGS)]
        return " ".join([*parts, chance.choice(PLACES.split("|"))] if chance.random() < 0.6 else parts)

    while True:
        clauses = [clause() for _ in range(chance.randint(1, 3))]
        text = clauses[0]
        for more in clauses[1:]:
            text += f", {chance.choice(LINKS.split('|'))} {more}"
        yield text[0].upper() + text[1:] + "."


if __name__ == "__main__":
    main()
