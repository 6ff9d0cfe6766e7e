"""What is measured of a trained run: test scores, speed of training and decoding, growth with length, what it looks at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from weft.compare.growth import measure_growth
from weft.compare.probe import probe
from weft.config import Config
from weft.data.formats import open_pairs
from weft.evaluation.metrics import score
from weft.explain.picture import View, views
from weft.models.base import Network, Sizes
from weft.tasks.base import Task
from weft.training.distributed import choose_device
from weft.translator import Trained, open_run

MOMENT = 1.5
"""Seconds of training for a speed that nothing beside it disturbs."""

WARM = 8
"""Sentences decoded before the clock starts."""

LOOKED_AT, WORDS, MOST_TOKENS = 500, 10, 160
"""The sentence that is drawn has about so many words, is among so many first ones, and has no more tokens than that."""


@dataclass(frozen=True)
class Wanted:
    """What to measure. test: data to score · sentences: how many to decode for the speed, where there is no test · lengths: to
    measure growth at · alone: train once more for a moment, for the speed · look: show what is looked at in one sentence.
    """

    test: tuple[str, ...] = ()
    sentences: int = 0
    lengths: tuple[int, ...] = ()
    alone: bool = False
    look: bool = False


@dataclass(frozen=True)
class Opened:
    """A trained run with its data."""

    folder: Path
    config: Config
    task: Task
    sizes: Sizes
    model: Network

    @property
    def autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.config.train.precision == "bf16")


def measure(folder: Path, wanted: Wanted) -> dict[str, Any]:
    """Everything that is wanted, as plain data; what does not exist for a task is None or empty."""
    run = _open(folder)
    found: dict[str, Any] = {
        "parameters": run.model.count_parameters(),
        "counts": run.task.counts,
        "headline": asdict(run.task.headline),
        "steps_a_second": probe(run.config, MOMENT).steps_a_second if wanted.alone else None,
    }
    found |= _at_work(run, wanted)
    if wanted.lengths:
        found["growth"] = measure_growth(run.model, run.task, run.sizes, wanted.lengths, run.autocast).document()
    return found


def _open(folder: Path) -> Opened:
    task, config, model = open_run(folder)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    return Opened(folder, config, task, task.reopen(), model.to(choose_device(config.train.device)))


def _at_work(run: Opened, wanted: Wanted) -> dict[str, Any]:
    """Test scores, decoding speed and pictures if the task scores predictions line by line; otherwise test scores only."""
    metrics = run.task.metrics()
    if not metrics:
        return {"test": _validated(run, wanted.test) if wanted.test else {}, "decoding": None, "views": []}
    translator = Trained(run.model, run.task, run.config)
    test = _pairs(wanted.test)
    valid = _pairs(run.config.data.valid, max(wanted.sentences, LOOKED_AT))
    pairs = test or valid[: wanted.sentences]
    texts, seconds = _decode(translator, [source for source, _ in pairs])
    scores = score(texts, [target for _, target in test], metrics) if test else {}
    drawn = _look(translator, [source for source, _ in valid or test]) if wanted.look else []
    return {
        "test": {each.key: each.value for each in scores.values()},
        "decoding": {"sentences": len(texts), "seconds": seconds, "per_second": len(texts) / seconds} if texts else None,
        "views": [_plain(view) for view in drawn],
    }


def _pairs(data: Sequence[str], most: int | None = None) -> list[tuple[str, str]]:
    return list(islice((pair for spec in data for pair in open_pairs(spec)), most))


def _decode(translator: Trained, sources: list[str]) -> tuple[list[str], float]:
    """Texts and the seconds they took, with the run's own settings of decoding."""
    list(translator.stream(sources[:WARM]))
    began = time.perf_counter()
    texts = [found.text for found in translator.stream(sources)]
    return texts, time.perf_counter() - began


def _look(translator: Trained, sources: Sequence[str]) -> list[View]:
    """Of one sentence, the same for all who read the same data."""
    written = [source for source in sources[:LOOKED_AT] if source.strip()]
    if not written:
        return []
    sentence = min(written, key=lambda source: abs(len(source.split()) - WORDS))
    found = views(next(translator.stream([sentence], attention=True)))
    return [view for view in found if max(view.weights.shape) <= MOST_TOKENS]


def _plain(view: View) -> dict[str, Any]:
    """Rounded: a picture shows no more."""
    return {**asdict(view), "weights": view.weights.astype(float).round(3).tolist()}


def _validated(run: Opened, test: Sequence[str]) -> dict[str, float]:
    """The scores that the task declares, on other data than its own."""
    with torch.no_grad(), run.autocast:
        return {name: float(value) for name, value in run.task.score(run.model.eval(), test).items()}
