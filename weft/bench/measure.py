"""Predicted and measured: what a step costs, how long it takes, and how near that is to the machine's ceiling."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from weft.bench.ceilings import Ceilings, measure_copies, measure_products
from weft.bench.counting import Cost, Counting
from weft.bench.machine import about
from weft.bench.profile import Profile, see
from weft.bench.subject import Subject
from weft.bench.timing import timed
from weft.bench.work import TrainingStep, Work, inference_work

WITHIN = 5.0
"""Seconds after which work is not done again to be timed."""


@dataclass(frozen=True)
class Figures:
    """Of one step: FLOPs and bytes counted, what it takes at least by each, seconds it took (the fastest, the median).

    counts: what `count` is a number of.
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
    def share_of_products(self) -> float:
        """How much of the ceiling of matrix products is reached, 0 to 1."""
        return self.least_by_flops / self.seconds

    @property
    def share_of_memory(self) -> float:
        return self.least_by_bytes / self.seconds

    @property
    def binds(self) -> str:
        """Which of the two ceilings is the nearer one."""
        return "products" if self.least_by_flops >= self.least_by_bytes else "memory"

    def document(self) -> dict[str, Any]:
        shares = {"products": self.share_of_products, "memory": self.share_of_memory}
        each = {"flops_a_count": self.flops / self.count, "bytes_a_count": self.bytes / self.count}
        return {**vars(self), **each, "per_second": self.count / self.seconds, "shares": shares, "binds": self.binds}


@dataclass(frozen=True)
class Bench:
    """Everything that was found; profiles where they were asked for."""

    subject: Subject
    ceilings: Ceilings
    figures: list[Figures]
    profiles: list[Profile]

    @property
    def weights(self) -> int:
        """Bytes of the model's weights, as they are trained."""
        return sum(parameter.nbytes for parameter in self.subject.model.parameters())

    @property
    def title(self) -> str:
        """What was measured, and where."""
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
            "ceilings": self.ceilings.document(),
            "steps": [each.document() for each in self.figures],
            "profiles": [each.document() for each in self.profiles],
        }


def bench(
    subject: Subject,
    *,
    batch: int,
    beam: int | None,
    rounds: int,
    profiled: bool,
    say: Callable[[str], None] = lambda message: None,
) -> Bench:
    """Counts and times a training step and a decoding step with `batch` rows, on the device of the subject."""
    figures: list[Figures] = []
    profiles: list[Profile] = []
    device = subject.device
    say("the ceilings of this machine")
    ceilings = Ceilings({"float32": measure_products(device, "float32", rounds)}, measure_copies(device, rounds))
    # One after the other: both are of the same model, in training and not.
    makers: list[Callable[[], Work]] = [lambda: TrainingStep(subject), lambda: inference_work(subject, batch, beam, say)]
    for make in makers:
        work = make()
        if work.precision not in ceilings.products:
            ceilings.products[work.precision] = measure_products(device, work.precision, rounds)
        say(f"{work.name}: {work.about}")
        cost = count(work)
        seen = see(work, subject) if profiled else None
        figures.append(_figures(subject, work, cost, ceilings, rounds))
        if seen is not None:
            profiles.append(seen.profile(work, figures[-1].seconds if device.type == "cuda" else None))
    return Bench(subject, ceilings, figures, profiles)


def _figures(subject: Subject, work: Work, cost: Cost, ceilings: Ceilings, rounds: int) -> Figures:
    work.warm_up(subject.device)
    seconds = [each / work.steps for each in timed(work, subject.device, times=rounds, within=WITHIN)]
    by_flops, by_bytes = (each / work.steps for each in ceilings.seconds(cost, work.precision))
    return Figures(
        name=work.name,
        about=work.about,
        precision=work.precision,
        counts=subject.task.counts,
        count=work.count / work.steps,
        flops=cost.flops / work.steps,
        bytes=cost.bytes / work.steps,
        least_by_flops=by_flops,
        least_by_bytes=by_bytes,
        seconds=min(seconds),
        median=statistics.median(seconds),
    )


def count(work: Work) -> Cost:
    """What the work comes to, after it has been done once: what is made once for all times is not counted."""
    work.eagerly()
    with Counting() as counting:
        work.eagerly()
    return counting.cost
