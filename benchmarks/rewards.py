"""Learning from rewards: greedy BLEU after minimum risk, REINFORCE and self-critical training, beside as much cross-entropy.

    python benchmarks/rewards.py DATA [--seeds 1,2,3] [--out runs/rewards] [--at-once 6] [--minutes 9] [--only risk-bleu]

DATA is the folder of multi30k, English to German. A model is trained by cross-entropy, and each system continues it for the
same number of steps on the same pairs. `constant` is the control of Choshen et al. 2020: REINFORCE with the same reward for
every text. Texts are greedy. p: approximate randomisation against `cross-entropy`, over the test sentences of all seeds.
Length: words per word of the references.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from trainings import Outcome, Run, add_options, frugal_settings, markdown, report, scale_steps, select, sweep

from weft.evaluation.metrics import Bleu
from weft.evaluation.significance import approximate_randomisation

RECIPE = "transformer-small"
BASE, STEPS = 2000, 300
"""Steps of the first training, and of those that continue it."""

CONTROL = "cross-entropy"
TUNED = (
    "train.batch_tokens=2048",
    "train.packed=false",
    "train.rounded=false",
    "train.ema=0.98",
    "train.schedule={kind: slanted_triangular, rate: 1.0e-4}",
    "train.validate_every=0",
    "decode.max_length=80",
)
MIXED = "teacher_weight: 0.1"
SYSTEMS = {
    CONTROL: "none",
    "risk-bleu": f"{{kind: minimum_risk, samples: 8, alpha: 0.05, weight: 40, {MIXED}}}",
    "reinforce-bleu": f"{{kind: reinforce, samples: 5, {MIXED}}}",
    "self-critical": f"{{kind: self_critical, samples: 4, {MIXED}}}",
    "constant": f"{{kind: reinforce, metric: constant, baseline: none, samples: 5, {MIXED}}}",
    "reinforce-chrf": f"{{kind: reinforce, metric: chrf, samples: 5, {MIXED}}}",
}
"""System → task.reward."""


def pairs(folder: Path, split: str) -> str:
    return ",".join(str(folder / f"{split}.{side}") for side in ("en", "de"))


def plan(options: argparse.Namespace, seed: int, system: str | None = None) -> Run:
    """The first training by cross-entropy, or a system that continues it."""
    common = (*options.common, f"train.seed={seed}", "train.best_by=loss")
    tests, data = {"test": pairs(options.folder, "test_2016_flickr")}, pairs(options.folder, "train")
    if system is None:
        sets = (*common, scale_steps(RECIPE, [f"train.steps={BASE}"], options.steps_scale), *options.set)
        return Run(f"base-{seed}", RECIPE, data, sets, tests, beam=1)
    steps = scale_steps(RECIPE, [f"train.steps={STEPS}"], options.steps_scale)
    sets = (*common, *TUNED, steps, f"task.reward={SYSTEMS[system]}", *options.set)
    return Run(f"{system}-{seed}", RECIPE, data, sets, tests, beam=1, start=str(options.out / f"base-{seed}"))


def texts(out: Path, outcomes: list[Outcome]) -> list[str]:
    """The outputs of all seeds, one after the other; none if one is missing."""
    files = [out / "texts" / f"{each.run.name}.test.txt" for each in outcomes]
    return [line for file in files for line in file.read_text("utf-8").splitlines()] if all(map(Path.exists, files)) else []


def row(name: str, outcomes: list[Outcome], out: Path, references: list[str], control: list[Outcome]) -> list[str]:
    bleu, ours, theirs = Bleu(), texts(out, outcomes), texts(out, control)
    true = references * len(outcomes)
    values = [each.scores.get("test", {}).get("BLEU", float("nan")) for each in outcomes]
    chrf = [each.scores.get("test", {}).get("chrF2", float("nan")) for each in outcomes]
    chance = length = "–"
    if ours:
        length = f"{np.mean([len(text.split()) for text in ours]) / np.mean([len(text.split()) for text in true]):.3f}"
    if ours and theirs and name not in ("before", CONTROL):
        chance = f"{approximate_randomisation(bleu, bleu.count(ours, true), bleu.count(theirs, true)).p:.4f}"
    each = ", ".join(f"{value:.2f}" for value in values)
    seconds = f"{statistics.mean(one.seconds for one in outcomes):.0f}"
    return [name, f"{statistics.mean(values):.2f} ({each})", f"{statistics.mean(chrf):.2f}", chance, length, seconds]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("folder", type=Path, help="folder of multi30k")
    found.add_argument("--seeds", default="1,2,3", help="seeds (default 1,2,3)")
    add_options(found, at_once=6)
    return found


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.common = frugal_settings(options.out)
    seeds, names = [int(seed) for seed in options.seeds.split(",")], select(SYSTEMS, options.only)
    found = {"before": sweep([plan(options, seed) for seed in seeds], options)}
    done = iter(sweep([plan(options, seed, name) for name in names for seed in seeds], options, prepare=0))
    found |= {name: [next(done) for _ in seeds] for name in names}
    references = (options.folder / "test_2016_flickr.de").read_text("utf-8").splitlines()
    rows = [row(name, each, options.out, references, found.get(CONTROL, [])) for name, each in found.items()]
    text = markdown(["system", "BLEU, mean (each seed)", "chrF2", "p", "length", "seconds"], rows)
    sys.exit(report(options.out, "rewards", text, [each for several in found.values() for each in several]))


if __name__ == "__main__":
    main()
