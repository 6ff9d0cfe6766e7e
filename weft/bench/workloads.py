"""Workloads of a benchmark: a training step, a search, a forward pass, each as weft does it, on random tokens.

The model is that of a run, or that of a recipe with its initial weights. No data is read.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.config.registry import build
from weft.config.sections import Config, load_config
from weft.data.batch import BOS, PAD, UNK, Source
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.decoding.constraints import ForbidTokens
from weft.decoding.cpp_search import encode
from weft.decoding.cuda_graph_search import CapturedStepRunner, search_graphs_of
from weft.decoding.search_loop import EAGER, SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError
from weft.inference.decoding_options import DecodingOptions, changed, resolve_options
from weft.layers.kernels.cpp import using
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.models.base import Network, Sizes
from weft.runs.open_run import build_task, open_run
from weft.runs.run_folder import choose_device
from weft.runs.translator import Trained
from weft.tasks.base import Task, optimizer_groups
from weft.training.compile_and_cuda_graphs import CudaGraphSteps, compile_blocks
from weft.training.distributed import World, sum_gradients
from weft.training.ema import Ema
from weft.training.loop import Meter, optimizer_step, worker
from weft.training.prepare_run import resolve_batches

STEPS = 32
"""Tokens that a search writes, if the model has positions for that many."""

WARM_UP = 4
"""Warm-up runs on a GPU. After that many, the work is captured."""

CHARACTERS = 100
"""The assumed number of different characters in a text, if a recipe only gives a maximum."""


@dataclass(frozen=True)
class BenchmarkedModel:
    """A model on its device, its task, the sizes of its vocabularies, and the tokens per row of its batches."""

    name: str
    config: Config
    task: Task
    sizes: Sizes
    model: Network
    length: int

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def rows(self) -> int:
        """Rows of a training batch."""
        return max(1, self.config.train.batch_tokens // self.length)


def open_benchmarked_model(name: str, sets: Sequence[str] = (), length: int | None = None) -> BenchmarkedModel:
    """Opens a run folder, a recipe or a YAML file; `sets` are written over its configuration."""
    if os.path.isdir(name):
        run = open_run(Path(name), sets)
        task, config, sizes, model = run.task, run.config, run.sizes, run.model
    else:
        config = load_config(name, sets)
        task = build_task(config, Path(name))
        sizes = _sizes(config)
        torch.manual_seed(config.train.seed)
        model = task.build(config.model, sizes)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = choose_device(config.train.device)
    config = resolve_batches(config, model, task, device)
    return BenchmarkedModel(name, config, task, sizes, model.to(device), _length(length, task, model))


def _sizes(config: Config) -> Sizes:
    """The vocabulary sizes of a recipe; those of a run may be smaller."""
    kind, size = config.data.tokenizer["kind"], config.data.vocabulary
    if kind in ("bytes", "characters"):
        size = ByteTokenizer().size if kind == "bytes" else min(size, CHARACTERS)
    return Sizes(size, size, config.data.shared_vocabulary)


def _length(wanted: int | None, task: Task, model: Network) -> int:
    most = model.longest
    if wanted is None:
        return task.typical_length if most is None else min(task.typical_length, most)
    if most is not None and wanted > most:
        raise ConfigError(f"--length {wanted}: the model has {most} positions; give at most that many tokens")
    return wanted


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
        self.groups, specs = optimizer_groups(task, self.model)
        self.optimizers = {
            name: build("weft.training:OPTIMIZERS", specs.get(name, self.config.optimizer), group)
            for name, group in self.groups.items()
        }
        self.ema = Ema(self.model, self.config.ema) if self.config.ema else None
        self.world = World(0, 1, subject.device)
        self.meter = Meter(list(self.groups), subject.device)
        self.backward = worker(self.model, task, self.config, subject.device)
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
        replayed = isinstance(self.backward, CudaGraphSteps)
        backward = self.backward.work if isinstance(self.backward, CudaGraphSteps) and not captured else self.backward
        for _ in range(self.config.accumulate):
            self.meter.add(backward(self.batch, 1))
        sums = sum_gradients(self.groups, self.meter.take(), self.world)
        norms, bad = optimizer_step(self.groups, self.optimizers, sums, 0.0, self.config.clip, keep=replayed)
        if self.ema is not None:
            self.ema.update(1)
        self.meter.end_update(sums, norms[0], bad)
        if not captured:  # reading a number would wait for the device, which is not part of a step
            self.count = float(sums[1].sum())


class SearchWorkload(Workload):
    """Encodes random sources, if the model reads a source, and writes `STEPS` tokens for each. Figures are per step."""

    name = "decoding step"

    def __init__(self, subject: BenchmarkedModel, options: DecodingOptions, rows: int, warn: Callable[[str], None]) -> None:
        self.device, self.options = subject.device, options
        trained = Trained(subject.model, subject.task, subject.config)
        model: Any = trained.converted(options)
        self.model = model
        # Compiled kernels hide their operations, so the torch operations that they replace are counted instead.
        self.counted = trained.converted(replace(options, kernels=None))
        reads = subject.task.inference_kind == "search"
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
        self.model = Trained(subject.model, subject.task, subject.config).converted(self.options)
        self.source = random_source(subject, rows)
        self.about, self.count = f"{rows} × {subject.length} tokens, {self.precision}", float(rows)

    def __call__(self) -> None:
        with self.options.arithmetic(next(self.model.parameters()).dtype):
            self.model(self.source)


def inference_work(subject: BenchmarkedModel, rows: int, beam: int | None, warn: Callable[[str], None]) -> Workload:
    """The workload of a trained model. Without a source, texts are continued greedily unless `beam` is given."""
    decode, inference = subject.config.decode, subject.task.inference_kind
    width = beam or (decode.search.get("width", 1) if inference == "search" else 1)
    search = {"kind": "beam", "width": width, "stop": decode.search.get("stop", "exact")}
    options = resolve_options(changed(decode, {"search": search, "rerank": "none", "n_best": 1}), subject.device, warn=warn)
    return ForwardWorkload(subject, options, rows) if inference == "forward" else SearchWorkload(subject, options, rows, warn)
