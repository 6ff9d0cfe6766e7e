"""Measures a trained run: test scores, training and decoding speed, growth of time and memory with length, attention maps."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.bench.machine import timed
from weft.config.corpus_entries import names
from weft.evaluation.metrics import choose_tokenization, score
from weft.evaluation.trivial_baselines import trivial_scores
from weft.explain.attention_heatmap import View, views
from weft.models.base import Network, Sizes
from weft.runs.device_and_precision import autocast
from weft.runs.open_run import TrainedRun, open_run, run_config
from weft.runs.trained_model import Trained
from weft.tasks.base import Task, all_metrics
from weft.training.auto.speed_probe import probe
from weft.training.update_step import forward_backward

REPETITIONS, TIME_LIMIT = 5, 3.0
"""Number of timed steps, and the seconds they may take. The fastest counts, since disturbances only make steps slower."""

SLOW = 20.0
"""Seconds per step above which longer sequences are not measured: their steps would take minutes."""


@dataclass(frozen=True)
class Growth:
    """Seconds and bytes of a forward and backward pass over one text, at several lengths.

    time, memory: the exponents p of length^p, by least squares in log space; None with fewer than two lengths.
    """

    lengths: list[int]
    seconds: list[float]
    bytes: list[int]
    time: float | None
    memory: float | None


def measure_growth(model: Network, task: Task, sizes: Sizes, lengths: Sequence[int], autocast: torch.autocast) -> Growth:
    """Measures growth over `lengths`, up to the model's maximum length and the memory of the device."""
    seconds: list[float] = []
    sizes_in_memory: list[int] = []
    tried = [length for length in sorted(lengths) if model.max_length is None or length <= model.max_length]
    model.train()
    for length in tried:
        step = partial(forward_backward, task, model, task.dummy_batch(length, sizes).to(model.device), 1, autocast)
        try:
            needed = _memory(step, model)  # first, because it includes warm-up
            best = min(timed(step, model.device, times=REPETITIONS, within=TIME_LIMIT))
        except torch.OutOfMemoryError:
            break
        finally:
            model.zero_grad(set_to_none=True)
        seconds.append(best)
        sizes_in_memory.append(needed)
        if best > SLOW:
            break
    done = tried[: len(seconds)]
    return Growth(done, seconds, sizes_in_memory, exponent(done, seconds), exponent(done, sizes_in_memory))


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """The exponent p in values ≈ c · lengthᵖ."""
    points = [(math.log(length), math.log(value)) for length, value in zip(lengths, values, strict=True) if value > 0]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def _memory(step: Callable[[], object], model: Network) -> int:
    """Memory of a step: on a GPU the peak allocation, on a CPU the tensors that forward saves for backward."""
    if model.device.type == "cuda":
        step()  # allocates the gradients, which are not to be counted
        torch.cuda.synchronize(model.device)
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        step()
        torch.cuda.synchronize(model.device)
        return torch.cuda.max_memory_allocated(model.device) - before
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # a reference, so that the address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(size for size, _ in kept.values())


MOMENT = 1.5
"""Seconds of training to measure an undisturbed speed."""

WARM = 8
"""Sentences decoded before timing starts."""

CANDIDATES, WORDS, MOST_TOKENS = 500, 10, 160
"""The attention map shows a sentence among the first CANDIDATES with about WORDS words and at most MOST_TOKENS tokens."""


@dataclass(frozen=True)
class Measurements:
    """The measurements to take.

    test: data to score · sentences: number of validation sentences to decode for the speed, if there is no test data ·
    lengths: sequence lengths at which to measure growth · alone: train again for a moment, to measure the speed · maps:
    compute the attention maps of one sentence.
    """

    test: tuple[str, ...] = ()
    sentences: int = 0
    lengths: tuple[int, ...] = ()
    alone: bool = False
    maps: bool = False


def measure(folder: Path, wanted: Measurements) -> dict[str, Any]:
    """All measurements as plain data. Measurements that a task does not support are None or empty."""
    config = run_config(folder)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    run = open_run(folder, device=config.train.device)
    measured: dict[str, Any] = {
        "parameters": run.model.count_parameters(),
        "counts": run.task.info.count_unit,
        "headline": asdict(run.task.headline),
        "steps_a_second": probe(run.config.replaced({"data.valid": []}), MOMENT).steps_a_second if wanted.alone else None,
    }
    measured |= _predictions(run, wanted)
    if wanted.lengths:
        precision = autocast(run.model.device, run.config.train.precision)
        measured["growth"] = asdict(measure_growth(run.model, run.task, run.sizes, wanted.lengths, precision))
    return measured


def _predictions(run: TrainedRun, wanted: Measurements) -> dict[str, Any]:
    """Test scores, decoding speed and attention maps if the task scores predictions line by line; otherwise test scores."""
    if not run.task.metrics():
        return {"test": _validated(run, wanted.test) if wanted.test else {}, "decoding": None, "views": []}
    translator = Trained(run.model, run.task, run.config)
    test = run.task.examples(wanted.test)
    valid = run.task.examples(names(run.config.data.valid))[: max(wanted.sentences, CANDIDATES)]
    pairs = test or valid[: wanted.sentences]
    targets, config = [target for _, target in test or valid], run.config
    chosen = choose_tokenization(config.train.tokenize, config.data.target_language, targets)
    metrics = all_metrics(run.task, tokenize=chosen.name)
    texts, seconds = _decode(translator, [source for source, _ in pairs])
    scores = score(texts, [target for _, target in test], metrics) if test else {}
    floors = {metric.key(): trivial_scores(pairs, metric) for metric in metrics if wanted.maps}
    maps = _attention(translator, [source for source, _ in valid or test]) if wanted.maps else []
    return {
        "test": {each.key: each.value for each in scores.values()},
        "floors": floors,
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
