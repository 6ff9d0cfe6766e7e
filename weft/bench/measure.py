"""The cost of a step, its time, and how close that is to the limits of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from weft.bench.flop_counter import Cost, FlopCounter
from weft.bench.inference_workloads import inference_work
from weft.bench.machine import Ceilings, about, measure_copies, measure_products, timed
from weft.bench.profiler import Profile, profile_step
from weft.bench.workloads import BenchmarkedModel, TrainingWorkload, Workload

WITHIN = 5.0
"""Seconds after which no further run is timed."""


@dataclass(frozen=True)
class Figures:
    """Figures of one step: FLOPs and bytes, the lower bounds of its time by each, the fastest and the median time.

    counts: the unit of `count`.
    """

    name: str
    about: str
    precision: str
    counts: str
    count: float
    flops: float
    bytes: float
    least_by_flops: float
    least_by_bytes: float
    seconds: float
    median: float

    @property
    def shares(self) -> dict[str, float]:
        """The share of each limit of the machine that is reached, 0 to 1."""
        return {"products": self.least_by_flops / self.seconds, "memory": self.least_by_bytes / self.seconds}

    @property
    def binds(self) -> str:
        """The limit that is closer."""
        return "products" if self.least_by_flops >= self.least_by_bytes else "memory"

    def document(self) -> dict[str, Any]:
        each = {"flops_a_count": self.flops / self.count, "bytes_a_count": self.bytes / self.count}
        return {**vars(self), **each, "per_second": self.count / self.seconds, "shares": self.shares, "binds": self.binds}


@dataclass(frozen=True)
class Bench:
    """All results of a benchmark; profiles only if requested."""

    subject: BenchmarkedModel
    ceilings: Ceilings
    figures: list[Figures]
    profiles: list[Profile]

    @property
    def weights(self) -> int:
        """Bytes of the model's weights in training."""
        return sum(parameter.nbytes for parameter in self.subject.model.parameters())

    @property
    def title(self) -> str:
        """The subject and the machine."""
        facts, threads = about(self.subject.device), torch.get_num_threads()
        used = f", {threads} thread{'s' * (threads > 1)}" if self.subject.device.type == "cpu" else ""
        return f"{self.subject.name} on {facts['device']}{used}, torch {facts['torch']}"

    def document(self) -> dict[str, Any]:
        model = {"parameters": self.subject.model.count_parameters(), "bytes": self.weights}
        model |= {"source_vocabulary": self.subject.sizes.source, "target_vocabulary": self.subject.sizes.target}
        return {
            "subject": self.subject.name,
            "about": {**about(self.subject.device), "threads": torch.get_num_threads()},
            "model": model,
            "ceilings": {**asdict(self.ceilings), "memory": self.ceilings.memory},
            "steps": [each.document() for each in self.figures],
            "profiles": [asdict(each) for each in self.profiles],
        }


def bench(
    subject: BenchmarkedModel,
    *,
    batch: int,
    beam: int | None,
    rounds: int,
    profiled: bool,
    say: Callable[[str], None] = lambda message: None,
) -> Bench:
    """Measures a training step, and a decoding step with `batch` rows, on the device of the subject."""
    figures: list[Figures] = []
    profiles: list[Profile] = []
    device = subject.device
    say("the limits of this machine")
    ceilings = Ceilings({"float32": measure_products(device, "float32", rounds)}, measure_copies(device, rounds))
    # One after the other, because both use the same model, first in training mode and then not.
    for make in (partial(TrainingWorkload, subject), partial(inference_work, subject, batch, beam, say)):
        work = make()
        if work.precision not in ceilings.products:
            ceilings.products[work.precision] = measure_products(device, work.precision, rounds)
        say(f"{work.name}: {work.about}")
        cost = count(work)
        step = profile_step(work, subject) if profiled else None
        figures.append(_figures(subject, work, cost, ceilings, rounds))
        if step is not None:
            profiles.append(step.profile(work, figures[-1].seconds if device.type == "cuda" else None))
    return Bench(subject, ceilings, figures, profiles)


def _figures(subject: BenchmarkedModel, work: Workload, cost: Cost, ceilings: Ceilings, rounds: int) -> Figures:
    work.warm_up(subject.device)
    seconds = [each / work.steps for each in timed(work, subject.device, times=rounds, within=WITHIN)]
    by_flops, by_bytes = (each / work.steps for each in ceilings.seconds(cost, work.precision))
    return Figures(
        name=work.name,
        about=work.about,
        precision=work.precision,
        counts=subject.task.count_unit,
        count=work.count / work.steps,
        flops=cost.flops / work.steps,
        bytes=cost.bytes / work.steps,
        least_by_flops=by_flops,
        least_by_bytes=by_bytes,
        seconds=min(seconds),
        median=statistics.median(seconds),
    )


def count(work: Workload) -> Cost:
    """The cost of the work in its second run, so that one-time work is not counted."""
    work.eagerly()
    with FlopCounter() as counter:
        work.eagerly()
    return counter.cost
