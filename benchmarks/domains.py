"""Fine-tuning for another domain, and what is forgotten: plain, mixed with old data, with adapters, with a frozen encoder.

    python benchmarks/domains.py DATA [--seeds 1,2] [--out runs/domains] [--at-once 4] [--minutes 9] [--only plain,mixed]

DATA holds multi30k and eng_fra, English to French: captions and everyday sentences. A model of one domain is tuned on 2,000
pairs of the other, in both directions. Scored on multi30k/test_2016_flickr and eng_fra/dev.tsv. Floor: before tuning.
The column `validation` is the BLEU of 500 other pairs of the new domain, to compare settings by.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import sys
from pathlib import Path

from trainings import Outcome, Run, add_options, frugal_settings, markdown, report, scale_steps, select, sweep

from weft.runs.run_folder import records
from weft.runs.weight_files import read_tensors

RECIPE = "transformer-small"
PAIRS, VALID = 2000, 500
BASE = 1500
"""Steps of the first training."""

TUNED = ("train.batch_tokens=4096", "train.ema=0.98")


def rated(rate: float) -> str:
    """The schedule of fine-tuning, with this highest rate."""
    return f"train.schedule={{kind: slanted_triangular, rate: {rate}}}"


LORA = "model.lora={rank: 4, alpha: 8, embedding_rank: 12}"

SYSTEMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "plain": (400, (rated(5.0e-4),)),
    "plain-longer": (1200, (rated(5.0e-4),)),
    "plain-longest": (4800, (rated(5.0e-4),)),
    "plain-less-dropout": (1200, (rated(5.0e-4), "model.dropout=0.2")),
    "mixed": (400, (rated(5.0e-4),)),
    "adapters": (4800, (rated(5.0e-3), LORA, "model.dropout=0.2")),
    "adapters-less-dropout": (4800, (rated(5.0e-3), LORA, "model.dropout=0.1")),
    "adapters-more-dropout": (4800, (rated(1.0e-2), LORA)),
    "adapters-shorter": (1200, (rated(1.0e-2), LORA)),
    "adapters-linear": (1200, (rated(1.0e-2), "model.lora={rank: 7, alpha: 14, embedding_rank: 0}")),
    "frozen-encoder": (400, (rated(5.0e-4), "train.freeze=[encoder.layers.*]")),
    "extended": (400, (rated(5.0e-4), "start.extend=500")),
}
"""How a model is tuned → steps and settings.

`mixed` draws as many pairs of the old domain as of the new; `extended` adds tokens. Adapters have at most 3 % of the
parameters, and take more steps at a higher rate and, except for two variants, less dropout; `adapters-linear` leaves embeddings
and the output layer as they are.
"""


def write_data(folder: Path, out: Path) -> dict[str, dict[str, str]]:
    """Domain → all pairs, 2,000 of them, others for validation, and the test."""
    captions = folder / "multi30k"
    lines = [(captions / f"train.{side}").read_text("utf-8").splitlines() for side in ("en", "fr")]
    with gzip.open(folder / "eng_fra" / "train.tsv.gz", "rt", encoding="utf-8") as opened:
        spoken = opened.read().splitlines()
    found = {}
    test = {
        "captions": f"{captions / 'test_2016_flickr.en'},{captions / 'test_2016_flickr.fr'}",
        "sentences": str(folder / "eng_fra" / "dev.tsv"),
    }
    for name, pairs in (("captions", ["\t".join(pair) for pair in zip(*lines, strict=True)]), ("sentences", spoken)):
        few = random.Random(1).sample(pairs, min(PAIRS, len(pairs)))
        known = {*few}
        others = [pair for pair in random.Random(2).sample(pairs, min(2 * VALID, len(pairs))) if pair not in known][:VALID]
        parts = {"all": pairs, "few": few, "valid": others}
        files = {part: out / f"{name}-{part}.tsv" for part in parts}
        for part, some in parts.items():
            files[part].write_text("".join(f"{line}\n" for line in some), "utf-8")
        found[name] = {**{key: str(file) for key, file in files.items()}, "test": test[name]}
    return found


def plan(options: argparse.Namespace, data: dict[str, dict[str, str]], old: str, seed: int, system: str | None = None) -> Run:
    """A model of the domain `old`, or that model tuned for the other domain."""
    (new,) = set(data) - {old}
    common = (*options.common, f"train.seed={seed}", "train.validate_every=0", "train.best_by=loss")
    tests = {name: each["test"] for name, each in data.items()}
    if system is None:
        steps = scale_steps(RECIPE, [f"train.steps={BASE}"], options.steps_scale)
        return Run(f"{old}-{seed}", RECIPE, data[old]["all"], (*common, steps, *options.set), tests)
    count, settings = SYSTEMS[system]
    steps = scale_steps(RECIPE, [f"train.steps={count}"], options.steps_scale)
    few, whole, start = data[new]["few"], data[old]["all"], str(options.out / f"{old}-{seed}")
    mixed = f"data.train=[{{files: {few}, weight: 1}}, {{files: {whole}, weight: 1}}]"
    sets = (*common, *TUNED, *settings, steps, *([mixed] if system == "mixed" else []), *options.set)
    pairs = "" if system == "mixed" else few
    return Run(f"{old}-{system}-{seed}", RECIPE, pairs, sets, tests, valid=data[new]["valid"], start=start)


def trained_share(out: Path, outcome: Outcome) -> float:
    """The percentage of parameters that a run saves itself."""
    file = out / outcome.run.name / "model.safetensors"
    saved = sum(tensor.numel() for tensor in read_tensors(file).values()) if file.exists() else 0
    return 100 * saved / max(1, outcome.parameters)


def validated(out: Path, outcome: Outcome) -> str:
    """The BLEU of the last validation of a run."""
    return next((f"{record['bleu']:.1f}" for record in records(out / outcome.run.name)[::-1] if "bleu" in record), "–")


def table(out: Path, data: dict[str, dict[str, str]], old: str, found: dict[str, list[Outcome]]) -> str:
    rows = []
    for name, outcomes in found.items():
        cells = [name]
        for test in data:
            values = [each.scores.get(test, {}).get("BLEU", float("nan")) for each in outcomes]
            cells.append(f"{statistics.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        steps = SYSTEMS[name][0] if name in SYSTEMS else BASE
        valid = ", ".join(validated(out, outcome) for outcome in outcomes)
        rows.append([*cells, valid, f"{steps:,}", f"{trained_share(out, outcomes[0]):.1f} %"])
    heading = ["system", *data, "validation", "steps", "parameters saved"]
    return f"A model of {old}, tuned for the other domain:\n\n" + markdown(heading, rows) + "\n"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("folder", type=Path, help="folder with multi30k and eng_fra")
    found.add_argument("--seeds", default="1,2", help="seeds (default 1,2)")
    found.add_argument("--old", default="captions,sentences", help="domains to start from (default both)")
    add_options(found, at_once=4)
    return found


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.common = frugal_settings(options.out)
    data, seeds, olds = write_data(options.folder, options.out), options.seeds.split(","), options.old.split(",")
    systems = select(SYSTEMS, options.only)
    bases = [plan(options, data, old, int(seed)) for old in olds for seed in seeds]
    outcomes = sweep(bases, options, prepare=len(bases))
    plans = {(old, name): [plan(options, data, old, int(seed), name) for seed in seeds] for old in olds for name in systems}
    done = iter(sweep([run for runs in plans.values() for run in runs], options, prepare=0))
    text, before = "BLEU (beam 5), mean over seeds (each seed).\n\n", iter(outcomes)
    for old in olds:
        found = {"before": [next(before) for _ in seeds]}
        found |= {name: [next(done) for _ in seeds] for name in systems}
        outcomes = [*outcomes, *(each for name in systems for each in found[name])]
        text += table(options.out, data, old, found)
    sys.exit(report(options.out, "domains", text, outcomes))


if __name__ == "__main__":
    main()
