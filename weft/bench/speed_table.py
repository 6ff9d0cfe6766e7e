"""The figures as a table."""

from __future__ import annotations

from rich.table import Table

from weft.bench.measure import Bench, Figures

PREFIXES = ("", "k", "M", "G", "T", "P")


def heading(bench: Bench) -> str:
    """A few lines about the machine, its limits and the model."""
    model, ceilings = bench.subject.model, bench.ceilings
    products = " · ".join(f"{kind} {amount(rate, 'FLOP/s')}" for kind, rate in ceilings.products.items())
    memory = f"memory {amount(ceilings.memory, 'B/s')}, from caches {amount(max(ceilings.copies.values()), 'B/s')}"
    weights = f"{model.count_parameters():,} parameters, {amount(bench.weights, 'B')}"
    return f"{bench.title}\nmodel: {weights}\nlimits: products {products} · {memory}"


def table(bench: Bench) -> Table:
    """A column per kind of step."""
    found = Table(title_justify="left")
    found.add_column("", no_wrap=True)
    for each in bench.figures:
        found.add_column("\n".join([each.name, *each.about.split(", ")]), justify="right")
    for row in zip(*(_rows(each) for each in bench.figures), strict=True):
        found.add_row(row[0][0], *(value for _, value in row))
    return found


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
