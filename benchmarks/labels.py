"""Labels of documents and sentences, beside floors: the most frequent label, and linear models on TF-IDF.

    python benchmarks/labels.py --out OUT [--movies DIR] [--agnews FILE.tsv] [--sst2 DIR] [--seeds 2] [--at-once 2]

movies   train.jsonl.gz and dev.jsonl.gz with `sentences` and `label` (Pang & Lee 2004): hierarchical attention, and subwords
         of whole reviews
agnews   text, tab, label; the first 1,000 lines are for validation: subwords, and bytes under the recipe's budget
sst2     train.tsv and dev.tsv: two layers of self-attention with positions, without them, and with pairs of subwords

`…-alone` is a single self-attention of eight heads over embeddings of words, without norm, residual connection and feed-forward
network, and the mean of its outputs, trained for five epochs; `…-alone-positions` adds sinusoids. Their weights are the last.

With --language-model RUN, `sst2-contextual` puts the mix of the layers of this language model beside embeddings (ELMo), and
`sst2-its-tokens` reads the same tokens with embeddings alone, just as wide.

Weights of the others are those of the best validation, so their accuracies, like the penalty of the linear models, are chosen
on the data they are measured on. The last column is the learning curve: validation accuracy after equal shares of the steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import floors
from trainings import about, add_options, common_settings, deadline, markdown, scale_steps, select

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.runs.run_folder import records
from weft.runs.weight_files import read_tensors

HELD = 1000
"""Lines of AG News for validation."""
PLAIN = ("model.front.ngrams=1", "model.encoder.layers=2")
ALONE = (
    "data.tokenizer={kind: words, lowercase: true}",
    "data.vocabulary=20000",
    "model.front.ngrams=1",
    "model.encoder={dim: 128, heads: 8, feedforward: 0, layers: 1, norm: none, residual: false, dropout: 0.5, position: none}",
    "task.label_smoothing=0",
    "train.ema=0",
    "train.validate_every=0",
)
POSITIONS = "model.encoder.position=sinusoidal"
REVIEWS = ("data.max_length=1000", "train.batch_tokens=16384")
FIVE_EPOCHS = {"sst2": "train.steps=100", "movies": "train.steps=350"}
GIVEN = "LANGUAGE_MODEL"
CELLS = ("rnn", "gru", "lstm", "sru")
RECURRENT = "kind: rnn, dim: 128, layers: 1, embedding: 128, dropout: 0.4"
READER = ("model.encoder={kind: rnn, cell: lstm, dim: 128, layers: 1, embedding: 256, dropout: 0.4}",)
SYSTEMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "movies-han": ("movies", "han", ()),
    "movies-subwords": ("movies", "classifier", REVIEWS),
    "movies-alone": ("movies", "classifier", (*ALONE, *REVIEWS, FIVE_EPOCHS["movies"])),
    "movies-alone-positions": ("movies", "classifier", (*ALONE, *REVIEWS, FIVE_EPOCHS["movies"], POSITIONS)),
    "agnews-subwords": ("agnews", "classifier", ()),
    "agnews-bytes": ("agnews", "classifier-bytes", ()),
    "sst2-positions": ("sst2", "classifier", PLAIN),
    "sst2-no-positions": ("sst2", "classifier", (*PLAIN, "model.encoder.position=none")),
    "sst2-pairs": ("sst2", "classifier", ()),
    "sst2-alone": ("sst2", "classifier", (*ALONE, FIVE_EPOCHS["sst2"])),
    "sst2-alone-positions": ("sst2", "classifier", (*ALONE, FIVE_EPOCHS["sst2"], POSITIONS)),
    "sst2-cnn": ("sst2", "text-cnn", ()),
    "sst2-channels": ("sst2", "classifier", (*PLAIN, "task.pooling={kind: channel_attentive}")),
    "sst2-sliced": ("sst2", "classifier", (PLAIN[0], "model.encoder={kind: sliced_rnn}")),
    **{f"sst2-{cell}": ("sst2", "classifier", (PLAIN[0], f"model.encoder={{{RECURRENT}, cell: {cell}}}")) for cell in CELLS},
    "agnews-cnn": ("agnews", "text-cnn", ()),
    "sst2-contextual": ("sst2", "classifier", (*READER, "model.front={kind: contextual, run: LANGUAGE_MODEL}")),
    "sst2-its-tokens": ("sst2", "classifier", (*READER, PLAIN[0], "data.tokenizer_of=LANGUAGE_MODEL")),
}
"""System → data, recipe, changes to it."""


@dataclass(frozen=True)
class Row:
    """Accuracies of one system, one per seed; none for floors, whose only one is in `best`."""

    data: str
    system: str
    best: float
    seeds: list[float]
    parameters: int | None = None
    seconds: float | None = None
    curve: list[float] | None = None


def find_data(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """The training and validation files of each data set that was given."""
    found: dict[str, tuple[str, str]] = {}
    if options.movies:
        found["movies"] = str(options.movies / "train.jsonl.gz"), str(options.movies / "dev.jsonl.gz")
    if options.agnews:
        lines = options.agnews.read_text("utf-8").splitlines(keepends=True)
        files = options.out / "agnews.train.tsv", options.out / "agnews.valid.tsv"
        for file, part in zip(files, (lines[HELD:], lines[:HELD]), strict=True):
            file.write_text("".join(part), "utf-8")
        found["agnews"] = str(files[0]), str(files[1])
    if options.sst2:
        found["sst2"] = str(options.sst2 / "train.tsv"), str(options.sst2 / "dev.tsv")
    return found


def plan(name: str, seed: int, files: tuple[str, str], options: argparse.Namespace) -> Training:
    _, recipe, changes = SYSTEMS[name]
    own = (change.replace(GIVEN, str(options.language_model)) for change in changes)
    changes = (*common_settings(options.out), *own, *options.set)
    steps = scale_steps(recipe, changes, options.steps_scale)
    return Training(recipe, (files[0],), (files[1],), (*changes, steps, f"train.seed={seed}"))


def measure(name: str, folders: Sequence[Path]) -> Row:
    """The best validation of each seed; parameters, time and curve are those of the first."""
    curves = [[record["accuracy"] for record in records(folder) if record["event"] == "validation"] for folder in folders]
    best = [max(curve) for curve in curves]
    seconds = max((record["seconds"] for record in records(folders[0]) if "seconds" in record), default=0.0)
    parameters = sum(tensor.numel() for tensor in read_tensors(folders[0] / "model.safetensors").values())
    step = max(1, len(curves[0]) // 5)
    return Row(SYSTEMS[name][0], name, statistics.mean(best), best, parameters, seconds, curves[0][step - 1 :: step])


def run(names: Sequence[str], data: Mapping[str, tuple[str, str]], options: argparse.Namespace) -> list[Row]:
    """Trains all seeds of all systems in parallel and measures those that ended."""
    processes = Processes(options.out / "logs", at_once=options.at_once, until=deadline(options.minutes))

    def one(job: tuple[str, int]) -> bool:
        name, seed = job
        folder = options.out / f"{name}-{seed}"
        try:
            train(plan(name, seed, data[SYSTEMS[name][0]], options), folder, processes, folder.name)
        except (Failure, Stopped) as error:
            print(f"{folder.name}: {error}", flush=True)
            return False
        return True

    jobs = [(name, seed) for name in names for seed in range(1, options.seeds + 1)]
    with ThreadPoolExecutor(options.at_once) as workers:
        done = dict(zip(jobs, workers.map(one, jobs), strict=True))
    folders = {
        name: [options.out / f"{name}-{seed}" for each, seed in jobs if each == name and done[each, seed]] for name in names
    }
    return [measure(name, found) for name, found in folders.items() if found]


def floor_rows(data: Mapping[str, tuple[str, str]]) -> list[Row]:
    return [
        Row(name, f"*floor: {what}*", value, [])
        for name, files in data.items()
        for what, value in floors.topics(*files).items()
    ]


def table(rows: Sequence[Row]) -> str:
    """By data set, the best first."""
    order = sorted(rows, key=lambda row: (row.data, -row.best))
    headings = ("data", "system", "accuracy, %", "seeds", "parameters", "seconds", "learning curve")
    cells = [
        (
            row.data,
            row.system,
            f"{row.best:.2f}",
            ", ".join(f"{each:.2f}" for each in row.seeds),
            f"{row.parameters:,}" if row.parameters else "",
            f"{row.seconds:.0f}" if row.seconds else "",
            " ".join(f"{each:.1f}" for each in row.curve or []),
        )
        for row in order
    ]
    return markdown(headings, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--movies", type=Path, help="folder of movie reviews as JSON lines")
    parser.add_argument("--agnews", type=Path, help="file of text TAB label")
    parser.add_argument("--sst2", type=Path, help="folder of SST-2")
    parser.add_argument("--language-model", type=Path, help="run of a language model, for contextual vectors")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each system (default 2)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = find_data(options)
    names = [name for name in select(SYSTEMS, options.only) if SYSTEMS[name][0] in data]
    names = [name for name in names if options.language_model or GIVEN not in "".join(SYSTEMS[name][2])]
    if not names:
        sys.exit("there is nothing to train on; give --movies, --agnews or --sst2")
    rows = [*run(names, data, options), *floor_rows(data)]
    text = f"{about()}\n\n{table(rows)}"
    (options.out / "labels.md").write_text(text, "utf-8")
    found = {"about": about(), "scores": [asdict(row) for row in rows]}
    (options.out / "labels.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{text}\nwritten to {options.out / 'labels.md'} and .json")
    sys.exit(sum(bool(row.seeds) for row in rows) < len(names))


if __name__ == "__main__":
    main()
