"""Measures whether the attention of a date model points at the right characters for day, month and year.

    python benchmarks/alignment.py OUT [--run RUN] [--count 500]

Without --run, the recipe `demo-dates` is first trained into OUT/run (some minutes on two cores). Dates are generated as in the
demo, with known positions of day, month and year. For each part, the weights of its output characters are summed; the part
points at the source character with the largest sum. It is right if that character belongs to the same part.

The weights are those of the layer and head (or mean over heads) that is right most often on training dates. They are then
measured on dates of the test split, which share no day with the training dates. Wrong translations are included.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

import numpy as np
from babel.dates import tokenize_pattern
from numpy.typing import NDArray

import weft
from weft.cli.demo import TRAIN, VALID
from weft.data.batch import EOS
from weft.data.generators import DIGITS, FIRST_DAY, LANGUAGES, LAST_DAY, Split, patterns, split_of, write_date
from weft.decoding.score_given_targets import teacher_force
from weft.runs.translator import load
from weft.tasks.translation.predictor import TranslationPredictor

Span = tuple[int, int]
PARTS: dict[str, Span] = {"year": (0, 4), "month": (5, 7), "day": (8, 10)}
FIELDS = {"y": "year", "M": "month", "L": "month", "d": "day"}
TUNING = 200
"""Number of training dates for choosing the layer and head."""


@dataclass(frozen=True)
class Dated:
    """A date as people write it, its ISO form, and the spans of its parts in the text."""

    text: str
    iso: str
    parts: dict[str, Span]


def draw_dates(count: int, seed: int, split: Split) -> Iterator[Dated]:
    """Dates of one split, generated as in the generated task."""
    random = Random(seed)
    while count:
        day = FIRST_DAY + timedelta(days=random.randrange((LAST_DAY - FIRST_DAY).days + 1))
        language = random.choice(LANGUAGES)
        pattern = random.choice(patterns(language))
        foreign = language in DIGITS and random.random() < 0.5
        if split_of(f"dates {day.isoformat()}") != split:
            continue
        count -= 1
        text, parts = "", {}
        for kind, value in tokenize_pattern(pattern):
            piece = value if kind == "chars" else write_date(day, language, value[0] * value[1])
            if kind == "field" and value[0] in FIELDS:
                parts[FIELDS[value[0]]] = (len(text), len(text) + len(piece))
            text += piece
        assert text == write_date(day, language, pattern), (text, pattern)
        yield Dated(text.translate(str.maketrans(string.digits, DIGITS[language])) if foreign else text, day.isoformat(), parts)


def points_right(predictor: TranslationPredictor, dated: Dated) -> dict[str, NDArray[np.bool_]]:
    """Layer → bool [heads + 1, 3]: whether year, month and day point right, for each head and their mean."""
    source = [*predictor.source.encode(dated.text), EOS]
    target = [*predictor.target.encode(dated.iso), EOS]
    right = {}
    forced = teacher_force(predictor.model, source, target)
    for name, weights in forced.weights.items():
        if forced.uses[name] != "cross":
            continue
        heads = np.concatenate([weights, weights.mean(0, keepdims=True)])[:, :, : len(source) - 1]
        positions = [heads[:, first:last].sum(1).argmax(-1) for first, last in PARTS.values()]
        right[name] = np.stack(
            [(at >= dated.parts[part][0]) & (at < dated.parts[part][1]) for part, at in zip(PARTS, positions, strict=True)], -1
        )
    return right


def rates(predictor: TranslationPredictor, dates: list[Dated]) -> dict[tuple[str, str], NDArray[np.float64]]:
    """(layer, head) → the share of dates whose year, month and day point right."""
    each = [points_right(predictor, dated) for dated in dates]
    shares = {}
    for layer in each[0]:
        right = np.mean([one[layer] for one in each], axis=0)
        names = [*(f"head {head + 1}" for head in range(len(right) - 1)), "mean of heads"]
        shares |= {(layer, name): row for name, row in zip(names, right, strict=True)}
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the run and the results")
    parser.add_argument("--run", type=Path, help="a run trained on dates by characters (default: train one)")
    parser.add_argument("--recipe", default="demo-dates", help="recipe to train without --run")
    parser.add_argument("--count", type=int, default=500, help="number of test dates")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.run or options.out / "run"
    if not (run / "model.safetensors").exists():
        weft.train(options.recipe, data=TRAIN, valid=VALID, out=run, tell=print)
    translator = load(run)
    predictor = translator.translation_predictor("alignment", beam=1)
    tuned = rates(predictor, list(draw_dates(TUNING, 1, "train")))
    chosen = max(tuned, key=lambda key: float(tuned[key].mean()))
    tests = list(draw_dates(options.count, 2, "test"))
    measured = rates(predictor, tests)
    translations = translator.translate([dated.text for dated in tests])
    exact = np.mean([translation.text == dated.iso for translation, dated in zip(translations, tests)])
    result = {
        "exact match": float(exact),
        "chosen on training dates": " ".join(chosen),
        "right": dict(zip(PARTS, measured[chosen].round(4).tolist(), strict=True)) | {"all": float(measured[chosen].mean())},
        "every layer and head": {" ".join(key): float(row.mean()) for key, row in measured.items()},
    }
    text = json.dumps(result, indent=2)
    (options.out / "alignment.json").write_text(text)
    print(text)
    sys.exit(result["right"]["all"] < 0.95)


if __name__ == "__main__":
    main()
