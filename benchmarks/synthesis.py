"""Spoken digits: a model learns the voice of one speaker, and weft's own recogniser writes down what it says.

    python benchmarks/synthesis.py FSDD --out OUT --recogniser RUN [--speaker jackson] [--seeds 1,2,3] [--only location,plain]

FSDD: a folder of files DIGIT_SPEAKER_TAKE.wav (the Free Spoken Digit Dataset) · RUN: a run of the recipe speech-digits, trained
by `benchmarks/digits.py` or on its data. Writes recordings and lists to OUT/data, which `weft train synthesis-digits --data
OUT/data/train.tsv#2,1` reads; trains every system; speaks the texts of the test and prints the recogniser's word errors.

Strings have 2 to 5 digits of the speaker. Takes do not cross the split of `benchmarks/digits.py`, and no text of the test
occurs in training. Beside each system: real recordings of the same texts from takes for tests; the same sound after
Griffin–Lim, which is the best that frames can give; and, as floors, the recordings with the texts of other rows, and noise.

    python benchmarks/synthesis.py FSDD --out OUT --diagonal

Prints instead after how many updates the attention of each system is diagonal: the first validation, every 25 updates, where
90 per cent of the attention on validation data, fed true frames, is within 0.2 of the diagonal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from digits import NAMES, Take, split, strings, takes, write
from trainings import Outcome, Run, Sweep, about, add_options, common_settings, markdown, scale_steps, select

import weft
from weft.errors import DataError
from weft.evaluation.metrics import score
from weft.runs.run_folder import records
from weft.tasks.synthesis.griffin_lim import InvertibleLogMel, wav_content
from weft.tasks.transcription.log_mel import features, read_wav
from weft.tasks.transcription.metrics import WordErrorRate

RECIPE = "synthesis-digits"
LENGTHS, GAPS = (2, 5), (0.05, 0.15)
"""Digits of a string, and seconds of a gap."""

DIAGONAL = 90.0

SHORT = (
    *("train.steps=400", "task.frames_per_step=8", "train.schedule={kind: constant, rate: 3.0e-3, warmup: 50}", "train.ema=0"),
    *("train.validate_every=25", "train.validate_bleu=false"),
)
"""Settings of the trainings that measure how soon attention is diagonal: a rate that does not fall, and weights as they are."""

FEW = 30
"""Recordings on which they are validated."""

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "location": ("location-aware attention, guided", ()),
    "guided-10": ("location-aware attention, guided, weight 10", ("task.guided_weight=10",)),
    "plain": ("location-aware attention", ("task.guided_weight=0",)),
    "additive": ("additive attention, guided", ("model.decoder.attention={kind: additive, hidden: 64}",)),
    "additive-plain": (
        "additive attention",
        ("model.decoder.attention={kind: additive, hidden: 64}", "task.guided_weight=0"),
    ),
    "monotonic": (
        "monotonic attention, guided",
        ("model.decoder.attention={kind: monotonic, hidden: 64, bias: -1, hold: true}",),
    ),
    "test-dropout": ("location-aware attention, guided, dropout at test time", ("task.test_dropout=true",)),
    "no-postnet": ("location-aware attention, guided, no postnet", ("task.postnet=0",)),
}
"""System → title, changes to the recipe."""


def text_of(string: Sequence[Take]) -> str:
    return " ".join(NAMES[take.digit] for take in string)


def make_data(options: argparse.Namespace) -> Path:
    """Writes the lists of the speaker, unless they are there already, and returns their folder."""
    folder: Path = options.out.absolute() / "data"
    if (folder / "test.tsv").exists():
        return folder
    found = [take for take in takes(options.data) if take.speaker == options.speaker]
    if not found:
        raise DataError(f"{options.data}: there are no recordings of {options.speaker}")
    # A second speaker by name keeps `split` from setting this one aside as unseen.
    parts, draw = split([*found, replace(found[0], speaker="~")]), np.random.default_rng(1)
    made = {
        "valid": strings(parts["valid"], options.tests, LENGTHS, draw),
        "test": strings(parts["test"], options.tests, LENGTHS, draw),
    }
    held_out = {text_of(string) for some in made.values() for string in some}
    train = [each for each in strings(parts["train"], 2 * options.count, LENGTHS, draw) if text_of(each) not in held_out]
    made["train"] = train[: options.count] + [[take] for take in parts["train"]] * 2
    for name in ("train", "valid", "test"):
        write(folder, name, made[name], draw, GAPS)
        print(f"{folder / name}.tsv: {len(made[name]):,} recordings")
    few = (folder / "valid.tsv").read_text("utf-8").splitlines(keepends=True)[:FEW]
    (folder / "few.tsv").write_text("".join(few), "utf-8")
    return folder


def plan(name: str, seed: int, folder: Path, options: argparse.Namespace) -> Run:
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", *SYSTEMS[name][1])
    if options.diagonal:
        sets = (*sets, *SHORT)
    sets = (*sets, *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    train, valid = f"{folder / 'train.tsv'}#2,1", f"{folder / ('few.tsv' if options.diagonal else 'valid.tsv')}#2,1"
    tests = {} if options.diagonal else {"test": f"{folder / 'test.tsv'}#2,1"}
    return Run(f"{'diagonal-' * options.diagonal}{name}-{seed}", RECIPE, train, sets, tests, beam=0, valid=valid)


def listed(file: Path) -> list[tuple[str, str]]:
    """(wav file, text) of each row of a list."""
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
    return [(str(file.parent / name), text) for name, text in rows]


def word_errors(recogniser: weft.Translator, files: Sequence[str], texts: Sequence[str]) -> float:
    """The word errors of what the recogniser writes for these files."""
    written = [each.text for each in recogniser.translate(list(files))]
    return score(written, list(texts), [WordErrorRate()])["WER"].value


def speak(run: Path, texts: Sequence[str], folder: Path) -> list[str]:
    """Speaks the texts, and returns the names of their wav files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:05}.wav" for number in range(len(texts))]
    for file, speech in zip(files, weft.load(run).translate(list(texts)), strict=True):
        file.write_bytes(speech.content())
    return list(map(str, files))


def rebuilt(files: Sequence[str], mel: InvertibleLogMel, folder: Path) -> list[str]:
    """The recordings turned into frames and back into sound."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / Path(file).name for file in files]
    for file, name in zip(files, names, strict=True):
        name.write_bytes(wav_content(mel.sound(features(file, mel)), mel.rate))
    return list(map(str, names))


def noise(files: Sequence[str], folder: Path) -> list[str]:
    """White noise as long as each recording."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, names = np.random.default_rng(1), [folder / Path(file).name for file in files]
    for file, name in zip(files, names, strict=True):
        sound = read_wav(file)
        samples = 0.1 * draw.standard_normal(len(sound.samples)).astype(np.float32)
        name.write_bytes(wav_content(samples, sound.rate))
    return list(map(str, names))


def table(outcomes: Sequence[Outcome], folder: Path, options: argparse.Namespace) -> str:
    """The word errors of every system, of real recordings and of the floors."""
    recogniser = weft.load(options.recogniser)
    files, texts = map(list, zip(*listed(folder / "test.tsv"), strict=True))
    mel = InvertibleLogMel(8000, 64)
    shuffled = [*texts[1:], texts[0]]
    again = rebuilt(files, mel, options.out / "rebuilt")
    rows = [
        ("*real recordings*", "", f"{word_errors(recogniser, files, texts):.1f}", "", "", ""),
        ("*real recordings, from their frames*", "", f"{word_errors(recogniser, again, texts):.1f}", "", "", ""),
        ("*floor: texts of other rows*", "", f"{word_errors(recogniser, files, shuffled):.1f}", "", "", ""),
        ("*floor: noise*", "", f"{word_errors(recogniser, noise(files, options.out / 'noise'), texts):.1f}", "", "", ""),
    ]
    for each in outcomes:
        if each.error:
            rows.append((each.run.name, each.error, "", "", "", ""))
            continue
        errors = word_errors(
            recogniser, speak(options.out / each.run.name, texts, options.out / "speech" / each.run.name), texts
        )
        found, title = each.scores["test"], SYSTEMS[each.run.name.rpartition("-")[0]][0]
        figures = (f"{errors:.1f}", f"{found['mcd']:.2f}", f"{found['unended']:.1f}", f"{each.seconds:.0f}")
        rows.append((each.run.name, title, *figures))
    headings = ("system", "", "WER of the recogniser", "mel-cepstral distortion, dB", "without an end, %", "seconds")
    return markdown(headings, rows)


def diagonal_table(outcomes: Sequence[Outcome], options: argparse.Namespace) -> str:
    """For each run the first update after which its attention is diagonal, and its share at the end."""
    rows = []
    for each in outcomes:
        found = [
            record
            for record in records(options.out / each.run.name)
            if "diagonal" in record and record["event"] == "validation"
        ]
        first = next((record["step"] for record in found if record["diagonal"] >= DIAGONAL), None)
        last = f"{found[-1]['diagonal']:.1f}" if found else "–"
        title = SYSTEMS[each.run.name.removeprefix("diagonal-").rpartition("-")[0]][0]
        rows.append((each.run.name, title, "never" if first is None else str(first), last))
    return markdown(("run", "", f"updates until {DIAGONAL:.0f} % are near the diagonal", "per cent at the end"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="FSDD")
    parser.add_argument("--recogniser", type=Path, metavar="RUN", help="a run of the recipe speech-digits")
    parser.add_argument("--speaker", default="jackson", help="the voice (default jackson)")
    parser.add_argument("--count", type=int, default=1500, help="training strings (default 1,500)")
    parser.add_argument("--tests", type=int, default=100, help="strings of each other list (default 100)")
    parser.add_argument("--seeds", default="1", help="seeds of each system (default 1)")
    parser.add_argument("--diagonal", action="store_true", help="measure how soon the attention is diagonal")
    parser.add_argument("--prepare", action="store_true", help="only write OUT/data")
    add_options(parser, at_once=1)
    options = parser.parse_args()
    folder = make_data(options)
    if options.prepare:
        return
    if not (options.diagonal or options.recogniser):
        sys.exit("give --recogniser RUN, a run of the recipe speech-digits")
    runs = [
        plan(name, int(seed), folder, options) for name in select(SYSTEMS, options.only) for seed in options.seeds.split(",")
    ]
    outcomes = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)
    text = f"{about()}\n\n{diagonal_table(outcomes, options) if options.diagonal else table(outcomes, folder, options)}"
    (options.out / f"{'diagonal' if options.diagonal else 'synthesis'}.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
