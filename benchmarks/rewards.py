"""Learning from rewards: greedy BLEU after minimum risk, REINFORCE and self-critical training, beside as much cross-entropy.

    python benchmarks/rewards.py DATA [--seeds 1,2,3] [--out runs/rewards] [--at-once 6] [--minutes 9] [--only risk-bleu]

DATA is the folder of multi30k, English to German. A model is trained by cross-entropy, and each system continues it for the
same number of steps on the same pairs. Texts are drawn without dropout, so one control is cross-entropy without it. The other
is that of Choshen et al. 2020: REINFORCE with the same reward for every text, beside REINFORCE without a baseline too
(subtracted from a constant reward, a baseline leaves nothing). Texts are greedy and, in the columns `beam`, those of a beam of
5. p: approximate randomisation against `cross-entropy, no dropout`, seed by seed, so that a test sentence counts once. Length:
words per word of the references.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from trainings import Outcome, Run, add_options, frugal_settings, markdown, report, scale_steps, select, sweep

from weft.evaluation.metrics import Bleu
from weft.evaluation.significance import approximate_randomisation

RECIPE = "transformer-small"
BASE, STEPS = 2000, 300
"""Steps of the first training, and of those that continue it."""

CONTROL = "cross-entropy-no-dropout"
NO_DROPOUT = ("model.dropout=0", "model.attention_dropout=0", "model.feedforward_dropout=0")
BEAM = 5
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
    "cross-entropy": "none",
    CONTROL: "none",
    "risk-bleu": f"{{kind: minimum_risk, samples: 8, alpha: 0.05, weight: 40, {MIXED}}}",
    "reinforce-bleu": f"{{kind: reinforce, samples: 5, {MIXED}}}",
    "self-critical": f"{{kind: self_critical, samples: 4, {MIXED}}}",
    "reinforce-no-baseline": f"{{kind: reinforce, baseline: none, samples: 5, {MIXED}}}",
    "constant": f"{{kind: reinforce, metric: constant, baseline: none, samples: 5, {MIXED}}}",
    "reinforce-chrf": f"{{kind: reinforce, metric: chrf, samples: 5, {MIXED}}}",
}
"""System → task.reward."""


def pairs(folder: Path, split: str) -> str:
    return ",".join(str(folder / f"{split}.{side}") for side in ("en", "de"))


def plan(options: argparse.Namespace, seed: int, system: str | None = None) -> Run:
    """The first training by cross-entropy, or a system that continues it."""
    common = (*options.common, f"train.seed={seed}", "train.best_by=loss")
    test, data = pairs(options.folder, "test_2016_flickr"), pairs(options.folder, "train")
    tests = {"greedy": test, "beam": test}
    if system is None:
        sets = (*common, scale_steps(RECIPE, [f"train.steps={BASE}"], options.steps_scale), *options.set)
        return RewardRun(f"base-{seed}", RECIPE, data, sets, tests)
    steps = scale_steps(RECIPE, [f"train.steps={STEPS}"], options.steps_scale)
    sets = (*common, *TUNED, *(NO_DROPOUT if system == CONTROL else ()), steps, f"task.reward={SYSTEMS[system]}", *options.set)
    return RewardRun(f"{system}-{seed}", RECIPE, data, sets, tests, start=str(options.out / f"base-{seed}"))


class RewardRun(Run):
    """A run whose test set is decoded twice."""

    def decoding(self, test: str) -> list[str]:
        return ["--beam", str(BEAM if test == "beam" else 1)]


def p_values(outcomes: list[Outcome], control: list[Outcome], test: str, out: Path, references: list[str]) -> str:
    """The probability that chance explains each seed's difference to the control."""
    bleu, found = Bleu(), []
    for each, other in zip(outcomes, control, strict=False):
        texts = [lines_of(one, test, out) for one in (each, other)]
        if each is not other and all(texts):
            found.append(approximate_randomisation(bleu, *(bleu.count(lines, references) for lines in texts)).p)
    return ", ".join(f"{p:.4f}" for p in found)


def lines_of(outcome: Outcome, test: str, out: Path) -> list[str]:
    """The texts of a run; none if they are missing."""
    file = out / "texts" / f"{outcome.run.name}.{test}.txt"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def row(name: str, outcomes: list[Outcome], out: Path, references: list[str], control: list[Outcome]) -> list[str]:
    cells = [name]
    for test in ("greedy", "beam"):
        values = [each.scores[test]["BLEU"] for each in outcomes if test in each.scores]
        mean = f"{statistics.mean(values):.2f}" if values else "–"
        cells += [mean, ", ".join(f"{value:.2f}" for value in values)]
        cells.append(p_values(outcomes, control, test, out, references) if name != "before" else "")
    chrf = [each.scores["greedy"]["chrF2"] for each in outcomes if "greedy" in each.scores]
    texts = [line for each in outcomes for line in lines_of(each, "greedy", out)]
    words = statistics.mean(len(text.split()) for text in texts) if texts else float("nan")
    length = words / statistics.mean(len(text.split()) for text in references)
    return [*cells, f"{statistics.mean(chrf):.2f}" if chrf else "–", f"{length:.3f}"]


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
    columns = [f"{test}{what}" for test in ("greedy", "beam") for what in ("", ", each seed", ", p")]
    text = markdown(["system", *columns, "chrF2", "length"], rows)
    sys.exit(report(options.out, "rewards", text, [each for several in found.values() for each in several]))


if __name__ == "__main__":
    main()
