"""Trains the systems of `families.py`, `ladder.py`, `single_choices.py` and `agreement.py` side by side on one GPU.

    python benchmarks/comparisons.py DIR --out OUT --results FILE [--at-once 10] [--seconds 500] [--groups ladder,choices]
                                          [--first 'choices/shaw@1,brown/*@1']
    python benchmarks/comparisons.py --results FILE                                   # only print the table

DIR holds train, val and test_2016_flickr of Multi30k; beside it lie ud_ewt, brown, movie_reviews and sst2. A training that
several tables share is done once. It is followed by its scores (BLEU and chrF2, beam 5; contrastive pairs with ambiguous words,
by length) in the same process, and by a line in FILE, which a later call continues: what has scores there is not repeated, and
failures come last. The groups of one budget come seed by seed, then the others: `contrastive`, systems that are known already,
for their preferences; `agreement` in generated phrases; `brown`, agreement in real sentences; `tagging` by an LSTM, or by
self-attention with convolutions; `alone`, self-attention alone over embeddings; `distance`, copying and recall; `little`,
subsets, the same as in `fit.py`. What `--first` names comes before all others, in its order. Start
`nvidia-cuda-mps-control -d` before, so that the trainings share the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import Any

import agreement
import brown
import distance
import fit
import labels
import tagging
from contrastive import ambiguous, contrast, most_frequent_tags, sentences, translations
from families import SYSTEMS, TESTS, System, pairs, plan
from ladder import LADDER
from single_choices import CHOICES
from trainings import BEGAN, Run, about, common_settings, markdown, prepare_data, scale_steps, training_seconds

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, reason
from weft.cli import run as run_command
from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines
from weft.data.tokenizers import RESERVED
from weft.evaluation.contrastive_pairs import Contrast
from weft.runs.open_run import open_run
from weft.runs.run_folder import CONFIG, complete

REPORTED = {
    *("fixed-lstm", "fixed-gru", "bahdanau", "normed", "luong-dot", "luong-general", "luong-concat", "local-p", "monotonic"),
    *("location-aware", "hard", "key-value", "convs2s", "bytenet", "mixed-rnn", "mixed-cnn", "transformer", "transformer-rnn"),
    *("convs2s-transformer", "rnn-transformer"),
}
"""The systems of families.py that the results report already."""

CONTRASTED = ("fixed-lstm", "bahdanau", "convs2s", "mixed-rnn", "luong-general")
"""Those of them that are trained once more for their preferences between translations."""

GROUPS: dict[str, Mapping[str, System]] = {
    "ladder": LADDER,
    "families": {name: system for name, system in SYSTEMS.items() if name not in REPORTED},
    "choices": CHOICES,
    "contrastive": {name: SYSTEMS[name] for name in CONTRASTED},
}
UNCAPTURED = ("fed-free", "fed-linear", "fed-exponential", "fed-sigmoid", "guided", "coverage", "doubly")
SLOW = {f"choices/{name}" for name in UNCAPTURED}
"""Systems that CUDA graphs cannot hold. They take several times as long, so they come first."""

READERS = {
    "lstm": brown.SYSTEMS["lstm"],
    **{f"heads-{count}": (*brown.SYSTEMS["transformer"], f"model.heads={count}") for count in (1, 2, 4, 8, 16)},
}
"""Language models of the Brown corpus: name → changes to the recipe."""
LITTLE, FEW = ("luong-general", "convs2s"), (500, 3000, 12000)
"""Systems that are trained on subsets, and their sizes; `fit.py` has those of the Transformer."""


@dataclass
class Job:
    """One training with everything that is scored with it. rows: where it stands, as GROUP/NAME · decodings: name → settings
    of `weft evaluate` that differ from a beam of 5."""

    run: Run
    rows: list[str] = field(default_factory=list)
    decodings: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifies the training: its settings and its data."""
        return json.dumps([self.run.config().model_dump(mode="json"), self.run.data], sort_keys=True)

    def commands(self, out: Path) -> Iterator[tuple[str, list[str]]]:
        """A name and the words of each command of weft: the training, or the rest of it, and the scores."""
        folder = out / self.run.name
        if not complete(folder):
            started = (folder / CONFIG).exists()
            yield "train", ["train", "--resume", str(folder)] if started else self.run.training.words(folder)
        evaluate = ["evaluate", str(folder), "--json"]
        for test, data in self.run.tests.items():
            yield test, [*evaluate, "--data", data, *replace(self.run, decode=()).decoding(test)]
            for name, sets in self.decodings.items():
                yield f"{test} {name}", [*evaluate, "--data", data, *(word for each in sets for word in ("--set", each))]
        for test, file in self.run.contrasts.items():
            yield test, [*evaluate, "--contrastive", file]


def write_ambiguous(folder: Path, out: Path) -> dict[str, str]:
    """A file of contrastive pairs with ambiguous words, from both tests."""
    known, file = translations(open_pairs(pairs(folder, "train"))), out / "ambiguous.tsv"
    found = [each for split in TESTS.values() for each in ambiguous(open_pairs(pairs(folder, split)), known)]
    return {"ambiguous": write_contrasts(found, file)}


def write_contrasts(found: Iterable[Contrast], file: Path) -> str:
    file.write_text("".join(f"{each.source}\t{each.right}\t{each.wrong}\t{each.group}\n" for each in found), "utf-8")
    return str(file)


def translators(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    """The systems of the groups of one budget."""
    data, tests = pairs(options.folder, "train"), {test: pairs(options.folder, split) for test, split in TESTS.items()}
    contrasts, seeded = write_ambiguous(options.folder, options.out), with_seed(seed, options)
    for group, systems in GROUPS.items():
        for name, system in systems.items():
            run = replace(plan(name, data, tests, seeded, f"@{seed}", systems), contrasts=contrasts)
            yield Job(run, [f"{group}/{name}"], {name: system.decode} if system.decode else {})


def little(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    tests, seeded = {test: pairs(options.folder, split) for test, split in TESTS.items()}, with_seed(seed, options)
    for size in FEW:
        data = fit.subset(options.folder.parent, size, options.out / "data")
        for name in LITTLE:
            yield Job(plan(name, data, tests, seeded, f"-{size}@{seed}"), [f"little/{name}-{size}"])


def generated(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    """Agreement in generated phrases."""
    tests = agreement.write_tests(options.out)
    for name in agreement.SYSTEMS:
        yield Job(agreement.plan(name, seed, tests, options), [f"agreement/{name}"])


def distances(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    """Copying and recall over distance."""
    for task in distance.TASKS:
        for name in distance.NAMES:
            yield Job(distance.plan(task, name, seed, options), [f"distance/{task}-{name}"])


def real(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    """Agreement in sentences of the Brown corpus, whose words have the tags that they have most often in UD English EWT."""
    out = options.out / "brown"
    out.mkdir(exist_ok=True)
    size = brown.number_words(brown.split(options.folder.parent / "brown" / "brown.txt.gz", out))[1]
    tags, contrasts = most_frequent_tags(options.folder.parent / "ud_ewt" / "train.tsv"), dict[str, str]()
    for by in ("attractors", "distance"):
        lines = (line for part in ("valid", "test") for line in read_lines(str(out / f"{part}.txt")))
        found = [each for sentence in sentences(lines, tags) if (each := contrast(sentence, by)) is not None]
        contrasts[by] = write_contrasts(found, out / f"{by}.tsv")
    for name, changes in READERS.items():
        vocabulary = f"data.vocabulary={size - 1 + RESERVED}"
        sets = (*common_settings(options.out), vocabulary, *changes, *options.set, f"train.seed={seed}")
        sets = (*sets, scale_steps(brown.RECIPE, sets, options.steps_scale))
        train, valid = str(out / "train.txt"), str(out / "valid.txt")
        tests = {"test": str(out / "test.txt")}
        yield Job(
            Run(f"{name}@{seed}", brown.RECIPE, train, sets, tests, 0, valid=valid, contrasts=contrasts), [f"brown/{name}"]
        )


def taggers(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    files = tagging.find_data(argparse.Namespace(ewt=options.folder.parent / "ud_ewt", names=None))["universal"]
    for name in ("universal", "universal-transformer", "universal-convolutions"):
        run = tagging.plan(name, seed, files, options)
        yield Job(replace(run, name=f"{name}@{seed}", beam=0), [f"tagging/{name}"])


def alone(seed: int, options: argparse.Namespace) -> Iterator[Job]:
    """Self-attention alone over embeddings."""
    folder = options.folder.parent
    files = labels.find_data(argparse.Namespace(movies=folder / "movie_reviews", agnews=None, sst2=folder / "sst2"))
    for name, (data, recipe, _) in labels.SYSTEMS.items():
        if "-alone" in name:
            training = labels.plan(name, seed, files[data], options)
            run = Run(f"{name}@{seed}", recipe, files[data][0], training.sets, {"dev": files[data][1]}, 0, valid=files[data][1])
            yield Job(run, [f"alone/{name}"])


OTHERS = {"agreement": generated, "brown": real, "tagging": taggers, "alone": alone, "distance": distances, "little": little}


def with_seed(seed: int, options: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), "set": [*options.set, f"train.seed={seed}"]})


def jobs(options: argparse.Namespace) -> list[Job]:
    """All jobs, the urgent ones first."""
    wanted, found = options.groups.split(","), dict[str, Job]()
    for seed in range(1, options.seeds + 1):
        some = [
            *translators(seed, options),
            *(job for name, make in OTHERS.items() if name in wanted for job in make(seed, options)),
        ]
        for job in some:
            if job.rows[0].partition("/")[0] in wanted:
                same = found.setdefault(job.key, replace(job, rows=[], decodings={}))
                same.rows.extend(job.rows)
                same.decodings.update(job.decodings)
    return sorted(map(named, found.values()), key=urgency)


def urgency(job: Job) -> tuple[bool, int, bool]:
    """The order of jobs: the groups of one budget seed by seed, what takes long first; then the rest."""
    late = not any(row.partition("/")[0] in ("ladder", "families", "choices") for row in job.rows)
    return late, int(job.run.name.rpartition("@")[2]), SLOW.isdisjoint(job.rows)


def place(job: Job, patterns: Sequence[str]) -> int:
    """The first of the patterns that a row of the job matches, as GROUP/NAME@SEED."""
    seed = job.run.name.rpartition("@")[2]
    matches = (any(fnmatchcase(f"{row}@{seed}", pattern) for row in job.rows) for pattern in patterns)
    return next((number for number, match in enumerate(matches) if match), len(patterns))


def named(job: Job) -> Job:
    """The job under the name of its first row, which no other group has."""
    group, _, name = job.rows[0].partition("/")
    return replace(job, run=replace(job.run, name=f"{group}-{name}@{job.run.name.rpartition('@')[2]}"))


def score(job: Job, out: Path) -> dict[str, dict[str, float]]:
    """The scores in the files that the commands wrote."""
    found: dict[str, dict[str, float]] = {}
    for name, _ in job.commands(out):
        if name == "train":
            continue
        document = json.loads(output(job, out, name).read_text("utf-8"))
        if "metrics" in document:
            found[name] = {metric: each["value"] for metric, each in document["metrics"].items()}
        elif "scores" in document:  # a language model
            found[name] = next(iter(document["scores"].values()))
        else:
            groups = {group: each["accuracy"] for group, each in document.get("groups", {}).items()}
            found[name] = {"accuracy": document["accuracy"], **groups}
    return found


def output(job: Job, out: Path, name: str) -> Path:
    return out / "scores" / f"{job.run.name}.{name.replace(' ', '.')}.json"


class Pool:
    """Runs jobs, `at_once` of them at a time, until `seconds` after the start of the script; appends a line for each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.results, self.lock = options.out, options.results, Lock()
        self.began, self.until = time.monotonic(), BEGAN + options.seconds
        self.processes = Processes(self.out / "logs", at_once=options.at_once, until=self.until)
        self.at_once, self.taken = options.at_once, dict[int, list[float]]()

    def __call__(self, some: Sequence[Job]) -> None:
        (self.out / "scores").mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.at_once) as workers:
            list(workers.map(self._job, some))

    def _job(self, job: Job) -> None:
        began, taken = time.monotonic(), self.taken.setdefault(job.run.config().train.steps, [])
        # What would be stopped halfway is not started; those with as many steps tell roughly how long it takes.
        if taken and began + 0.8 * statistics.median(taken) > self.until:
            return
        line: dict[str, Any] = {"system": job.run.name, "rows": job.rows, "recipe": job.run.recipe, "set": [*job.run.sets]}
        try:
            commands = [(words, str(output(job, self.out, name))) for name, words in job.commands(self.out)]
            file = self.out / "scores" / f"{job.run.name}.commands"
            file.write_text(json.dumps(commands), "utf-8")
            self.processes(job.run.name, ["--work", str(file)], module="comparisons")
            folder = self.out / job.run.name
            line |= {"parameters": open_run(folder).model.count_parameters(), "seconds": training_seconds(folder)}
            line["scores"] = score(job, self.out)
        except Stopped:
            return
        except (Failure, OSError, ValueError, KeyError) as error:
            line["error"] = str(error) or type(error).__name__
            log = self.out / "logs" / f"{job.run.name}.log"
            line["log"] = reason(log)[-2000:] if log.exists() else ""
        taken.append(time.monotonic() - began)
        line |= {"command": round(taken[-1], 1), "about": about()}
        with self.lock, self.results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
        done = line.get("error") or " · ".join(
            f"{test}: {next(iter(each.values())):.2f}" for test, each in line["scores"].items()
        )
        print(f"[{time.monotonic() - BEGAN:5.0f} s] {job.run.name}: {taken[-1]:.0f} s · {done}\n", end="", flush=True)


def work(file: Path) -> None:
    """Runs the commands of a file one after the other, each with its standard output in a file of its own."""
    for words, place in json.loads(file.read_text("utf-8")):
        with open(place, "w", encoding="utf-8") as written, redirect_stdout(written):
            status = run_command(words)
        if status:
            sys.exit(status)


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """The last line of each system; one with scores wins over a failure."""
    found: dict[str, dict[str, Any]] = {}
    for text in file.read_text("utf-8").splitlines() if file.exists() else ():
        line = json.loads(text)
        if "scores" in line or line["system"] not in found:
            found[line["system"]] = line
    return found


def table(results: Mapping[str, dict[str, Any]]) -> str:
    """A table for each group, with the figures of all seeds, and what failed."""
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in results.values():
        for row in line["rows"] if "scores" in line else ():
            group, _, name = row.partition("/")
            rows.setdefault(group, {}).setdefault(name, []).append(line)
    tables = [f"{group}\n\n{group_table(group, names)}" for group, names in rows.items()]
    failed = [f"{name}: {line['error']}\n{line['log']}\n" for name, line in results.items() if "scores" not in line]
    return "\n".join([*tables, *failed])


def group_table(group: str, names: Mapping[str, list[dict[str, Any]]]) -> str:
    """A row for each name: titles, parameters, and every score of interest, seed by seed."""
    systems, columns = (
        GROUPS.get(group, {}),
        dict.fromkeys(
            (test, metric) for lines in names.values() for line in lines for test, metric in interesting(line["scores"])
        ),
    )
    rows = []
    for name in (*(name for name in systems if name in names), *(name for name in names if name not in systems)):
        lines, system = sorted(names[name], key=lambda line: str(line["system"]).rpartition("@")[2]), systems.get(name)
        own = {test: f"{test} {name}" for test in TESTS if f"{test} {name}" in lines[0]["scores"]}
        cells = [
            ", ".join(f"{line['scores'][own.get(test, test)][metric]:.2f}" for line in lines if test in line["scores"])
            for test, metric in columns
        ]
        about_it = [f"`{name}`", system.title if system else "", f"{lines[0]['parameters'] / 1e6:.1f}M"]
        rows.append([*about_it, *cells, (system.published if system else "") or "–"])
    return markdown(["system", "", "parameters", *(f"{test} {metric}" for test, metric in columns), "published"], rows)


def interesting(scores: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """The scores that a table shows: BLEU and chrF2 of texts, the first figure of other tests, and all groups of pairs."""
    for test, metrics in scores.items():
        if "BLEU" in metrics and test in TESTS:
            yield from ((test, "BLEU"), (test, "chrF2"))
        elif "BLEU" in metrics and " " not in test:
            yield test, "accuracy"
        elif "BLEU" not in metrics:
            yield from ((test, metric) for metric in (metrics if "accuracy" in metrics else [*metrics][:2]))


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, nargs="?", help="folder of Multi30k")
    result.add_argument("--out", type=Path, default=Path("runs/comparisons"), help="folder for runs and scores")
    result.add_argument("--results", type=Path, help="JSON lines to continue (default: OUT/results.jsonl)")
    result.add_argument("--groups", default=",".join((*GROUPS, *OTHERS)), help="groups, separated by commas")
    result.add_argument("--first", default="", help="patterns of GROUP/NAME@SEED, separated by commas, that come first")
    result.add_argument("--at-once", type=int, default=10, help="trainings side by side")
    result.add_argument("--seconds", type=float, default=float("inf"), help="time limit; the same command continues later")
    result.add_argument("--seeds", type=int, default=2, help="trainings of each system")
    result.add_argument("--steps-scale", type=float, default=1.0, help="factor for all step counts, to try the script")
    result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of weft train, for all")
    result.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return result


def main() -> None:
    options = parser().parse_args()
    if options.work:
        return work(options.work)
    options.results = options.results or options.out / "results.jsonl"
    if options.folder:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        options.out.mkdir(parents=True, exist_ok=True)
        known = read_results(options.results)
        left = [job for job in jobs(options) if "scores" not in known.get(job.run.name, {})]
        left.sort(key=lambda job: (job.run.name in known, place(job, options.first.split(","))))
        prepare_shared(left)
        print(f"[{time.monotonic() - BEGAN:5.0f} s] {len(left)} trainings left", flush=True)
        Pool(options)(left)
    print(table(read_results(options.results)))


def prepare_shared(some: Sequence[Job]) -> None:
    """Fills the shared cache once for each data, tokenizer and vocabulary."""
    kinds = {
        json.dumps(config.data.model_dump(mode="json"), sort_keys=True): config for config in (j.run.config() for j in some)
    }
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(prepare_data, kinds.values()))


if __name__ == "__main__":
    main()
