"""One-pass and few-pass translation on Multi30k en-de, beside its autoregressive teacher: BLEU, errors and latency.

    python benchmarks/nat.py DIR --out FOLDER [--seeds 1,2] [--minutes 9.5]
    python benchmarks/nat.py DIR --out FOLDER --latency nat-ctc-distilled-1 [--device cpu]

DIR holds train, val and test_2016_flickr, each as .en and .de. The teacher is transformer-small. Each recipe is trained on its
translations and on the real text. Completed runs in FOLDER are not repeated, so repeat the command until everything is done.
The table also has lengths of texts, repeated words and BLEU by length. --latency compares runs with the teacher's greedy
decoding; nothing else should run at that time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from floors import copied
from nat_scores import LINES, PLAIN, TEST, latencies, measure, table
from trainings import about, deadline

from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training, train
from weft.config.registry import build
from weft.errors import WeftError
from weft.runs.distillation_and_backtranslation import OpenTeacher
from weft.runs.run_folder import complete
from weft.tasks.base import TaskContext

RECIPES = ("nat-ctc", "nat-mask-predict", "nat-length", "nat-fertility", "nat-blanks")
START = 25
"""Seconds to start and end a run."""


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


def students(options: argparse.Namespace) -> Iterator[Student]:
    """The slowest systems first."""
    for seed in options.seeds:
        for kind in options.kinds:
            for system in (PLAIN, *RECIPES):
                student = Student(system, kind == "distilled", seed)
                if not options.only or {system, student.name} & set(options.only):
                    yield student


def data(folder: Path) -> tuple[tuple[str], tuple[str]]:
    train, valid = ((f"{folder / part}.en,{folder / part}.de",) for part in ("train", "val"))
    return train, valid


def settings(options: argparse.Namespace) -> list[str]:
    """Settings of all runs: one cache, one checkpoint, one validation at the end."""
    quick = ("train.keep_last=1", "train.tensorboard=false", "train.validate_every=0", "train.validate_sentences=100")
    return [f"data.cache={options.out.absolute() / 'cache'}", f"train.device={options.device}", *quick]


class Benchmark:
    """Trains and scores, as many at once as allowed, until the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        end, self.taught = deadline(options.minutes), Event()
        self.training = Processes(self.out / "logs", at_once=options.at_once, until=end - options.scoring)
        self.scoring = Processes(self.out / "logs", at_once=options.at_once, until=end)

    def __call__(self) -> None:
        for folder in ("scores", "texts", "cache"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        plans = list(students(self.options))
        # The teacher alone does not fill a GPU.
        beside = [each for each in plans if not each.distilled][: self.options.at_once - 1]
        with ThreadPoolExecutor(self.options.at_once) as workers:
            begun = [workers.submit(self._student, each) for each in beside]
            self._report("teacher", self._teacher)
            self.taught.set()
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
            build("weft.tasks:TASKS", config.task, TaskContext(config, folder, teacher=OpenTeacher()), where="task").prepare()

    def _student(self, student: Student) -> None:
        def work() -> None:
            left = self.training.until - time.monotonic() - START
            self._train(student.training(self.options, max(1.0, left) if self.options.minutes else 0.0), student.name)
            self.taught.wait()  # it scores candidates
            self._score(student.name)

        self._report(student.name, work)

    def _train(self, training: Training, name: str) -> None:
        if not complete(self.out / name):
            train(training, self.out / name, self.training, name)

    def _score(self, name: str) -> None:
        if not (self.out / "scores" / f"{name}.json").exists():
            words = [str(self.options.folder), "--out", str(self.out), "--device", self.options.device]
            words += ["--score", name, *(["--lines", str(self.options.lines)] if self.options.lines else [])]
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
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="systems or runs, such as nat-ctc-real-1")
    parser.add_argument("--steps", type=int, default=0, help="of each student; 0: as the recipe says")
    parser.add_argument("--at-once", type=int, default=12, help="trainings at the same time")
    parser.add_argument("--minutes", type=float, default=0, help="time limit; the same command continues later")
    parser.add_argument("--scoring", type=float, default=110, help="seconds at the end in which nothing is trained")
    parser.add_argument("--lines", type=int, help="test lines that are scored (default all), or measured one by one (40)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="settings of all students")
    parser.add_argument("--teacher-set", action="append", default=[], help="settings of the teacher")
    parser.add_argument("--score", help="only decode with this run, and write its scores")
    parser.add_argument("--latency", type=lambda text: text.split(","), help="only measure the speed of these runs")
    options = parser.parse_args()
    if options.score:
        return measure(options.folder, options.out, options.score, options.device, options.lines)
    if options.latency:
        return _show(
            options.out / f"latency-{options.device}.md",
            latencies(options.folder, options.out, options.latency, options.device, options.lines or LINES),
        )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    Benchmark(options)()
    floor = copied("", f"{options.folder / TEST}.en,{options.folder / TEST}.de")["source copied"]
    _show(options.out / "nat.md", table(options.out, floor))


def _show(file: Path, text: str) -> None:
    file.write_text(f"{about()}\n\n{text}", "utf-8")
    print(file.read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
