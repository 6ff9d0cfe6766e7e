"""The work that is measured, as weft does it: a training step, a search, labels for a batch of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from weft.batch import BOS, PAD, UNK, LabelBatch, PairBatch, Source
from weft.bench.subject import Subject
from weft.config.registry import build
from weft.config.sections import DecodeSection
from weft.kernels.cpp import Kernels, using
from weft.kernels.graphs import Compiler
from weft.models.base import Model
from weft.models.lm import LanguageModel
from weft.search.choosers import Beam, Chooser, Greedy, Limits
from weft.search.constraints import Forbid
from weft.search.loop import PLAINLY, generate
from weft.search.recorded import recorder_of
from weft.tasks.placing import autocasts, native, settled
from weft.training.compiling import compile_blocks
from weft.training.distributed import World, sum_gradients
from weft.training.ema import Ema
from weft.training.loop import change_weights, worker
from weft.training.meter import Meter
from weft.training.replay import Replayed
from weft.translator import in_precision

STEPS = 32
"""Tokens that a search writes, unless the model has positions for fewer."""

SETTLED = 4
"""Times that work is done on a GPU before it is measured: by then it is recorded."""


class Work(ABC):
    """Something that can be done again and again.

    name · about: what it is done on · precision: float32, bf16 or int8 · steps: in how many equal parts figures are given ·
    count: what the task counts, in all steps.
    """

    name: str
    about: str
    precision: str
    steps: int = 1
    count: float

    @abstractmethod
    def __call__(self) -> None: ...

    def plainly(self) -> None:
        """Does it operation by operation, where it is recorded otherwise, so that operations can be seen."""
        self()

    def settle(self, device: torch.device) -> None:
        """Does it until it takes as long as it always will; on a CPU, once it has been counted, it does."""
        for _ in range(SETTLED if device.type == "cuda" else 0):
            self()


class TrainingStep(Work):
    """Micro-batches forward and backward, clipping, and the optimiser; its rate is 0, so that no weight changes."""

    name = "training step"

    def __init__(self, subject: Subject) -> None:
        task, self.config = subject.task, subject.config.train
        packed, rounded = self.config.packed is True, self.config.rounded is True
        batch = task.made_up(subject.length, subject.sizes, subject.rows, packed=packed, rounded=rounded)
        # Running text goes on from step to step, with what is carried.
        self.batch = (batch.pin() if subject.device.type == "cuda" else batch).continued()
        self.model, self.precision = subject.model.train(), self.config.precision
        self.groups = task.parameters(self.model)
        self.optimizers = {
            name: build("weft.training:OPTIMIZERS", self.config.optimizer, group) for name, group in self.groups.items()
        }
        self.ema = Ema(self.model, self.config.ema) if self.config.ema else None
        self.world = World(0, 1, subject.device)
        self.meter = Meter(list(self.groups), subject.device)
        self.backward = worker(self.model, task, self.config, subject.device)
        each = f"{self.config.accumulate} × " * (self.config.accumulate > 1)
        self.about = f"{each}{subject.rows} × {subject.length} tokens, {self.precision}"
        self.count = 0.0

    def __call__(self) -> None:
        self._step(recorded=True)

    def plainly(self) -> None:
        self._step(recorded=False)

    def settle(self, device: torch.device) -> None:
        if compile_blocks(self.model, self.config, device):
            self()
        super().settle(device)

    def _step(self, *, recorded: bool) -> None:
        replayed = isinstance(self.backward, Replayed)
        backward = self.backward.work if isinstance(self.backward, Replayed) and not recorded else self.backward
        for _ in range(self.config.accumulate):
            self.meter.add(backward(self.batch, 1))
        sums = sum_gradients(self.groups, self.meter.take(), self.world)
        norms, bad = change_weights(self.groups, self.optimizers, sums, 0.0, self.config.clip, keep=replayed)
        if self.ema is not None:
            self.ema.update(1)
        self.meter.settle(sums, norms[0], bad)
        if not recorded:  # nobody waits for a number while a step is timed
            self.count = float(sums[1].sum())


class Search(Work):
    """Reads made-up sources, if the model has a source, and writes so many tokens for each; figures are of one step."""

    name = "decoding step"

    def __init__(self, subject: Subject, options: DecodeSection, rows: int, warn: Callable[[str], None]) -> None:
        model, device = subject.model.eval(), subject.device
        options = settled(options, device)
        reads = isinstance(model, Model)
        self.kernels = native(options, device, warn)

        def made(kernels: Kernels | None) -> Model | LanguageModel:
            # The weights of a language model stay in float32 where its products are in bf16.
            found = in_precision(model, options.precision, kernels) if reads or options.precision == "int8" else model
            assert isinstance(found, Model | LanguageModel)
            return found

        self.model = made(self.kernels)
        # What is compiled cannot be seen from outside, and is counted as the operations of torch that it stands for.
        self.counted = self.model if self.kernels is None else made(None)
        self.chooser: Chooser = Beam(options.beam, stop=options.stop) if options.beam > 1 else Greedy()
        self.steps = STEPS if model.max_target is None else min(STEPS, model.max_target - 1)
        self.precision, self.device = options.precision, device
        self.autocast = autocasts(options, next(self.model.parameters()).dtype, self.kernels)
        self.source = made_up_source(subject, rows) if reads else Source(torch.empty(rows, 0))
        self.first = torch.full((rows, 1), BOS, device=device)
        longest = torch.full((rows,), self.steps, device=device)
        self.limits = Limits(longest, longest - 1, torch.arange(rows, device=device))
        recorder = recorder_of(self.model) if isinstance(self.model, Model) else None
        compiler = Compiler(warn) if options.compile else None
        self.stepping = None if recorder is None else recorder.stepping("bench", compiler)
        self.about = f"{rows} {'sources' if reads else 'texts'}, beam {options.beam}, {self.precision}, mean of {self.steps}"
        self.count = float(rows * self.steps)

    def __call__(self) -> None:
        with using(self.kernels):
            self._search(self.model, recorded=self.stepping is not None)

    def plainly(self) -> None:
        self._search(self.counted, recorded=False)

    @torch.inference_mode()
    def _search(self, model: Model | LanguageModel, *, recorded: bool) -> None:
        stepping = self.stepping if recorded else None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if isinstance(model, LanguageModel):
                source = model.nothing(self.first.size(0))
            elif stepping is not None:
                source = stepping.encode(model, self.source)
            else:
                source = model.encode(self.source)
            generate(
                model.decoder,
                source,
                self.chooser,
                first=self.first,
                limits=self.limits,
                constraints=[Forbid([PAD, BOS, UNK])],
                best=1,
                stepping=stepping or PLAINLY,
            )


def made_up_source(subject: Subject, rows: int) -> Source:
    """Full rows, for which no layout is needed."""
    batch = subject.task.made_up(subject.length, subject.sizes, rows)
    assert isinstance(batch, PairBatch | LabelBatch)
    return Source(batch.source.values.to(subject.device))


class Labelling(Work):
    """A label for each of some made-up texts."""

    name = "labelling a batch"

    def __init__(self, subject: Subject, options: DecodeSection, rows: int) -> None:
        options = settled(options, subject.device)
        self.model, self.precision = in_precision(subject.model.eval(), options.precision), options.precision
        self.autocast = autocasts(options, next(self.model.parameters()).dtype)
        self.source = made_up_source(subject, rows)
        self.about, self.count = f"{rows} × {subject.length} tokens, {self.precision}", float(rows)

    @torch.inference_mode()
    def __call__(self) -> None:
        with torch.autocast(self.source.values.device.type, torch.bfloat16, enabled=self.autocast):
            self.model(self.source)


def at_work(subject: Subject, rows: int, beam: int | None, warn: Callable[[str], None]) -> Work:
    """The model as it is used once trained."""
    options = subject.config.decode
    if isinstance(subject.model, Model | LanguageModel):
        # Text is drawn from a language model, unless a beam is asked for.
        usual = options.beam if isinstance(subject.model, Model) else 1
        return Search(subject, options.model_copy(update={"beam": beam or usual, "n_best": 1, "sample": False}), rows, warn)
    return Labelling(subject, options, rows)
