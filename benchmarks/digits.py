"""Strings of spoken digits from the Free Spoken Digit Dataset, as data for transcription.

    python benchmarks/digits.py FSDD OUT [--count 3000] [--seed 1]
    weft train speech-digits --data OUT/train.tsv --valid OUT/valid.tsv --out RUN
    for test in single test long unseen; do weft evaluate RUN --data OUT/$test.tsv; done

FSDD: a folder of files DIGIT_SPEAKER_TAKE.wav. A string has the digits of one speaker with gaps of random length between them.
Takes do not cross the split: a recording that occurs in a training string occurs in no other list. The last speaker by name
occurs in `unseen` only.

    train   strings of 3 to 7 digits, and every training recording by itself
    valid   strings of 3 to 7 digits
    test    strings of 3 to 7 digits
    single  every test recording by itself
    long    strings of 8 to 10 digits, longer than any in training
    unseen  strings of 3 to 7 digits of a speaker who is not in training
"""

from __future__ import annotations

import argparse
import wave
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.sound import read_wav
from weft.errors import DataError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VALID, TEST = 2, 3
"""Takes of each digit and speaker that are kept for validation and for tests: the last ones."""

TESTS = 300
"""Strings per list other than that of training."""

USUAL, LONG = (3, 7), (8, 10)
GAP, NOISE = (0.05, 0.35), 2e-4
"""Seconds of a gap, and the standard deviation of the noise in it."""


@dataclass(frozen=True)
class Take:
    """One spoken digit."""

    digit: int
    speaker: str
    number: int
    path: Path


def takes(folder: Path) -> list[Take]:
    """All recordings of the data set."""
    found = []
    for path in sorted(folder.glob("*_*_*.wav")):
        digit, speaker, number = path.stem.split("_")
        found.append(Take(int(digit), speaker, int(number), path))
    if not found:
        raise DataError(f"{folder}: there are no files DIGIT_SPEAKER_TAKE.wav")
    return found


def split(found: Sequence[Take]) -> dict[str, list[Take]]:
    """train, valid and test by take, and all takes of the last speaker as unseen."""
    unseen = max(take.speaker for take in found)
    numbers = sorted({take.number for take in found})
    parts: dict[str, list[Take]] = defaultdict(list)
    for take in found:
        behind = len(numbers) - numbers.index(take.number)
        part = "test" if behind <= TEST else "valid" if behind <= TEST + VALID else "train"
        parts["unseen" if take.speaker == unseen else part].append(take)
    return dict(parts)


def strings(some: Sequence[Take], count: int, lengths: tuple[int, int], draw: np.random.Generator) -> list[list[Take]]:
    """Random strings, each of one speaker."""
    speakers: dict[str, list[Take]] = defaultdict(list)
    for take in some:
        speakers[take.speaker].append(take)
    names, made = sorted(speakers), []
    for _ in range(count):
        own = speakers[names[draw.integers(len(names))]]
        made.append([own[place] for place in draw.integers(len(own), size=draw.integers(lengths[0], lengths[1] + 1))])
    return made


def lists(parts: Mapping[str, Sequence[Take]], count: int, draw: np.random.Generator) -> dict[str, list[list[Take]]]:
    """The strings of every list."""
    alone = [[take] for take in parts["train"]]
    return {
        "train": strings(parts["train"], count, USUAL, draw) + alone,
        "valid": strings(parts["valid"], TESTS, USUAL, draw),
        "test": strings(parts["test"], TESTS, USUAL, draw),
        "single": [[take] for take in parts["test"]],
        "long": strings(parts["test"], TESTS, LONG, draw),
        "unseen": strings(parts["unseen"], TESTS, USUAL, draw),
    }


def spoken(string: Sequence[Take], draw: np.random.Generator) -> tuple[NDArray[np.int16], int]:
    """The digits with gaps around them, as 16-bit samples, and their rate."""
    sounds = [read_wav(take.path) for take in string]
    rate = sounds[0].rate

    def gap() -> NDArray[np.float64]:
        return NOISE * draw.standard_normal(int(rate * draw.uniform(*GAP)))

    pieces = [gap()]
    for sound in sounds:
        pieces += [sound.resampled(rate).samples, gap()]
    return np.round(np.concatenate(pieces).clip(-1, 1) * 32767).astype("<i2"), rate


def write(out: Path, name: str, made: Sequence[Sequence[Take]], draw: np.random.Generator) -> None:
    """Writes a list and its recordings."""
    (out / name).mkdir(parents=True, exist_ok=True)
    rows = []
    for number, string in enumerate(made):
        samples, rate = spoken(string, draw)
        with wave.open(str(out / name / f"{number:05}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
        rows.append(f"{name}/{number:05}.wav\t{' '.join(NAMES[take.digit] for take in string)}\n")
    (out / f"{name}.tsv").write_text("".join(rows), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="FSDD")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--count", type=int, default=3000, help="training strings")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts, draw = split(takes(options.data)), np.random.default_rng(options.seed)
    for name, made in lists(parts, options.count, draw).items():
        write(options.out, name, made, draw)
        print(f"{options.out / name}.tsv: {len(made):,} recordings, {sum(map(len, made)):,} digits")


if __name__ == "__main__":
    main()
