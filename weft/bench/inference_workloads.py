"""Workloads of a benchmark that use a trained model: a search, or a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from weft.bench.workloads import BenchmarkedModel, Workload
from weft.data.batch import BOS, PAD, UNK, Source
from weft.decoding.constraints import ForbidTokens
from weft.decoding.cpp_search import encode
from weft.decoding.cuda_graph_search import CapturedStepRunner, search_graphs_of
from weft.decoding.search_loop import EAGER, SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.layers.kernels.cpp import using
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.runs.auxiliary_models import AuxiliaryModels
from weft.runs.translator import load_trained

STEPS = 32
"""Tokens that a search writes, if the model has positions for that many."""


class SearchWorkload(Workload):
    """Encodes random sources, if the model reads a source, and writes `STEPS` tokens for each. Figures are per step."""

    name = "decoding step"

    def __init__(self, subject: BenchmarkedModel, options: DecodingOptions, rows: int, warn: Callable[[str], None]) -> None:
        self.device, self.options = subject.device, options
        models = AuxiliaryModels(subject.model.eval(), subject.task, load_trained)
        model: Any = models.converted(options)
        self.model = model
        # Compiled kernels hide their operations, so the torch operations that they replace are counted instead.
        self.counted = models.converted(replace(options, kernels=None))
        reads = subject.task.info.inference_kind == "search"
        self.selector = options.search.selector(1, length_penalty=1.0)
        self.steps = STEPS if model.max_target is None else min(STEPS, model.max_target - 1)
        self.precision = options.precision
        self.autocast = options.autocasts(next(self.model.parameters()).dtype, options.beams)
        self.source = random_source(subject, rows) if reads else None
        self.first = torch.full((rows, 1), BOS, device=self.device)
        longest = torch.full((rows,), self.steps, device=self.device)
        self.limits = LengthLimits(longest, longest - 1, torch.arange(rows, device=self.device))
        recorder = search_graphs_of(model) if reads else None
        compiler = Compiler(warn) if options.config.compile else None
        self.runner = None if recorder is None else recorder.runner("bench", compiler)
        what = "sources" if reads else "texts"
        self.about = f"{rows} {what}, beam {self.selector.width}, {self.precision}, mean of {self.steps}"
        self.count = float(rows * self.steps)

    def __call__(self) -> None:
        with using(self.options.kernels):
            self._search(self.model, self.runner)

    def eagerly(self) -> None:
        self._search(self.counted, None)

    @torch.inference_mode()
    def _search(self, model: Any, runner: CapturedStepRunner | None) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if self.source is None:
                source = model.nothing(self.first.size(0))
            elif runner is not None:
                source = runner.encode(model, self.source)
            else:
                source = encode(model, self.source)
            run_search(
                model.decoder,
                source,
                self.selector,
                SearchRequest(
                    prefix=self.first,
                    limits=self.limits,
                    constraints=[ForbidTokens([PAD, BOS, UNK])],
                    n_best=1,
                    runner=runner or EAGER,
                ),
            )


def random_source(subject: BenchmarkedModel, rows: int) -> Source:
    """Random full rows."""
    batch: Any = subject.task.dummy_batch(subject.length, subject.sizes, rows)
    return Source(batch.source.values.to(subject.device))


class ForwardWorkload(Workload):
    """One forward pass over random texts, for models that write no text."""

    name = "labelling a batch"

    def __init__(self, subject: BenchmarkedModel, options: DecodingOptions, rows: int) -> None:
        self.options, self.precision = replace(options, kernels=None), options.precision
        self.model = AuxiliaryModels(subject.model.eval(), subject.task, load_trained).converted(self.options)
        self.source = random_source(subject, rows)
        self.about, self.count = f"{rows} × {subject.length} tokens, {self.precision}", float(rows)

    def __call__(self) -> None:
        with self.options.arithmetic(next(self.model.parameters()).dtype):
            self.model(self.source)


def inference_work(subject: BenchmarkedModel, rows: int, beam: int | None, warn: Callable[[str], None]) -> Workload:
    """The workload of a trained model. Without a source, texts are continued greedily unless `beam` is given."""
    decode, inference = subject.config.decode, subject.task.info.inference_kind
    width = beam or (decode.search.get("width", 1) if inference == "search" else 1)
    search = {"kind": "beam", "width": width, "stop": decode.search.get("stop", "exact")}
    options = resolve_options(changed(decode, {"search": search, "rerank": "none", "n_best": 1}), subject.device, warn=warn)
    return ForwardWorkload(subject, options, rows) if inference == "forward" else SearchWorkload(subject, options, rows, warn)
