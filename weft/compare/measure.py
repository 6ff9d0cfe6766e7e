"""Measures a trained run: test scores, training and decoding speed, growth with length, attention maps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from weft.compare.growth import measure_growth
from weft.config.corpora import names
from weft.evaluation.metrics import score
from weft.evaluation.tokenization import choose_tokenization
from weft.explain.picture import View, views
from weft.fitting.speed import probe
from weft.runs.device import autocast
from weft.runs.opening import TrainedRun, open_run, run_config
from weft.translator import Trained

MOMENT = 1.5
"""Seconds of training to measure an undisturbed speed."""

WARM = 8
"""Sentences decoded before timing starts."""

CANDIDATES, WORDS, MOST_TOKENS = 500, 10, 160
"""The attention map shows a sentence among the first CANDIDATES with about WORDS words and at most MOST_TOKENS tokens."""


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    test       data to score
    sentences  number of validation sentences to decode for the speed, if there is no test data
    lengths    sequence lengths at which to measure growth
    alone      train again for a moment, to measure the speed
    look       compute the attention maps of one sentence
    """

    test: tuple[str, ...] = ()
    sentences: int = 0
    lengths: tuple[int, ...] = ()
    alone: bool = False
    look: bool = False


def measure(folder: Path, wanted: Wanted) -> dict[str, Any]:
    """All measurements as plain data. Measurements that a task does not support are None or empty."""
    config = run_config(folder)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    run = open_run(folder, device=config.train.device)
    measured: dict[str, Any] = {
        "parameters": run.model.count_parameters(),
        "counts": run.task.counts,
        "headline": asdict(run.task.headline),
        "steps_a_second": probe(run.config.replaced({"data.valid": []}), MOMENT).steps_a_second if wanted.alone else None,
    }
    measured |= _predictions(run, wanted)
    if wanted.lengths:
        precision = autocast(run.model.device, run.config.train.precision)
        measured["growth"] = asdict(measure_growth(run.model, run.task, run.sizes, wanted.lengths, precision))
    return measured


def _predictions(run: TrainedRun, wanted: Wanted) -> dict[str, Any]:
    """Test scores, decoding speed and attention maps if the task scores predictions line by line; otherwise test scores."""
    if not run.task.metrics():
        return {"test": _validated(run, wanted.test) if wanted.test else {}, "decoding": None, "views": []}
    translator = Trained(run.model, run.task, run.config)
    test = run.task.examples(wanted.test)
    valid = run.task.examples(names(run.config.data.valid))[: max(wanted.sentences, CANDIDATES)]
    pairs = test or valid[: wanted.sentences]
    chosen = choose_tokenization(
        run.config.train.tokenize, run.config.data.target_language, [target for _, target in test or valid]
    )
    metrics = run.task.metrics(tokenize=chosen.name)
    texts, seconds = _decode(translator, [source for source, _ in pairs])
    scores = score(texts, [target for _, target in test], metrics) if test else {}
    maps = _attention(translator, [source for source, _ in valid or test]) if wanted.look else []
    return {
        "test": {each.key: each.value for each in scores.values()},
        "signatures": {metric.key(): metric.signature for metric in metrics},
        "decoding": {"sentences": len(texts), "seconds": seconds, "per_second": len(texts) / seconds} if texts else None,
        # Weights are rounded to what a picture can show.
        "views": [{**asdict(view), "weights": view.weights.astype(float).round(3).tolist()} for view in maps],
    }


def _decode(translator: Trained, sources: list[str]) -> tuple[list[str], float]:
    """The texts and the seconds they took, with the run's own decoding options."""
    list(translator.stream(sources[:WARM]))
    start = time.perf_counter()
    texts = [translation.text for translation in translator.stream(sources)]
    return texts, time.perf_counter() - start


def _attention(translator: Trained, sources: Sequence[str]) -> list[View]:
    """Attention maps of one sentence, the same for all entries with the same data."""
    candidates = [source for source in sources[:CANDIDATES] if source.strip()]
    if not candidates:
        return []
    sentence = min(candidates, key=lambda source: abs(len(source.split()) - WORDS))
    maps = views(next(translator.stream([sentence], attention=True)))
    return [view for view in maps if max(view.weights.shape) <= MOST_TOKENS]


def _validated(run: TrainedRun, test: Sequence[str]) -> dict[str, float]:
    """The scores that the task declares, on the test data."""
    with torch.no_grad(), autocast(run.model.device, run.config.train.precision):
        return {name: float(value) for name, value in run.task.score(run.model.eval(), test).items()}
