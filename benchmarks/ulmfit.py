"""Fine-tuning a language model for classification (Howard & Ruder 2018), on SST-2, and each of its three tricks switched off.

    python benchmarks/ulmfit.py DATA [--labels 0,500] [--seeds 1,2] [--out runs/ulmfit] [--at-once 8] [--minutes 9]

DATA holds agnews, eng_fra and sst2. Three stages: a language model of AG News and the English side of Tatoeba; the same model
tuned on the sentences of SST-2, without their labels; a classifier that reads with it. Compared with classifiers from nothing:
the same model, and a Transformer encoder that reads in both directions. Nothing is selected on the test set, sst2/dev.tsv: the
last weights are scored. The floor is the more frequent label.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from trainings import Outcome, Run, add_options, frugal_settings, markdown, report, scale_steps, sweep

MODEL = (
    "data.tokenizer={kind: bpe, lowercase: true}",
    "data.vocabulary=8000",
    "model={kind: language_model, dim: 256, heads: 4, feedforward: 1024, decoder_layers: 4, dropout: 0.2, position: none, "
    "decoder_self: {kind: full, position: rotary}}",
)
LANGUAGE = (
    "task={kind: language_model, segment: 64, carry: nothing}",
    "train.batch_tokens=16384",
    "train.validate_every=0",
    "train.best_by=loss",
)
SLANTED = "train.schedule={{kind: slanted_triangular, rate: {rate}}}"
CLASSIFIER = ("task.dropout=0.4", "data.max_length=128", "train.precision=bf16", "train.validate_every=0", "train.best_by=loss")
NOTHING = ("train.schedule={kind: cosine, rate: 5.0e-4, warmup: 50}", "model.dropout=0.3")
POOLING = "task.pooling=last_max_mean"
TRICKS = {"discriminative rates": "train.layer_factor=1", "unfreezing": "train.unfreeze_every=0"}
SIZES = {0: (600, 4096, 40), 500: (300, 1024, 15)}
"""Labels (0: all of them) → steps, tokens per batch, steps per stage of unfreezing."""


def write_texts(data: Path, out: Path) -> tuple[str, str]:
    """The general text and the sentences of SST-2, one per line."""
    news = [line.rpartition("\t")[0] for line in (data / "agnews" / "train.tsv").read_text("utf-8").splitlines()]
    with gzip.open(data / "eng_fra" / "train.tsv.gz", "rt", encoding="utf-8") as lines:
        spoken = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    general = [*news, *spoken]
    random.Random(1).shuffle(general)
    own = [line.rpartition("\t")[0] for line in (data / "sst2" / "train.tsv").read_text("utf-8").splitlines()]
    files = (out / "general.txt", out / "sst2.txt")
    for file, texts in zip(files, (general, own), strict=True):
        file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return str(files[0]), str(files[1])


def write_labelled(data: Path, count: int, seed: int, out: Path) -> str:
    """`count` labelled sentences, drawn at random; 0: all."""
    if not count:
        return str(data / "sst2" / "train.tsv")
    lines = (data / "sst2" / "train.tsv").read_text("utf-8").splitlines()
    file = out / f"labelled-{count}-{seed}.tsv"
    file.write_text("".join(f"{line}\n" for line in random.Random(seed).sample(lines, count)), "utf-8")
    return str(file)


def classifiers(options: argparse.Namespace, labels: int, seed: int) -> dict[str, Run]:
    """System → its run."""
    data, tests = write_labelled(options.folder, labels, seed, options.out), {"test": str(options.folder / "sst2" / "dev.tsv")}
    steps, tokens, every = SIZES[labels]
    scale = scale_steps("classifier-bytes", [f"train.steps={steps}"], options.steps_scale)
    sets = (*options.common, *CLASSIFIER, f"train.seed={seed}", scale, f"train.batch_tokens={tokens}")
    tricks = (POOLING, "train.layer_factor=2.6", f"train.unfreeze_every={every}", SLANTED.format(rate=2e-3))
    tuned, general = (str(options.out / f"{name}-{seed}") for name in ("lm-tuned", "lm-general"))
    encoder = "model={kind: transformer, dim: 256, heads: 4, feedforward: 1024, encoder_layers: 4, decoder_layers: 1}"
    plans: dict[str, tuple[tuple[str, ...], str]] = {
        "from nothing, same model": ((*MODEL, *NOTHING, POOLING), ""),
        "from nothing, encoder": ((*MODEL[:2], encoder, *NOTHING), ""),
        "language model, tuned": (tricks, tuned),
        "language model, not tuned": (tricks, general),
        "without slanted triangles": ((*tricks[:3], "train.schedule={kind: constant, rate: 2.0e-3}"), tuned),
        **{f"without {name}": ((*tricks, change), tuned) for name, change in TRICKS.items()},
    }
    return {
        name: Run(f"{labels or 'all'}-{name.replace(' ', '-').replace(',', '')}-{seed}", "classifier-bytes", data,
                  (*sets, *changes, *options.set), tests, beam=0, start=start)
        for name, (changes, start) in plans.items()
    }  # fmt: skip


def language_models(options: argparse.Namespace, seeds: list[int]) -> list[list[Run]]:
    """The two stages of language models."""
    general, own = write_texts(options.folder, options.out)
    stages: list[list[Run]] = [[], []]
    for seed in seeds:
        sets = (*options.common, *LANGUAGE, f"train.seed={seed}", "train.precision=bf16")
        long, short = (scale_steps("lm-words", [f"train.steps={steps}"], options.steps_scale) for steps in (1200, 200))
        stages[0].append(Run(f"lm-general-{seed}", "lm-words", general, (*MODEL, *sets, long, *options.set)))
        tricks = ("train.layer_factor=2.6", SLANTED.format(rate=1e-3), short, "train.batch_tokens=8192")
        start = str(options.out / f"lm-general-{seed}")
        stages[1].append(Run(f"lm-tuned-{seed}", "lm-words", own, (*sets, *tricks, *options.set), start=start))
    return stages


def accuracy(outcome: Outcome) -> float:
    return outcome.scores.get("test", {}).get("accuracy", float("nan"))


def table(found: dict[int, dict[str, list[Outcome]]]) -> str:
    names = list(next(iter(found.values())))
    rows = []
    for name in names:
        cells = [name]
        for systems in found.values():
            values = [accuracy(each) for each in systems[name]]
            cells.append(f"{statistics.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        rows.append(cells)
    return markdown(["system", *(f"{labels or 'all'} labels" for labels in found)], rows)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("folder", type=Path, help="folder with agnews, eng_fra and sst2")
    found.add_argument("--labels", default="0,500", help="labelled sentences, 0 for all (default 0,500)")
    found.add_argument("--seeds", default="1,2", help="seeds (default 1,2)")
    add_options(found, at_once=8)
    return found


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.common = frugal_settings(options.out)
    seeds, sizes = [int(seed) for seed in options.seeds.split(",")], [int(count) for count in options.labels.split(",")]
    outcomes: list[Outcome] = []
    for stage in language_models(options, seeds):
        outcomes += sweep(stage, options, prepare=1 if stage[0].start == "" else 0)
    plans = {count: [classifiers(options, count, seed) for seed in seeds] for count in sizes}
    done = iter(sweep([run for each in plans.values() for runs in each for run in runs.values()], options, prepare=0))
    found: dict[int, dict[str, list[Outcome]]] = {}
    for count, each in plans.items():
        for runs in each:
            for name in runs:
                found.setdefault(count, {}).setdefault(name, []).append(next(done))
    outcomes += [one for systems in found.values() for several in systems.values() for one in several]
    labels = Counter(line.rpartition("\t")[2] for line in (options.folder / "sst2" / "dev.tsv").read_text("utf-8").splitlines())
    floor = f"Accuracy on {labels.total()} sentences, mean (each seed). Floor, the more frequent label: "
    floor += f"{100 * labels.most_common(1)[0][1] / labels.total():.1f}.\n\n"
    sys.exit(report(options.out, "ulmfit", floor + table(found), outcomes))


if __name__ == "__main__":
    main()
