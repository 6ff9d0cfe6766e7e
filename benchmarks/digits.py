"""Strings of spoken digits from the Free Spoken Digit Dataset: attention of several kinds, CTC, and both, on unseen recordings.

    python benchmarks/digits.py FSDD --out OUT [--only joint,ctc] [--seeds 1,2] [--count 3000] [--at-once 10] [--minutes 9]

Writes recordings and lists to OUT/data, which `weft train speech-digits --data OUT/data/train.tsv --valid OUT/data/valid.tsv`
reads; trains every system; and prints the word errors on each list, and the share of single digits that are right.

FSDD: a folder of files DIGIT_SPEAKER_TAKE.wav. A string has the digits of one speaker with gaps of random length between them.
Takes do not cross the split: a recording that occurs in a training string occurs in no other list. The last speaker by name
occurs in `unseen` only.

    train   strings of 3 to 7 digits, and every training recording by itself, four times with other gaps
    valid   strings of 3 to 7 digits
    test    strings of 3 to 7 digits
    single  every test recording by itself
    long    strings of 8 to 10 digits, longer than any in training
    unseen  strings of 3 to 7 digits of a speaker who is not in training
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trainings import (
    Outcome,
    Run,
    add_options,
    common_settings,
    markdown,
    report,
    scale_steps,
    score_cell,
    select,
    sweep,
)

from weft.errors import DataError
from weft.tasks.transcription.log_mel import read_wav

RECIPE = "speech-digits"
TESTED = ("test", "long", "unseen", "single")
ALONE = "task.ctc_weight=0"
MONOTONIC = ("task.decode_ctc=0", "model.decoder.attention={kind: monotonic, hidden: 96, bias: -2.8, stops: total}")
"""A digit has about 16 vectors, and e^2.8 is 16. CTC in training makes the encoder mark the digits."""

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "joint": ("location-aware attention and CTC", ()),
    "ctc": ("CTC alone", ("task.ctc_weight=1",)),
    "location": ("location-aware attention", (ALONE,)),
    "monotonic": ("monotonic attention, with CTC in training only", MONOTONIC),
    "live": ("the same, as the sound comes", (*MONOTONIC, "model.encoder.bidirectional=false")),
    "additive": ("additive attention", (ALONE, "model.decoder.attention={kind: additive, hidden: 96}")),
    "pyramid": ("pyramid of LSTMs, location-aware attention and CTC", ("model.front={kind: pyramid, layers: 2, dim: 192}",)),
}
"""System → title, changes to the recipe."""

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VALID, TEST = 2, 3
"""Takes of each digit and speaker that are kept for validation and for tests: the last ones."""

SINGLE = 4
"""How often each training recording is in the data by itself."""

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


def lists(
    parts: Mapping[str, Sequence[Take]], count: int, draw: np.random.Generator, tests: int = 300
) -> dict[str, list[list[Take]]]:
    """The strings of every list: `count` for training, `tests` for each other list."""
    alone = [[take] for take in parts["train"]] * SINGLE
    return {
        "train": strings(parts["train"], count, USUAL, draw) + alone,
        "valid": strings(parts["valid"], tests, USUAL, draw),
        "test": strings(parts["test"], tests, USUAL, draw),
        "single": [[take] for take in parts["test"]],
        "long": strings(parts["test"], tests, LONG, draw),
        "unseen": strings(parts["unseen"], tests, USUAL, draw),
    }


def spoken(string: Sequence[Take], draw: np.random.Generator, gaps: tuple[float, float] = GAP) -> tuple[NDArray[np.int16], int]:
    """The digits with silence of this length, in seconds, around them, as 16-bit samples, and their rate."""
    sounds = [read_wav(take.path) for take in string]
    rate = sounds[0].rate

    def gap() -> NDArray[np.float64]:
        return NOISE * draw.standard_normal(int(rate * draw.uniform(*gaps)))

    pieces = [gap()]
    for sound in sounds:
        pieces += [sound.resampled(rate).samples, gap()]
    return np.round(np.concatenate(pieces).clip(-1, 1) * 32767).astype("<i2"), rate


def write(
    out: Path, name: str, made: Sequence[Sequence[Take]], draw: np.random.Generator, gaps: tuple[float, float] = GAP
) -> None:
    """Writes a list and its recordings."""
    (out / name).mkdir(parents=True, exist_ok=True)
    rows = []
    for number, string in enumerate(made):
        samples, rate = spoken(string, draw, gaps)
        with wave.open(str(out / name / f"{number:05}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
        rows.append(f"{name}/{number:05}.wav\t{' '.join(NAMES[take.digit] for take in string)}\n")
    (out / f"{name}.tsv").write_text("".join(rows), "utf-8")


def make_data(options: argparse.Namespace) -> Path:
    """Writes all lists, unless they are there already, and returns their folder."""
    folder: Path = options.out.absolute() / "data"
    if not (folder / "unseen.tsv").exists():
        parts, draw = split(takes(options.data)), np.random.default_rng(1)
        for name, made in lists(parts, options.count, draw, options.tests).items():
            write(folder, name, made, draw)
            print(f"{folder / name}.tsv: {len(made):,} recordings, {sum(map(len, made)):,} digits")
    return folder


def plan(name: str, seed: int, folder: Path, options: argparse.Namespace) -> Run:
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", *SYSTEMS[name][1], *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    tests = {test: str(folder / f"{test}.tsv") for test in TESTED}
    train, valid = str(folder / "train.tsv"), str(folder / "valid.tsv")
    return Run(f"{name}-{seed}", RECIPE, train, sets, tests, valid=valid)


def table(outcomes: Sequence[Outcome]) -> str:
    """Floor: a transcript with the right number of digits, all alike, gets one of ten right."""
    headings = ("system", "", "WER 3–7 digits", "WER 8–10", "WER unseen speaker", "single digits right, %", "seconds")
    rows = [
        (
            each.run.name,
            SYSTEMS[each.run.name.rpartition("-")[0]][0],
            *(score_cell(each, test, "WER") for test in TESTED[:-1]),
            score_cell(each, TESTED[-1], "exact"),
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    return markdown(headings, [*rows, ("*floor*", "the right number of digits, all alike", *["90"] * 3, "10", "")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="FSDD")
    parser.add_argument("--count", type=int, default=3000, help="training strings (default 3,000)")
    parser.add_argument("--tests", type=int, default=300, help="strings of each other list (default 300)")
    parser.add_argument("--seeds", default="1,2", help="seeds of each system (default 1,2)")
    parser.add_argument("--prepare", action="store_true", help="only write OUT/data")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    folder = make_data(options)
    if options.prepare:
        return
    names = select(SYSTEMS, options.only)
    runs = [plan(name, int(seed), folder, options) for seed in options.seeds.split(",") for name in names]
    outcomes = sweep(runs, options)
    sys.exit(report(options.out, "digits", table(outcomes), outcomes))


if __name__ == "__main__":
    main()
