"""Profiles of a step: the events of torch's profiler, in groups that say where the time goes."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity

from weft.bench.benchmarked_model import BenchmarkedModel
from weft.bench.machine import finish
from weft.bench.workloads import Workload

RECURRENT, OPTIMISER, ELEMENTWISE = "recurrent", "optimiser", "elementwise"
OUTPUT, OVERHEAD = "loss and output layer", "Python and launching"

NAMES = {
    OPTIMISER: r"^_fused_adam|^_foreach_",
    RECURRENT: r"rnn|lstm|gru",
    "attention": r"attention|^b(add)?bmm$|^bmm$|softmax",
    "matrix products": r"^(add)?mm$|^linear|^(add)?mv$|^dot$|conv",
    "normalisation": r"norm(?!al)",
    "dropout and random numbers": r"dropout|rand|bernoulli|uniform|normal|exponential|multinomial",
    "data movement": r"copy|clone|cat$|index|gather|scatter|embedding|pad|repeat|roll|flip|fill|zero|arange|full|sort|topk",
    OVERHEAD: r"^empty|^new_empty|view|^reshape|^expand|^transpose|^permute|^t$|as_strided|squeeze|^flatten|^unflatten|^unbind|"
    r"split|chunk|^select$|^slice$|^narrow|alias|detach|resize|^to$|^matmul$|^contiguous$|^item$|^_local_scalar",
}
"""Groups by patterns of operation names; the first match counts. All other operations are elementwise.

Views, and operations that only call others, cost nothing but the call.
"""

GROUPS = [
    *("matrix products", "attention", RECURRENT, "normalisation", ELEMENTWISE, "dropout and random numbers", "data movement"),
    *(OUTPUT, OPTIMISER, OVERHEAD),
]
"""The groups in the order in which they are drawn."""


@dataclass(frozen=True)
class Profile:
    """Seconds of one step by group; they add up to the step."""

    name: str
    about: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class ProfiledStep:
    """One eager step: seconds in which each group kept the device busy, and seconds in total."""

    busy: dict[str, float]
    seconds: float

    def profile(self, work: Workload, measured: float | None) -> Profile:
        """measured: seconds of a step without the profiler, for a GPU, whose kernels the profiler does not slow down."""
        rest = max(0.0, (measured or self.seconds) - sum(self.busy.values()))
        seconds = {**self.busy, OVERHEAD: rest}
        return Profile(work.name, work.about, {group: seconds[group] for group in GROUPS if seconds.get(group)})


def profile_step(work: Workload, subject: BenchmarkedModel) -> ProfiledStep:
    """Runs the work once under torch's profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences its start and stop messages
    cuda = subject.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        began = time.perf_counter()
        work.eagerly()
        finish(subject.device)
        seconds = time.perf_counter() - began
    busy: Counter[str] = Counter()
    for event in profiler.events() or ():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        busy[group_of(event, subject.sizes.target)] += spent / 1e6 / work.steps
    return ProfiledStep({group: spent for group, spent in busy.items() if group != OVERHEAD}, seconds / work.steps)


def group_of(event: FunctionEvent, vocabulary: int) -> str:
    """The group of one operation. Tensors as wide as the vocabulary belong to the output layer, except for embeddings."""
    space, _, name = event.name.partition("::")
    if space not in ("aten", "quantized"):
        return OVERHEAD
    group = _by_name(name)
    if group in (OPTIMISER, OVERHEAD):
        return group
    if any(_by_name(each.name.partition("::")[2]) == RECURRENT for each in _callers(event)):
        return RECURRENT
    shapes: Any = event.input_shapes or ()
    over_vocabulary = any(isinstance(shape, list) and vocabulary in shape for shape in shapes)
    return OUTPUT if over_vocabulary and "embedding" not in name else group


@cache
def _by_name(name: str) -> str:
    return next((group for group, pattern in NAMES.items() if re.search(pattern, name)), ELEMENTWISE)


def _callers(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """The operations that called this one, innermost first."""
    parent = event.cpu_parent
    while parent is not None:
        yield parent
        parent = parent.cpu_parent
