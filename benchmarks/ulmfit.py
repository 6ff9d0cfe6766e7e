"""Fine-tuning a language model for classification (Howard & Ruder 2018), on SST-2, and each of its three tricks switched off.

    python benchmarks/ulmfit.py DATA [--labels 0,500] [--seeds 1,2] [--draws 3] [--out runs/ulmfit] [--at-once 8] [--minutes 9]
        [--only language-model-tuned,over-vectors-tuned]

DATA holds agnews, eng_fra and sst2, and movie_reviews for one row that has more text than the others. Three stages: a language
model of AG News and the English side of Tatoeba, written as SST-2 is; the same model tuned on the sentences of SST-2 without
their labels, until held-out sentences get no more probable; a classifier that reads with it. Compared with classifiers from
nothing (the same model, and a Transformer encoder that reads in both directions), with one layer over word vectors of the same
texts (`weft vectors`), with a language model over these vectors, and with a linear model on TF-IDF. Nothing is selected on the
test set, sst2/dev.tsv: the last weights of each classifier are scored. With few labels, each seed is repeated with several
draws of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from floors import topics
from trainings import Outcome, Run, add_options, frugal_settings, markdown, report, scale_steps, select, sweep

TOKENS = ("data.tokenizer={kind: words, lowercase: true, punctuation: false, line_ends: true}", "data.vocabulary=12000")
SHAPE = "dim: 256, heads: 4, feedforward: 1024"
MODEL = (
    f"model={{kind: language_model, {SHAPE}, decoder_layers: 3, dropout: 0.3, position: none, "
    "decoder_self: {kind: full, position: rotary}}"
)
ENCODER = f"model={{kind: transformer, {SHAPE}, encoder_layers: 3, decoder_layers: 1}}"
LANGUAGE = ("task={kind: language_model, segment: 64, carry: nothing}", "train.precision=bf16", "train.best_by=loss")
GENERAL = (*TOKENS, MODEL, "train.batch_tokens=16384", "train.validate_every=0")
TUNING = ("start.extend=6000", "train.batch_tokens=4096", "train.validate_every=50", "model.dropout=0.4")
SLANTED = "train.schedule={{kind: slanted_triangular, rate: {rate}}}"
CLASSIFIER = ("task.dropout=0.4", "data.max_length=128", "train.precision=bf16", "train.validate_every=0", "train.best_by=loss")
DROPOUT = "model.dropout=0.3"
POOLING, FACTOR = "task.pooling=last_max_mean", 1.3
SIZES = {0: (600, 4096, 40, 2e-3), 500: (200, 1024, 12, 2e-3)}
"""Labels (0: all of them) → steps, tokens per batch, steps per stage of unfreezing, rate."""
READER = f"model={{kind: transformer, {SHAPE}, encoder_layers: 1, decoder_layers: 1, dropout: 0.3, position: none}}"
SMALL = {0: (300, 2048, 1e-3), 500: (100, 1024, 1e-3)}
"""Labels → steps, tokens per batch and rate of one layer, chosen on held-out sentences of sst2/train.tsv, as are these:"""
FROZEN = 'train.freeze=["*.table.weight"]'
KEPT = {0: ("train.layer_factor=3", SLANTED.format(rate=3e-3)), 500: (FROZEN,)}
"""Labels → settings that keep word vectors similar to what they were."""
FLOORS = ("most frequent label", "TF-IDF of words and pairs of words, linear model")
HELD = 300
"""Sentences of SST-2 that decide how long a language model is tuned."""


def as_in_sst2(text: str) -> str:
    """Lower case, with spaces around punctuation and before n't, 's and the like."""
    text = text.lower().replace(" #39;", "'").replace("#39;", "'").replace("quot;", '"').replace("\\", " ")
    text = re.sub(r"(n't|'(?:s|re|ve|ll|d|m))\b", r" \1", text)
    return " ".join(re.findall(r"n't|'[a-z]+|[^\W_]+|[^\w\s]", text))


def read_labelled(file: Path) -> list[tuple[str, str]]:
    return [(text, label) for text, _, label in (line.rpartition("\t") for line in file.read_text("utf-8").splitlines())]


def write_lines(file: Path, lines: Iterable[str]) -> str:
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(file)


def write_texts(data: Path, out: Path) -> dict[str, str]:
    """Files of text, one sentence per line: general, reviews (with the general text), sst2 and held."""
    with gzip.open(data / "eng_fra" / "train.tsv.gz", "rt", encoding="utf-8") as lines:
        spoken = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    general = [*(text for text, _ in read_labelled(data / "agnews" / "train.tsv")), *spoken]
    with gzip.open(data / "movie_reviews" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        reviews = [sentence for line in lines for sentence in json.loads(line)["sentences"]]
    own = [text for text, _ in read_labelled(data / "sst2" / "train.tsv")]
    general = [*map(as_in_sst2, general)]
    random.Random(1).shuffle(general)
    random.Random(1).shuffle(own)
    texts = {"general": general, "reviews": [*general, *map(as_in_sst2, reviews)], "sst2": own[HELD:], "held": own[:HELD]}
    return {name: write_lines(out / f"{name}.txt", some) for name, some in texts.items()}


def learn_word_vectors(file: str, texts: Iterable[str]) -> None:
    """Writes a file of word vectors, unless it is there."""
    if not Path(file).exists():
        subprocess.run([sys.executable, "-m", "weft", "vectors", *texts, "-o", file, "--spaces"], check=True)


def language_models(options: argparse.Namespace, files: dict[str, str], names: set[str]) -> list[list[Run]]:
    """The two stages of the language models in `names`, TEXT-SEED.

    `vectors` and `fixed` have the general text, and word vectors as first embeddings, which stay as they are in `fixed`.
    """
    stages: list[list[Run]] = [[], []]
    long, short = (scale_steps("lm-words", [f"train.steps={steps}"], options.steps_scale) for steps in (1500, 600))
    for name in sorted(names):
        text, seed = name.split("-")
        sets, first = (*options.common, *LANGUAGE, f"train.seed={seed}"), f"lm-{name}"
        begin = over_vectors(options, "general", 6000) if text in ("vectors", "fixed") else ()
        fixed = (FROZEN,) if text == "fixed" else ()
        stages[0].append(
            Run(first, "lm-words", files.get(text, files["general"]), (*sets, *GENERAL, *begin, *fixed, long, *options.set))
        )
        tuning = (*sets, *TUNING, *fixed, SLANTED.format(rate=1e-3), short, *options.set)
        start = str(options.out / first)
        stages[1].append(Run(f"{first}-tuned", "lm-words", files["sst2"], tuning, valid=files["held"], start=start))
    return stages


def draw_labelled(data: Path, count: int, draw: int, out: Path) -> str:
    """A file of `count` labelled sentences, drawn at random; 0: all."""
    file = data / "sst2" / "train.tsv"
    if not count:
        return str(file)
    lines = file.read_text("utf-8").splitlines()
    return write_lines(out / f"labelled-{count}-{draw}.tsv", random.Random(draw).sample(lines, count))


def over_vectors(options: argparse.Namespace, text: str, more: int = 20_000) -> tuple[str, ...]:
    """Settings of embeddings that start with word vectors, for `more` words than the training data has."""
    return f"start.vectors={options.vectors[text]}", f"start.extend={more}"


def with_vectors(options: argparse.Namespace, labels: int) -> dict[str, tuple[str, ...]]:
    """Settings of one layer over word vectors, and of the same from nothing."""
    steps, tokens, rate = SMALL[labels]
    scale = scale_steps("classifier-bytes", [f"train.steps={steps}"], options.steps_scale)
    sets = (*TOKENS, READER, scale, f"train.batch_tokens={tokens}", SLANTED.format(rate=rate), "task.pooling=mean")
    general, reviews = ((*sets, *KEPT[labels], *over_vectors(options, text)) for text in ("general", "reviews"))
    return {
        "from nothing, one layer": sets,
        "one layer, word vectors of the general text": general,
        "one layer, word vectors with movie reviews": reviews,
    }


def slug(name: str) -> str:
    return re.sub("[ ,]+", "-", name)


def classifiers(options: argparse.Namespace, labels: int, seed: int, draw: int) -> dict[str, Run]:
    """System → its run, for the systems of --only."""
    data, tests = draw_labelled(options.folder, labels, draw, options.out), {"test": str(options.folder / "sst2" / "dev.tsv")}
    steps, tokens, every, rate = SIZES[labels]
    scale = scale_steps("classifier-bytes", [f"train.steps={steps}"], options.steps_scale)
    sets = (*options.common, *CLASSIFIER, f"train.seed={draw}", scale, f"train.batch_tokens={tokens}")
    tricks = (POOLING, DROPOUT, f"train.layer_factor={FACTOR}", f"train.unfreeze_every={every}", SLANTED.format(rate=rate))
    nothing, constant = (DROPOUT, SLANTED.format(rate=rate)), f"train.schedule={{kind: constant, rate: {rate}}}"
    kept = (FROZEN,) if labels else ()
    plans: dict[str, tuple[tuple[str, ...], str]] = {
        **{name: (changes, "") for name, changes in with_vectors(options, labels).items()},
        "from nothing, same model": ((*TOKENS, MODEL, *nothing, POOLING), ""),
        "from nothing, encoder": ((*TOKENS, ENCODER, *nothing), ""),
        "language model, tuned": (tricks, "general-{}-tuned"),
        "language model, not tuned": (tricks, "general-{}"),
        "without slanted triangles": ((*tricks, constant), "general-{}-tuned"),
        "without discriminative rates": ((*tricks, "train.layer_factor=1"), "general-{}-tuned"),
        "without unfreezing": ((*tricks, "train.unfreeze_every=0"), "general-{}-tuned"),
        "language model with movie reviews, tuned": (tricks, "reviews-{}-tuned"),
        "same model over vectors, no language model": (
            (*TOKENS, MODEL, *nothing, POOLING, *kept, *over_vectors(options, "general")),
            "",
        ),
        "over fixed vectors, tuned": ((*tricks, *kept), "fixed-{}-tuned"),
        "over vectors, tuned": ((*tricks, *kept), "vectors-{}-tuned"),
        "over vectors, without slanted triangles": ((*tricks, *kept, constant), "vectors-{}-tuned"),
        "over vectors, without discriminative rates": ((*tricks, *kept, "train.layer_factor=1"), "vectors-{}-tuned"),
        "over vectors, without unfreezing": ((*tricks, *kept, "train.unfreeze_every=0"), "vectors-{}-tuned"),
    }
    found = {}
    known = {slug(name): name for name in plans}
    for folder in select(known, options.only):
        changes, start = plans[known[folder]]
        model = str(options.out / f"lm-{start.format(seed)}") if start else ""
        run = f"{labels or 'all'}-{folder}-{draw}"
        found[known[folder]] = Run(run, "classifier-bytes", data, (*sets, *changes, *options.set), tests, beam=0, start=model)
    return found


def cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})"


def table(found: dict[int, dict[str, list[float]]]) -> str:
    names = list(next(iter(found.values())))
    rows = [[name, *(cell(systems[name]) for systems in found.values())] for name in names]
    return markdown(["system", *(f"{labels or 'all'} labels" for labels in found)], rows)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("folder", type=Path, help="folder with agnews, eng_fra, sst2 and movie_reviews")
    found.add_argument("--labels", default="0,500", help="labelled sentences, 0 for all (default 0,500)")
    found.add_argument("--seeds", default="1,2", help="seeds (default 1,2)")
    found.add_argument("--draws", type=int, default=3, help="draws of few labels per seed (default 3)")
    add_options(found, at_once=8)
    return found


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.common = frugal_settings(options.out)
    seeds, sizes = [int(seed) for seed in options.seeds.split(",")], [int(count) for count in options.labels.split(",")]
    outcomes: list[Outcome] = []
    files = write_texts(options.folder, options.out)
    options.vectors = {text: str(options.out / f"{text}.vec.gz") for text in ("general", "reviews")}
    plans: list[tuple[int, str, Run]] = []
    found: dict[int, dict[str, list[float]]] = {count: {} for count in sizes}
    for count in sizes:
        for seed in seeds:
            for draw in range(options.draws * seed, options.draws * (seed + 1)) if count else [seed]:
                plans += [(count, name, run) for name, run in classifiers(options, count, seed, draw).items()]
                data, test = draw_labelled(options.folder, count, draw, options.out), str(options.folder / "sst2" / "dev.tsv")
                scores = topics(data, test)
                for name in FLOORS:
                    found[count].setdefault(name, []).append(scores[name])
    starts = {Path(run.start).name for _, _, run in plans if run.start}
    stages = language_models(options, files, {start.removeprefix("lm-").removesuffix("-tuned") for start in starts})
    settings = {setting for run in (*stages[0], *(run for _, _, run in plans)) for setting in run.sets}
    for text, file in options.vectors.items():
        if f"start.vectors={file}" in settings:
            learn_word_vectors(file, [files[each] for each in (text, "sst2", "held")])
    for stage in stages:
        outcomes += sweep(stage, options, prepare=0)
    done = sweep([run for _, _, run in plans], options, prepare=0)
    for (count, name, _), outcome in zip(plans, done, strict=True):
        found[count].setdefault(name, []).append(outcome.scores.get("test", {}).get("accuracy", math.nan))
    about = "Accuracy on sst2/dev.tsv, mean (each seed, or each draw of labels).\n\n"
    sys.exit(report(options.out, "ulmfit", about + table(found), [*outcomes, *done]))


if __name__ == "__main__":
    main()
