"""Predictions for a whole corpus, shard by shard: by one process, by several of them, or by the actors of an engine.

A shard is some thousands of inputs in a row. Its predictions are a file in OUT.shards, written aside under a lock and
renamed when it is complete. So finished shards are never computed again, no two processes work on the same one, and a
process that is killed loses one shard at most. Whoever finishes the last shard joins them into OUT.

OUT has the same bytes however the work was divided, and those of `weft predict`. Sums are rounded as the size of a batch has
it, which may decide between two beams with equal scores; so the windows of lines that are sorted into batches begin where
shards do, and batches are cut as for the workers of the process that planned the work, whoever computes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from weft.data.json_text import read_json
from weft.decoding.predictor import Prediction, Predictor
from weft.errors import ConfigError, DataError
from weft.file_access import claim, made_by_others, naming, replace_file, replacing_file
from weft.runs.open_run import Report, silent
from weft.runs.prediction_work import PredictionWork
from weft.runs.trained_model import make_inputs
from weft.runs.translator import load_trained
from weft.tasks.translation.glossary import read_glossary
from weft.tasks.translation.predictor import TranslationPredictor
from weft.worker_processes import cores

SHARD = 4096
"""Inputs of a shard, a multiple of the windows in which inputs are read (see `weft.decoding.predictor`)."""


class ShardFolder:
    """The shards of some work on disk: `plan.json`, a file for each finished shard, and `N.part` for those in work.

    count, size: the number of inputs, and of those of a shard · workers: for so many, batches are cut
    """

    def __init__(self, work: PredictionWork) -> None:
        self.work = work
        self.path = work.out.with_name(f"{work.out.name}.shards")
        self.plan = self.path / "plan.json"
        self.count = self.size = self.workers = 0

    def open(self, shared: bool, report: Report) -> None:
        """Continues the work that the folder holds, or plans it anew if it holds other work.

        shared: other processes may be at the same work, so other work is an error instead.
        """
        identity = self.work.identity()
        with self._locked():
            plan = read_json(self.plan, f"remove {self.path} to begin again") if self.plan.exists() else {}
            if plan and plan.get("identity") != identity:
                self._clear(shared)
                plan = {}
            if not plan:
                plan = {"identity": identity, "inputs": sum(1 for _ in self.work.inputs.lines()), "shard": SHARD}
                plan |= {"workers": cores()}
                replace_file(self.plan, json.dumps(plan))
        self.count, self.size, self.workers = plan["inputs"], plan["shard"], plan.get("workers", 1)
        if done := self.count - sum(map(self.lines_of, self.missing())):
            report(f"{self.work.out}: continuing after {done:,} of {self.count:,} lines")

    def _locked(self) -> IO[bytes]:
        """The locked file of the folder, which is made again if another process has just joined the shards and removed it."""
        file = self.path / "lock"
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            if made_by_others(self.path):
                raise DataError(f"{self.path}: somebody else has created this folder; choose another name for the output")
            with suppress(FileNotFoundError):
                lock = open(file, "a+b")  # noqa: SIM115
                fcntl.flock(lock, fcntl.LOCK_EX)
                if file.exists() and os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    return lock
                lock.close()

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def lines_of(self, shard: int) -> int:
        """The number of inputs in a shard."""
        return min(self.size, self.count - shard * self.size)

    def file(self, shard: int) -> Path:
        return self.path / f"{shard:06d}"

    def missing(self) -> list[int]:
        """The shards that are not finished."""
        return [shard for shard in range(len(self)) if not self.file(shard).exists()]

    @contextmanager
    def writing(self, shard: int, wait: bool) -> Iterator[IO[bytes] | None]:
        """A file for the predictions of a shard, which is the shard once the block ends.

        None if there is nothing to do: another process has finished it, or is at it and `wait` is false.
        """
        part = self.path / f"{shard}.part"
        try:
            file = open(claim(part), "a+b")  # noqa: SIM115
        except FileNotFoundError:  # all shards have been joined
            yield None
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            if self.file(shard).exists() or not self.plan.exists():
                part.unlink(missing_ok=True)
                yield None
                return
            with naming(self.work.out):
                file.truncate(0)
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(part, self.file(shard))

    def join(self) -> None:
        """Writes the output from all shards, in order, and removes them."""
        with self._locked():
            if not self.plan.exists():  # another process has joined them
                shutil.rmtree(self.path)
                return
            with replacing_file(self.work.out) as out:
                for shard in range(len(self)):
                    with open(self.file(shard), "rb") as file:
                        shutil.copyfileobj(file, out)
            self.plan.unlink()
            shutil.rmtree(self.path)

    def _clear(self, shared: bool) -> None:
        out, files = self.work.out, [file for file in self.path.iterdir() if file.name != "lock"]
        for part in (file for file in files if file.suffix == ".part"):
            with open(part, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DataError(
                        f"{out}: another process is writing other translations into it; choose another name"
                    ) from None
        if shared and len(files) > 1:
            raise DataError(
                f"{self.path} has shards of other work (other data, weights or options); remove it, or choose another name"
            )
        self.plan.unlink()
        for old in files:
            old.unlink(missing_ok=True)


class ShardPredictor:
    """Predicts one shard after the other by a model that is loaded for the first.

    processes: the most that compute batches at once, on a CPU
    """

    def __init__(self, folder: ShardFolder, report: Report = silent, processes: int = 1) -> None:
        self.folder, self.work, self.report, self.processes = folder, folder.work, report, processes
        self._lines: Iterator[str] = iter(())
        self._next = -1
        self._before = deque[str]()

    def predict(self, shard: int, *, wait: bool = True, advance: Callable[[], None] = lambda: None) -> None:
        """Writes the predictions of a shard, unless it is finished or, without `wait`, another process is at it."""
        with self.folder.writing(shard, wait) as file:
            if file is None:
                return
            for line, prediction in self._predictions(self._read(shard), shard * self.folder.size + 1):
                file.write(self.work.inputs.written(line, prediction).encode() + b"\n")
                advance()

    def _read(self, shard: int) -> list[str]:
        if shard < self._next or self._next < 0:
            self._lines, self._next = self.work.inputs.lines(), 0
            self._before = deque(maxlen=self._predictor.context_lines)
        self._before.extend(islice(self._lines, (shard - self._next) * self.folder.size))
        self._next = shard + 1
        return list(islice(self._lines, self.folder.size))

    def _predictions(self, lines: list[str], first: int) -> Iterator[tuple[str, Prediction]]:
        terms = None if self._terms_of is None else map(self._terms_of, lines)
        inputs = make_inputs(self._predictor, lines, False, None, terms, first_line=first, before=[*self._before])
        self._before.extend(lines)
        how: dict[str, Any] = {"together": self.work.inputs.together, "processes": self.processes}
        return zip(lines, self._predictor.predict(inputs, first_line=first, **how), strict=True)

    @cached_property
    def _terms_of(self) -> Callable[[str], Any] | None:
        return None if self.work.glossary is None else read_glossary(self.work.glossary).terms

    @cached_property
    def _predictor(self) -> Predictor[Any, Any]:
        trained = load_trained(self.work.runs, device=self.work.device, warn=self.report)
        predictor = trained.predictor(auto_workers=self.folder.workers, **self.work.options)
        if self.work.translates and not isinstance(predictor, TranslationPredictor):
            kind = trained.config.task["kind"]
            raise ConfigError(f"translating a corpus needs a run that translates; the task of this one is {kind}")
        return predictor


def predict_corpus(
    work: PredictionWork,
    *,
    share: tuple[int, int] | None = None,
    advance: Callable[[], None] = lambda: None,
    expect: Callable[[int], None] = lambda lines: None,
    report: Report = silent,
) -> bool:
    """Predicts all shards, or a share of them: (k, n) takes the shards k, k + n, k + 2n, …, counted from 1.

    advance: called after each line · expect: called with the number of lines that are to be done, at most

    Returns whether the output is complete: the process that finishes the last shard writes it.
    """
    folder = ShardFolder(work)
    folder.open(share is not None, report)
    first, step = share or (1, 1)
    mine = [shard for shard in folder.missing() if shard % step == first - 1]
    expect(sum(map(folder.lines_of, mine)))
    predictor = ShardPredictor(folder, report, cores())
    for wait in (False, True):  # first what nobody else is at
        for shard in mine:
            if not folder.file(shard).exists():
                predictor.predict(shard, wait=wait, advance=advance)
    if not folder.missing():
        folder.join()
    return work.out.exists() and not folder.path.exists()
