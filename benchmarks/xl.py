"""Transformer-XL against a plain Transformer of the same size and budget, on characters: the value of a longer memory.

    python benchmarks/xl.py tinyshakespeare.txt --out OUT [--steps-scale 0.1]

The models train on the first 90 % of the characters and are scored on the rest, as in nanoGPT's tiny Shakespeare. They train in
parallel, in separate processes. The plain model is scored with separate windows, and with sliding windows that give every
scored character more context. Transformer-XL is scored with segments as in training, and with a few characters at a time, so
that earlier characters are only in its memory. Each line gives the length of the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from trainings import about, add_options, common_settings, deadline, markdown, scale_steps, select

from weft.compare.processes import Failure, Processes, Stopped
from weft.compare.trainings import Training, train
from weft.config.sections import load_config
from weft.translator import load_generator

SYSTEMS = {"plain": "lm-shakespeare-transformer", "xl": "lm-shakespeare-xl"}
SHARE = 0.9
STRIDES = (2, 4)
"""Plain model: windows slide by a segment divided by these."""
PIECES = 4
"""Transformer-XL: besides whole segments, a segment divided by this is read at a time."""
MEMORIES = (0, 0.25, 0.5, 1, 2, 4)
"""Memory lengths in evaluation, as multiples of the training memory."""


@dataclass
class Score:
    """The score of one run in one kind of evaluation: nats and bits per character."""

    system: str
    parameters: int
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
    changes = (*common_settings(out), *sets, scale_steps(SYSTEMS[system], sets, scale))
    return Training(SYSTEMS[system], (files[0],), (files[1],), changes)


def evaluations(system: str, run: Path) -> Iterator[tuple[str, list[str]]]:
    """The evaluations of a run: a description, and settings."""
    task = load_config(run / "config.yaml").task
    segment = task["segment"]
    if system == "plain":
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
    for description, sets in evaluations(system, run):
        generator = load_generator(run, set=sets)
        loss = generator.score(valid)["loss"]
        yield Score(system, generator.model.count_parameters(), description, loss, loss / math.log(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file, such as tiny Shakespeare")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = split(options.text, out)
    names = select(SYSTEMS, options.only)
    processes = Processes(out / "logs", at_once=options.at_once, until=deadline(options.minutes))
    plans = {name: plan(name, files, out, options.steps_scale, options.set) for name in names}
    with ThreadPoolExecutor(options.at_once) as workers:
        try:
            list(workers.map(lambda name: train(plans[name], out / name, processes, name), names))
        except (Failure, Stopped) as error:
            sys.exit(str(error))
    results = [score for name in names for score in scores(name, out / name, files[1])]
    rows = [(each.system, f"{each.parameters:,}", each.evaluation, f"{each.loss:.4f}", f"{each.bits:.4f}") for each in results]
    table = f"{about()}\n\n{markdown(('system', 'parameters', 'evaluation', 'nats', 'bits per character'), rows)}"
    (out / "xl.md").write_text(table, "utf-8")
    (out / "xl.json").write_text(json.dumps({"about": about(), "scores": list(map(asdict, results))}, indent=1) + "\n", "utf-8")
    print(f"{table}\nwritten to {out / 'xl.md'} and .json")


if __name__ == "__main__":
    main()
