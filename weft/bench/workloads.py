"""Workloads of a benchmark, as weft does them, on random tokens: a training step, a search, or a forward pass.

The model is that of a run, or that of a recipe with its initial weights. No data is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from weft.bench.benchmarked_model import BenchmarkedModel
from weft.data.batch import Source
from weft.decoding.decoding_options import DecodingOptions, changed, resolve_options
from weft.decoding.generate import GenerationRequest, generate
from weft.runs.trained_model import AuxiliaryModels
from weft.training.compile_and_cuda_graphs import compile_blocks
from weft.training.distributed import World
from weft.training.update_step import UpdateStep

WARM_UP = 4
"""Warm-up runs on a GPU. After that many, the work is captured."""

STEPS = 32
"""Tokens that a search writes, if the model has positions for that many."""


class Workload(ABC):
    """Work that can be repeated.

    about: its size, in words · precision: float32, bf16 or int8 · steps: equal parts that figures are divided by · count: what
    the task counts, over all steps.
    """

    name: str
    about: str
    precision: str
    steps: int = 1
    count: float

    @abstractmethod
    def __call__(self) -> None: ...

    def eagerly(self) -> None:
        """Runs the work eagerly, even if it is otherwise replayed from a CUDA graph, so that its operations can be counted."""
        self()

    def warm_up(self, device: torch.device) -> None:
        """Warms up. On a CPU, counting the operations has done that already."""
        for _ in range(WARM_UP if device.type == "cuda" else 0):
            self()


class TrainingWorkload(Workload):
    """Forward and backward of the micro-batches, clipping, and the optimiser. The rate is 0, so that no weight changes."""

    name = "training step"

    def __init__(self, subject: BenchmarkedModel) -> None:
        task, self.config = subject.task, subject.config.train
        packed, rounded = self.config.packed is True, self.config.rounded is True
        batch = task.dummy_batch(subject.length, subject.sizes, subject.rows, packed=packed, rounded=rounded)
        # Streams of a language model continue from step to step.
        self.batch = (batch.pin() if subject.device.type == "cuda" else batch).continued()
        self.model, self.precision = subject.model.train(), self.config.precision
        self.step = UpdateStep(self.model, task, self.config, World(0, 1, subject.device))
        self.step.start()
        each = f"{self.config.accumulate} × " * (self.config.accumulate > 1)
        self.about = f"{each}{subject.rows} × {subject.length} tokens, {self.precision}"
        self.count = 0.0

    def __call__(self) -> None:
        self._step(captured=True)

    def eagerly(self) -> None:
        self._step(captured=False)

    def warm_up(self, device: torch.device) -> None:
        if compile_blocks(self.model, self.config, device):
            self()
        super().warm_up(device)

    def _step(self, *, captured: bool) -> None:
        for _ in range(self.config.accumulate):
            self.step.backward(self.batch, 1, captured=captured)
        sums = self.step.finish(1, 0.0)
        if not captured:  # reading a number would wait for the device, which is not part of a step
            self.count = float(sums[1].sum())


class SearchWorkload(Workload):
    """Encodes random sources, if the model reads a source, and writes `STEPS` tokens for each. Figures are per step."""

    name = "decoding step"

    def __init__(self, subject: BenchmarkedModel, options: DecodingOptions, rows: int, warn: Callable[[str], None]) -> None:
        self.options = options
        models = AuxiliaryModels(subject.model.eval(), subject.task)
        model: Any = models.converted(options)
        self.model = model
        # Compiled kernels hide their operations, so the torch operations that they replace are counted instead.
        self.counted = models.converted(replace(options, kernels=None))
        reads = subject.task.info.inference_kind == "search"
        self.source = random_source(subject, rows) if reads else model.nothing(rows)
        self.precision = options.precision
        self.steps = STEPS if model.max_target is None else min(STEPS, model.max_target - 1)
        self.request = GenerationRequest(
            options.search,
            max_tokens=[self.steps] * rows,
            min_tokens=self.steps - 1,
            selector=options.search.selector(1, length_penalty=1.0),
            runner=options.runner(model, warn) if reads else None,
        )
        what, beam = "sources" if reads else "texts", options.search.width(1)
        self.about = f"{rows} {what}, beam {beam}, {self.precision}, mean of {self.steps}"
        self.count = float(rows * self.steps)

    def __call__(self) -> None:
        self._search(self.model, self.options, self.request)

    def eagerly(self) -> None:
        self._search(self.counted, replace(self.options, kernels=None), replace(self.request, runner=None))

    def _search(self, model: Any, options: DecodingOptions, request: GenerationRequest) -> None:
        with options.arithmetic(next(model.parameters()).dtype, options.beams):
            generate(model, self.source, request)


def random_source(subject: BenchmarkedModel, rows: int) -> Source:
    """Random full rows."""
    batch: Any = subject.task.dummy_batch(subject.length, subject.sizes, rows)
    return Source(batch.source.values.to(subject.device))


class ForwardWorkload(Workload):
    """One forward pass over random texts, for models that write no text."""

    name = "labelling a batch"

    def __init__(self, subject: BenchmarkedModel, options: DecodingOptions, rows: int) -> None:
        self.options, self.precision = replace(options, kernels=None), options.precision
        self.model = AuxiliaryModels(subject.model.eval(), subject.task).converted(self.options)
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
