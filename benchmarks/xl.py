"""Transformer-XL beside a plain Transformer of the same size and budget, by characters: what a longer memory is worth.

    python benchmarks/xl.py tinyshakespeare.txt --out OUT [--steps-scale 0.1]

The first 90 % of the characters are learnt from and the rest is scored, as nanoGPT does with tiny Shakespeare. Both learn side
by side, in processes of their own, and a score is always of the whole rest. The plain model reads windows that begin anew, and
windows that slide, so that more stands before every character that counts. Transformer-XL reads segments as in training, and
a few characters at a time, so that what it knows of earlier ones is in its memory, which is as long as each line says.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from trainings import about, add_options, chosen, common, markdown

from weft.compare.processes import Failure, Processes, Stopped
from weft.compare.trainings import Training, train
from weft.config.sections import load_config
from weft.generator import load_generator

SYSTEMS = {"plain": "lm-shakespeare-transformer", "xl": "lm-shakespeare-xl"}
SHARE = 0.9
STRIDES = (2, 4)
"""Of the plain model: windows slide by a segment over these."""
AT_ONCE = 4
"""Of Transformer-XL: besides whole segments, a segment over this is read at a time."""
MEMORIES = (0, 0.25, 0.5, 1, 2, 4)
"""Memories in evaluation, in those of training."""


@dataclass
class Score:
    """One way of scoring one run: nats a character, and bits."""

    system: str
    parameters: int
    evaluation: str
    loss: float
    bits: float


def split(text: Path, out: Path) -> tuple[str, str]:
    """Writes the two parts of a text, and says where."""
    whole = text.read_text("utf-8")
    border = int(len(whole) * SHARE)
    names = []
    for name, part in (("train", whole[:border]), ("valid", whole[border:])):
        (out / f"{name}.txt").write_text(part, "utf-8")
        names.append(str(out / f"{name}.txt"))
    return names[0], names[1]


def plan(system: str, files: tuple[str, str], out: Path, scale: float, sets: list[str]) -> Training:
    steps = max(1, round(load_config(SYSTEMS[system], sets).train.steps * scale))
    changes = (*common(out), *sets, f"train.steps={steps}")
    return Training(SYSTEMS[system], (files[0],), (files[1],), changes)


def ways(system: str, run: Path) -> Iterator[tuple[str, list[str]]]:
    """What is said of a way of scoring a run, and its settings."""
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
        sets = [f"task.evaluation_memory={memory}", f"task.stride={segment // AT_ONCE}"]
        yield f"{segment // AT_ONCE} at a time, memory of {memory}", sets


def scores(system: str, run: Path, valid: str) -> Iterator[Score]:
    for said, sets in ways(system, run):
        generator = load_generator(run, set=sets)
        loss = generator.score(valid)["loss"]
        yield Score(system, generator.model.count_parameters(), said, loss, loss / math.log(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text, such as tiny Shakespeare")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = split(options.text, out)
    names = chosen(SYSTEMS, options.only)
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    processes = Processes(out / "logs", at_once=options.at_once, until=until)
    plans = {name: plan(name, files, out, options.steps_scale, options.set) for name in names}
    with ThreadPoolExecutor(options.at_once) as workers:
        try:
            list(workers.map(lambda name: train(plans[name], out / name, processes, name), names))
        except (Failure, Stopped) as error:
            sys.exit(str(error))
    found = [score for name in names for score in scores(name, out / name, files[1])]
    rows = [(each.system, f"{each.parameters:,}", each.evaluation, f"{each.loss:.4f}", f"{each.bits:.4f}") for each in found]
    table = f"{about()}\n\n{markdown(('system', 'parameters', 'evaluation', 'nats', 'bits per character'), rows)}"
    (out / "xl.md").write_text(table, "utf-8")
    (out / "xl.json").write_text(json.dumps({"about": about(), "scores": list(map(asdict, found))}, indent=1) + "\n", "utf-8")
    print(f"{table}\nwritten to {out / 'xl.md'} and .json")


if __name__ == "__main__":
    main()
