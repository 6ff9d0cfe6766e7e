"""CipherGAN on a text: words and characters, shift and Vigenère, the best of several seeds by scores that need no key.

    python benchmarks/ciphers.py brown.txt.gz --out OUT [--seeds 3] [--at-once 1] [--minutes 9] [--only words-shift]

Half of the text is plain, the other half is enciphered; accuracy is that of the enciphered half without UNK. Windows of words
alternate between the two; of characters, the first half of the text is plain. `words-shift-halves` shows what two halves of
different kinds cost, `words-shift-random` what the start with equal frequencies gives, and `words-shift-shuffled` that nothing
but frequencies can be learnt if the words of each line are in random order. The floor ranks the symbols of both sides by
frequency (for a Vigenère cipher at each place of the key) and pairs equal ranks. With matplotlib, pictures show what the best
models have learnt.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from trainings import Outcome, Run, add_options, markdown, report, scale_steps, select, sweep

import weft
from weft.data.text_lines import read_lines
from weft.explain.figures import can_draw, empty_figure, save_figure
from weft.runs.run_folder import records
from weft_studies.deciphering.data import windows
from weft_studies.deciphering.task import DecipheringPredictor, DecipheringTask

CHARACTERS = (
    "data.tokenizer={kind: characters, byte_fallback: false}", "data.vocabulary=80", "task.split=halves", "train.steps=300",
)  # fmt: skip
SHUFFLED = "words-shift-shuffled"

SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "words-shift": ("cipher-shift", ()),
    "words-vigenere": ("cipher-vigenere", ()),
    "characters-shift": ("cipher-shift", CHARACTERS),
    "characters-vigenere": ("cipher-vigenere", CHARACTERS),
    "words-shift-halves": ("cipher-shift", ("task.split=halves",)),
    "words-shift-random": ("cipher-shift", ("task.spread=0",)),
    SHUFFLED: ("cipher-shift", ()),
}
"""Name → recipe and changes to it."""


def floor(task: DecipheringTask) -> float:
    """The accuracy of pairing symbols of equal rank, without UNK."""
    plain, truth = (windows(task.train, rows, task.extent) for rows in task.sides)
    cipher, period, right = task.cipher(truth), len(task.cipher.table), np.zeros_like(truth, bool)
    ranked = np.argsort(-np.bincount(plain.ravel(), minlength=len(task.symbols)), kind="stable")
    for place in range(period):
        own = cipher[:, place::period]
        order = np.argsort(-np.bincount(own.ravel(), minlength=len(task.symbols)), kind="stable")
        guess = np.empty_like(ranked)
        guess[order] = ranked
        right[:, place::period] = guess[own] == truth[:, place::period]
    return 100 * float(right[truth != 0].mean())


def last(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """The scores of the published weights of a run."""
    found = [record for record in records(folder / outcome.run.name) if "accuracy" in record]
    return min(found, key=lambda record: record["divergence"])


def draw(trained: Any, task: DecipheringTask, file: Path) -> None:
    """Draws how a model reads each symbol of the cipher."""
    predictor = trained.predictor()
    assert isinstance(predictor, DecipheringPredictor)
    chances = predictor.mapping()[0].numpy()
    # Rows in the order of the true symbols at place 0, so that a solved shift is a diagonal.
    figure = empty_figure(6, 6)
    axes = figure.add_subplot()
    axes.imshow(chances[task.cipher.table[0]], aspect="equal", interpolation="nearest", vmin=0)
    axes.set_xlabel("plain symbol")
    axes.set_ylabel("symbol of the cipher, in the order of its true plain symbol")
    save_figure(figure, file)


def row(name: str, outcomes: Sequence[Outcome], out: Path) -> list[str]:
    """The figures of a system: floor, accuracy of all seeds, and of those with the lowest divergence and cycle loss."""
    done = [(each, last(each, out)) for each in outcomes if each.run.name.rpartition("-")[0] == name and not each.error]
    if not done:
        return [name, *["–"] * 6]
    best, scores = min(done, key=lambda pair: pair[1]["divergence"])
    cycle = min((scores for _, scores in done), key=lambda scores: scores["loss"])
    trained = weft.load(out / best.run.name)
    task = trained.task
    assert isinstance(task, DecipheringTask)
    task.prepare()
    if can_draw():
        draw(trained, task, out / f"{name}.png")
    found = [each["accuracy"] for _, each in done]
    figures = [floor(task), np.mean(found), scores["accuracy"], cycle["accuracy"]]
    seconds = f"{np.mean([each.seconds for each, _ in done]):.0f}"
    return [name, ", ".join(f"{each:.1f}" for each in found), *[f"{each:.1f}" for each in figures], seconds]


def shuffle_lines(text: Path, file: Path) -> Path:
    """Writes a text with the words of each line in random order."""
    order = random.Random(0)
    lines = (line.split() for line in read_lines(str(text)))
    file.write_text("".join(" ".join(order.sample(words, len(words))) + "\n" for words in lines), "utf-8")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    add_options(parser, at_once=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names, runs = select(SYSTEMS, options.only), []
    for name in names:
        recipe, sets = SYSTEMS[name]
        text = shuffle_lines(options.text, options.out / "shuffled.txt") if name == SHUFFLED else options.text
        steps = scale_steps(recipe, (*sets, *options.set), options.steps_scale)
        own = (*sets, steps, f"data.cache={options.out / 'cache'}", "train.tensorboard=false", *options.set)
        runs += [Run(f"{name}-{seed}", recipe, str(text), (*own, f"train.seed={seed}")) for seed in range(1, options.seeds + 1)]
    outcomes = sweep(runs, options, prepare=len(runs))
    headings = ["system", "each seed, %", "frequency ranks, %", "mean, %", "by divergence, %", "by cycle loss, %", "seconds"]
    sys.exit(report(options.out, "ciphers", markdown(headings, [row(name, outcomes, options.out) for name in names]), outcomes))


if __name__ == "__main__":
    main()
