"""Language models by characters at nanoGPT's budget: plain Transformers and Transformer-XL, beside published and n-gram scores.

    python benchmarks/xl.py tinyshakespeare.txt --out OUT [--only plain,xl] [--at-once 3] [--minutes 5] [--steps-scale 0.1]

The models train on the first 90 % of the characters and are scored on the rest, as in nanoGPT's tiny Shakespeare, for its 5,000
steps of 64 segments of 256. They have its 10.7 million parameters (6 layers of 384, 6 heads), dropout of 0.2 and learning rate,
1e-3 falling to 1e-4. The best of the validations, one every 250 steps, is kept, as nanoGPT does. They train in parallel, in
separate processes. The plain models (with learned positions as in nanoGPT, and with rotary ones) are scored with separate
windows, and with sliding windows that give every scored character more context. Transformer-XL is scored with segments as in
training, and with a few characters at a time, so that earlier characters are only in its memory. Each line gives the length of
the memory. The n-gram models have modified Kneser–Ney smoothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ngrams import ngram_losses
from trainings import about, add_options, common_settings, deadline, markdown, scale_steps, select

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.config.sections import load_config
from weft.runs.translator import load_generator

PLAIN, XL = "lm-shakespeare-transformer", "lm-shakespeare-xl"
ROTARY = ("model.position=none", "model.decoder_self={kind: full, position: rotary, bias: true}")
SYSTEMS: dict[str, tuple[str, tuple[str, ...]]] = {"plain": (PLAIN, ()), "rotary": (PLAIN, ROTARY), "xl": (XL, ())}
"""System → recipe and changes to it."""
PUBLISHED = {"nanoGPT, published": 1.4697}
"""Nats per character of 10.65 million parameters, from the README of nanoGPT."""
ORDERS = (1, 2, 3, 5, 7)
"""Orders of the n-gram models. Longer ones score worse."""
SHARE = 0.9
STRIDES = (2, 4)
"""Plain model: windows slide by a segment divided by these."""
PIECES = 4
"""Transformer-XL: besides whole segments, a segment divided by this is read at a time."""
MEMORIES = (0, 0.25, 0.5, 1, 2, 4)
"""Memory lengths in evaluation, as multiples of the training memory."""


@dataclass
class Score:
    """The score of one model in one kind of evaluation: nats and bits per character."""

    system: str
    parameters: int | None
    evaluation: str
    loss: float
    bits: float


def split(text: Path, out: Path) -> tuple[str, str]:
    """Writes the two parts of a text; returns their paths."""
    whole = text.read_text("utf-8")
    border = int(len(whole) * SHARE)
    names = []
    for name, part in (("train", whole[:border]), ("valid", whole[border:])):
        (out / f"{name}.txt").write_text(part, "utf-8")
        names.append(str(out / f"{name}.txt"))
    return names[0], names[1]


def plan(system: str, files: tuple[str, str], out: Path, scale: float, sets: list[str]) -> Training:
    recipe, own = SYSTEMS[system]
    changes = (*common_settings(out), *own, *sets)
    return Training(recipe, (files[0],), (files[1],), (*changes, scale_steps(recipe, changes, scale)))


def evaluations(run: Path) -> Iterator[tuple[str, list[str]]]:
    """The evaluations of a run: a description, and settings."""
    task = load_config(run / "config.yaml").task
    segment = task["segment"]
    if task["carry"] == "nothing":
        yield f"windows of {segment}", []
        for times in STRIDES:
            yield f"sliding: at least {segment - segment // times} before each character", [f"task.stride={segment // times}"]
        return
    yield f"{segment} at a time, memory of {task['memory']}", []
    for times in MEMORIES:
        memory = round(times * task["memory"])
        sets = [f"task.evaluation_memory={memory}", f"task.stride={segment // PIECES}"]
        yield f"{segment // PIECES} at a time, memory of {memory}", sets


def scores(system: str, run: Path, valid: str) -> Iterator[Score]:
    for description, sets in evaluations(run):
        generator = load_generator(run, set=sets)
        loss = generator.score(valid)["loss"]
        yield Score(system, generator.model.count_parameters(), description, loss, loss / math.log(2))


def beside(files: tuple[str, str]) -> Iterator[Score]:
    """Published scores, and those of n-gram models on the same characters."""
    for name, loss in PUBLISHED.items():
        yield Score(name, None, "windows of 256", loss, loss / math.log(2))
    texts = [Path(file).read_text("utf-8") for file in files]
    ids = {character: number for number, character in enumerate(sorted(set("".join(texts))))}
    losses = ngram_losses(*([ids[character] for character in text] for text in texts), len(ids), max(ORDERS))
    for order in ORDERS:
        yield Score(f"*floor: {order}-grams*", None, "Kneser–Ney", losses[order - 1], losses[order - 1] / math.log(2))


def table(results: Sequence[Score]) -> str:
    rows = []
    for each in results:
        parameters = f"{each.parameters:,}" if each.parameters else ""
        rows.append((each.system, parameters, each.evaluation, f"{each.loss:.4f}", f"{each.bits:.4f}"))
    return f"{about()}\n\n{markdown(('system', 'parameters', 'evaluation', 'nats', 'bits per character'), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file, such as tiny Shakespeare")
    add_options(parser, at_once=3)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = split(options.text, out)
    names = select(SYSTEMS, options.only)
    processes = Processes(out / "logs", at_once=options.at_once, until=deadline(options.minutes))
    plans = {name: plan(name, files, out, options.steps_scale, options.set) for name in names}

    def one(name: str) -> str:
        try:
            train(plans[name], out / name, processes, name)
            return ""
        except (Failure, Stopped) as error:
            return f"{name}: {error}"

    with ThreadPoolExecutor(options.at_once) as workers:
        errors = dict(zip(names, workers.map(one, names), strict=True))
    results = [score for name in names if not errors[name] for score in scores(name, out / name, files[1])]
    results += beside(files)
    text = table(results)
    (out / "xl.md").write_text(text, "utf-8")
    (out / "xl.json").write_text(json.dumps({"about": about(), "scores": list(map(asdict, results))}, indent=1) + "\n", "utf-8")
    print(f"{text}\nwritten to {out / 'xl.md'} and .json")
    sys.exit("\n".join(filter(None, errors.values())) or None)


if __name__ == "__main__":
    main()
