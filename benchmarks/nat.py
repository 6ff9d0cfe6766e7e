"""One-pass and few-pass translation on Multi30k en-de, beside its autoregressive teacher: BLEU, errors and latency.

    python benchmarks/nat.py DIR --out FOLDER [--seeds 1,2] [--minutes 9.5]

DIR holds train, val and test_2016_flickr, each as .en and .de. The teacher is transformer-small. Each recipe is trained on its
translations and on the real text. Completed runs in FOLDER are not repeated, and interrupted ones are resumed, so
repeat the command until everything is done. The table also has lengths of texts, repeated words and BLEU by length.
At the end, when nothing else runs, the latency of one pass is compared with that of the teacher's greedy decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from floors import copied
from gpu_multi30k import lines_of
from trainings import about, deadline, markdown

import weft
from weft.compare.processes import Failure, Processes, Stopped
from weft.compare.trainings import Training, complete, records, train
from weft.config.registry import build
from weft.distillation import OpenedTeacher
from weft.errors import WeftError
from weft.evaluation.metrics import make_metrics, score
from weft.tasks.base import Setting
from weft.translator import Translator

TEST = "test_2016_flickr"
RECIPES = ("nat-ctc", "nat-mask-predict", "nat-length", "nat-fertility", "nat-blanks")
PLAIN = "nat-ctc-plain"
"""nat-ctc without glancing."""
BESIDE = 2
"""Students that train on real text beside the teacher, which alone does not fill a GPU."""
SCORING, LATENCY, START = 110, 45, 25
"""Seconds at the end of a call in which nothing is trained; of them, in which latency is measured; to start and end a run."""

GOALS = {
    ("nat-blanks", "one"): 28,
    ("nat-length", "one"): 31,
    ("nat-length", "5 candidates, teacher"): 35,
    ("nat-fertility", "one"): 32,
    ("nat-fertility", "10 candidates, teacher"): 36,
    ("nat-fertility", "100 candidates, teacher"): 37,
    ("nat-mask-predict", "1 iterations, 5 lengths"): 22,
    ("nat-mask-predict", "4 iterations, 5 lengths"): 35,
    ("nat-mask-predict", "10 iterations, 5 lengths"): 38,
    (PLAIN, "greedy"): 37,
    ("nat-ctc", "greedy"): 38,
    ("nat-ctc", "beam 10, teacher"): 38.5,
}
"""BLEU to be reached on distilled text, by system and decoding."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Student:
    """A training: a system on the translations of the teacher, or on the real text."""

    system: str
    distilled: bool
    seed: int

    @property
    def name(self) -> str:
        return f"{self.system}-{'distilled' if self.distilled else 'real'}-{self.seed}"

    def training(self, options: argparse.Namespace, seconds: float = 0.0) -> Training:
        """seconds: after which it ends, however many steps are done; 0: no limit."""
        sets = [f"train.seed={self.seed}", f"train.seconds={seconds:.0f}", *settings(options)]
        if options.steps:
            sets.append(f"train.steps={options.steps}")
        if self.system == PLAIN:
            sets += ["task.glancing=0", "task.glancing_end=0"]
        if self.distilled:
            sets.append(f"data.teacher={options.out.absolute() / 'teacher'}")
        return Training(self.system.removesuffix("-plain"), *data(options.folder), (*sets, *options.set))


def students(seeds: Sequence[int], kinds: Sequence[str], only: Sequence[str]) -> Iterator[Student]:
    """The slowest systems first."""
    for seed in seeds:
        for kind in kinds:
            for system in (PLAIN, *RECIPES):
                if not only or system in only:
                    yield Student(system, kind == "distilled", seed)


def parts(name: str) -> tuple[str, str, str]:
    """System, kind of text and seed of a run."""
    system, kind, seed = name.rsplit("-", 2) if "-" in name else (name, "distilled", "1")
    return system, kind, seed


def data(folder: Path) -> tuple[tuple[str], tuple[str]]:
    train, valid = ((f"{folder / part}.en,{folder / part}.de",) for part in ("train", "val"))
    return train, valid


def settings(options: argparse.Namespace) -> list[str]:
    """Settings of all runs: one cache, one checkpoint, one validation at the end."""
    quick = ("train.keep_last=1", "train.tensorboard=false", "train.validate_every=0", "train.validate_sentences=100")
    return [f"data.cache={options.out.absolute() / 'cache'}", f"train.device={options.device}", *quick]


def systems(system: str, teacher: str) -> dict[str, dict[str, Any]]:
    """Title → options of decoding."""

    def by_teacher(count: int) -> dict[str, Any]:
        return {"kind": "model", "run": teacher, "weight": 1.0, "candidates": count}

    if system == "teacher":
        return {"greedy": {"search": "greedy"}, "beam 5": {"search": {"kind": "beam", "width": 5}}}
    if system.startswith("nat-ctc"):
        beam = {"kind": "ctc_beam", "width": 10}
        rescored = {"beam 10, teacher": {"search": beam, "rerank": by_teacher(10)}}
        return {"greedy": {"search": "ctc"}, "beam 10": {"search": beam}, **rescored}
    if system == "nat-mask-predict":
        every = {f"{n} iterations, 5 lengths": {"kind": "refine", "iterations": n, "lengths": 5} for n in (1, 4, 10)}
        return {title: {"search": search} for title, search in every.items()}
    found: dict[str, dict[str, Any]] = {"one": {"search": {"kind": "one_pass", "lengths": 1}}}
    for count in {"nat-length": (5,), "nat-fertility": (10, 100)}.get(system, ()):
        search = {"kind": "one_pass", "lengths": count}
        found[f"{count} candidates, teacher"] = {"search": search, "rerank": by_teacher(count)}
    return found


def errors(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Words that repeat the one before, in %; difference of lengths in words; BLEU of short and long references."""
    words, wanted = [text.split() for text in texts], [text.split() for text in references]
    repeats = sum(one == other for each in words for one, other in pairwise(each))
    pairs = list(zip(texts, references, strict=True))
    short = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) <= 10]
    long = [pair for pair, each in zip(pairs, wanted, strict=True) if len(each) > 10]
    return {
        "repeated %": 100 * repeats / max(1, sum(map(len, words))),
        "length error": sum(abs(len(a) - len(b)) for a, b in zip(words, wanted, strict=True)) / len(words),
        "≤ 10 words": bleu(*zip(*short, strict=True)) if short else 0.0,
        "> 10 words": bleu(*zip(*long, strict=True)) if long else 0.0,
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return score(list(texts), list(references), make_metrics(["bleu"]))["BLEU"].value


def measure(options: argparse.Namespace, name: str) -> None:
    """Decodes the test set with a run in every way, and writes the scores."""
    sources, references = (lines_of(options.folder / f"{TEST}.{side}") for side in ("en", "de"))
    system, _, _ = parts(name)
    steps = max(record.get("step", 0) for record in records(options.out / name))
    translator, rows = weft.load(options.out / name, device=options.device), []
    for title, decoding in systems(system, str(options.out.absolute() / "teacher")).items():
        began = time.perf_counter()
        texts = [each.text for each in translator.translate(sources, **decoding)]
        row = {"decoding": title, "BLEU": bleu(texts, references), **errors(texts, references)}
        rows.append({**row, "seconds": time.perf_counter() - began, "steps": steps})
        (options.out / "texts" / f"{name}.{title}.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    (options.out / "scores" / f"{name}.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")


def latency(translator: Translator, lines: Sequence[str], count: int, **decoding: Any) -> tuple[float, float]:
    """Milliseconds per sentence one by one, the median of `count`, and sentences per second of all at once, after a warm-up."""
    predictor = translator.translation_predictor("a benchmark", **decoding)

    def seconds(texts: Sequence[str]) -> float:
        began = time.perf_counter()
        for _ in predictor.predict(map(predictor.parse, texts), together=True):
            pass
        return time.perf_counter() - began

    # Work is recorded when a size comes for the second time.
    alone = [seconds([line]) for line in [*lines[:count], *lines[:count], *lines[:count]]]
    together = [seconds(lines) for _ in range(4)]
    return 1000 * statistics.median(alone[-count:]), len(lines) / min(together)


def latencies(options: argparse.Namespace) -> list[Row]:
    """The speed of the teacher's greedy decoding and of students: on two cores of the CPU in int8, and on the device."""
    lines, rows = lines_of(options.folder / f"{TEST}.en"), []
    torch.set_num_threads(2)
    wanted = [("teacher", "greedy"), ("nat-ctc", "greedy"), ("nat-ctc", "beam 10"), ("nat-length", "one")]
    for system, title in [*wanted, ("nat-mask-predict", "4 iterations, 5 lengths")]:
        name = next(
            (each.stem for each in sorted((options.out / "scores").glob(f"{system}*.json")) if "plain" not in each.stem), ""
        )
        if not name:
            continue
        decoding = systems(system, "")[title]
        row: Row = {"system": f"{system}, {title}"}
        cpu = weft.load(options.out / name, device="cpu")
        row["CPU, int8: ms"], row["CPU, int8: sentences/s"] = latency(
            cpu, lines[:100], 20, **decoding, precision="int8", workers=1
        )
        if options.device != "cpu":
            device = weft.load(options.out / name, device=options.device)
            row["GPU: ms"], row["GPU: sentences/s"] = latency(device, lines, 100, **decoding)
        rows.append(row)
    return rows


def speed_table(rows: Sequence[Row]) -> str:
    """Latencies beside those of the teacher, in the first row."""
    headings = [key for key in rows[0] if key != "system"]
    cells = []
    for row in rows:
        ratios = (rows[0][key] / row[key] if key.endswith("ms") else row[key] / rows[0][key] for key in headings)
        cells.append([row["system"], *(f"{row[key]:.2f} ({ratio:.1f} ×)" for key, ratio in zip(headings, ratios, strict=True))])
    return markdown(["system", *headings], cells)


def table(out: Path, floor: float) -> str:
    """A line for each system and decoding: the mean over seeds on distilled text, and what real text costs."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted((out / "scores").glob("*.json")):
        system, kind, _ = parts(file.stem)
        for row in json.loads(file.read_text("utf-8")):
            found[system, row["decoding"]][kind].append(row)
    figures = ["repeated %", "length error", "≤ 10 words", "> 10 words", "seconds", "steps"]
    cells = [["source copied (floor)", "", f"{floor:.2f}", *[""] * 9]]
    for (system, decoding), kinds in sorted(found.items(), key=lambda item: (item[0][0] != "teacher", item[0])):
        mean = {
            kind: {key: statistics.mean(row[key] for row in rows) for key in ("BLEU", *figures)} for kind, rows in kinds.items()
        }
        own, real = mean.get("distilled"), mean.get("real")
        seeds = "/".join(f"{row['BLEU']:.2f}" for row in kinds.get("distilled", []))
        goal = GOALS.get((system, decoding))
        shown = own or real or {}
        cells.append(
            [system, decoding, seeds or "–", "" if goal is None else f"{goal}", f"{real['BLEU']:.2f}" if real else "–"]
            + [f"{own['BLEU'] - real['BLEU']:+.2f}" if own and real else ""]
            + [f"{shown[key]:.2f}" for key in figures[:-1]]
            + [f"{shown['steps']:.0f}"]
        )
    headings = ["system", "decoding", "BLEU, distilled", "goal", "real", "gain", *figures]
    return markdown(headings, cells)


class Benchmark:
    """Trains and scores, as many at once as allowed, until the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        end = deadline(options.minutes)
        self.training = Processes(self.out / "logs", at_once=options.at_once, until=end - SCORING)
        self.scoring = Processes(self.out / "logs", at_once=options.at_once, until=end - LATENCY)

    def __call__(self) -> None:
        for folder in ("scores", "texts", "cache"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        plans = list(students(self.options.seeds, self.options.kinds, self.options.only))
        beside = [each for each in plans if not each.distilled][:BESIDE]
        with ThreadPoolExecutor(self.options.at_once) as workers:
            begun = [workers.submit(self._student, each) for each in beside]
            self._report("teacher", self._teacher)
            self._report("translations", self._translate)
            begun.append(workers.submit(self._report, "scores of the teacher", lambda: self._score("teacher")))
            begun += [workers.submit(self._student, each) for each in plans if each not in beside]
            for each in begun:
                each.result()

    def _teacher(self) -> None:
        sets = (*settings(self.options), *self.options.teacher_set)
        self._train(Training("transformer-small", *data(self.options.folder), sets), "teacher")

    def _translate(self) -> None:
        """Fills the cache with the teacher's translations and the tokens of all texts, for runs that start together."""
        for kind in self.options.kinds:
            config = Student("nat-ctc", kind == "distilled", 1).training(self.options).config()
            folder = self.out / "prepared" / kind
            folder.mkdir(parents=True, exist_ok=True)
            build("weft.tasks:TASKS", config.task, Setting(config, folder, teacher=OpenedTeacher()), where="task").prepare()

    def _student(self, student: Student) -> None:
        def work() -> None:
            left = self.training.until - time.monotonic() - START
            self._train(student.training(self.options, max(1.0, left) if self.options.minutes else 0.0), student.name)
            self._score(student.name)

        self._report(student.name, work)

    def _train(self, training: Training, name: str) -> None:
        if not complete(self.out / name):
            train(training, self.out / name, self.training, name)

    def _score(self, name: str) -> None:
        if not (self.out / "scores" / f"{name}.json").exists():
            words = [str(self.options.folder), "--out", str(self.out), "--device", self.options.device, "--score", name]
            self.scoring(f"{name}.score", words, "nat")

    def _report(self, name: str, work: Callable[[], None]) -> None:
        began, said = time.monotonic(), "done"
        try:
            work()
        except (Failure, Stopped, WeftError, OSError) as error:
            said = str(error)
        print(f"[{time.strftime('%H:%M:%S')}] {name}: {said}, {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["distilled", "real"])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help=f"systems: {PLAIN}, {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, default=0, help="of each student; 0: as the recipe says")
    parser.add_argument("--at-once", type=int, default=12, help="trainings at the same time")
    parser.add_argument("--minutes", type=float, default=0, help="time limit; the same command continues later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="settings of all students")
    parser.add_argument("--teacher-set", action="append", default=[], help="settings of the teacher")
    parser.add_argument("--score", help="only decode with this run, and write its scores")
    options = parser.parse_args()
    if options.score:
        return measure(options, options.score)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    Benchmark(options)()
    floor = copied("", f"{options.folder / TEST}.en,{options.folder / TEST}.de")["source copied"]
    text = f"{about()}\n\n{table(options.out, floor)}"
    print(text, flush=True)
    (options.out / "nat.md").write_text(text, "utf-8")
    text += "\n" + speed_table(latencies(options))
    (options.out / "nat.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
