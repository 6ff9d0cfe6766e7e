"""`weft bench`: the cost of a step, its time, and how close that is to the limits of the machine.

Its report is a table, and a bar chart of where the time of a step goes.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from weft.bench.benchmarked_model import BenchmarkedModel
from weft.bench.flop_counter import Cost, FlopCounter
from weft.bench.machine import Ceilings, about, measure_copies, measure_products, timed
from weft.bench.profiler import GROUPS, OVERHEAD, Profile, profile_step
from weft.bench.workloads import TrainingWorkload, Workload, inference_work
from weft.errors import ConfigError
from weft.explain.figures import CANNOT_DRAW, can_draw, empty_figure, style_axes
from weft.runs.open_run import Report, silent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")
PREFIXES = ("", "k", "M", "G", "T", "P")
COMPUTATION, OVERHEAD_COLOUR = "#3b6ea5", "#c4622d"


def check_figure_name(file: Path) -> None:
    """Raises ConfigError if a picture cannot be written to this file; called before anything is measured."""
    if not can_draw():
        raise ConfigError(f"{file}: {CANNOT_DRAW}")
    if file.suffix not in ENDINGS:
        raise ConfigError(f"{file}: a profile is drawn as PNG or SVG; give a name that ends in {' or '.join(ENDINGS)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; create it first, or choose another")


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
    report: Report = silent,
) -> Bench:
    """Measures a training step, and a decoding step with `batch` rows, on the device of the subject."""
    figures: list[Figures] = []
    profiles: list[Profile] = []
    device = subject.device
    report("the limits of this machine")
    ceilings = Ceilings({"float32": measure_products(device, "float32", rounds)}, measure_copies(device, rounds))
    # One after the other, because both use the same model, first in training mode and then not.
    for make in (partial(TrainingWorkload, subject), partial(inference_work, subject, batch, beam, report)):
        work = make()
        if work.precision not in ceilings.products:
            ceilings.products[work.precision] = measure_products(device, work.precision, rounds)
        report(f"{work.name}: {work.about}")
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
        counts=subject.task.info.count_unit,
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


def profile_figure(bench: Bench) -> Figure:
    """A panel per kind of step, with the same groups from top to bottom."""
    groups = [group for group in GROUPS if any(group in each.seconds for each in bench.profiles)]
    figure = empty_figure(10.5, 1.8 + 0.34 * len(groups))
    panels = figure.subplots(1, len(bench.profiles), sharey=True, squeeze=False)[0]
    for axes, profile in zip(panels, bench.profiles, strict=True):
        _bars(axes, profile, groups)
    panels[0].invert_yaxis()  # the others share it
    figure.suptitle(bench.title, fontsize=10, x=0.01, ha="left")
    return figure


def _bars(axes: Axes, profile: Profile, groups: list[str]) -> None:
    whole = sum(profile.seconds.values())
    values = [1000 * profile.seconds.get(group, 0.0) for group in groups]
    colours = [OVERHEAD_COLOUR if group == OVERHEAD else COMPUTATION for group in groups]
    bars = axes.barh(groups, values, color=colours, height=0.72)
    shares = [value / (10 * whole) for value in values]
    labels = [f"{share:.0f} %" if share >= 1 else "< 1 %" if share else "" for share in shares]
    axes.bar_label(bars, labels, padding=3, fontsize=8.5)
    axes.set_title(f"{profile.name}, {duration(whole)}\n{profile.about}", fontsize=9, loc="left")
    axes.set_xlabel("milliseconds")
    axes.set_xlim(0, 1.15 * max(values))
    style_axes(axes, "x")


def heading(bench: Bench) -> str:
    """A few lines about the machine, its limits and the model."""
    model, ceilings = bench.subject.model, bench.ceilings
    products = " · ".join(f"{kind} {amount(rate, 'FLOP/s')}" for kind, rate in ceilings.products.items())
    memory = f"memory {amount(ceilings.memory, 'B/s')}, from caches {amount(max(ceilings.copies.values()), 'B/s')}"
    weights = f"{model.count_parameters():,} parameters, {amount(bench.weights, 'B')}"
    return f"{bench.title}\nmodel: {weights}\nlimits: products {products} · {memory}"


def speed_table(bench: Bench) -> Table:
    """A column per kind of step."""
    table = Table(title_justify="left")
    table.add_column("", no_wrap=True)
    for each in bench.figures:
        table.add_column("\n".join([each.name, *each.about.split(", ")]), justify="right")
    for row in zip(*(_rows(each) for each in bench.figures), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    return table


def _rows(step: Figures) -> list[tuple[str, str]]:
    unit = "token" if "token" in step.counts else "text"
    return [
        ("FLOPs", amount(step.flops)),
        (f"FLOPs per {unit}", amount(step.flops / step.count)),
        ("bytes moved", amount(step.bytes, "B")),
        (f"bytes per {unit}", amount(step.bytes / step.count, "B")),
        ("lower bound by FLOPs", duration(step.least_by_flops)),
        ("lower bound by bytes", duration(step.least_by_bytes)),
        ("measured, fastest", duration(step.seconds)),
        ("measured, median", duration(step.median)),
        (f"{unit}s per second", f"{step.count / step.seconds:,.0f}"),
        ("share of product limit", f"{100 * step.shares['products']:.1f} %"),
        ("share of memory limit", f"{100 * step.shares['memory']:.1f} %"),
        ("the closer limit", step.binds),
    ]


def amount(value: float, unit: str = "") -> str:
    """1,234,567 → 1.23 M, with three significant digits."""
    place = 0
    while abs(value) >= 999.5 and place < len(PREFIXES) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.3g} {PREFIXES[place]}{unit}".strip()


def duration(seconds: float) -> str:
    """12.3 ms, 1.23 s."""
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"
