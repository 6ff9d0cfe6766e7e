"""Figures: a common style, and a bar chart of where the time of a step goes, for training and decoding."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from weft.bench.measure import Bench
from weft.bench.profiler import GROUPS, OVERHEAD, Profile
from weft.bench.speed_table import duration
from weft.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
ENDINGS = (".png", ".svg")
WORK, WAIT = "#3b6ea5", "#c4622d"
"""Colours of computation and of overhead."""


def empty_figure(width: float, height: float) -> Figure:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, grid: Literal["both", "x"] = "both") -> None:
    """Draws a light grid, and no frame at the top and right."""
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, file: Path | IO[bytes], kind: str | None = None) -> None:
    """Writes a figure as PNG or SVG, by the suffix of the path or by `kind`."""
    svg = kind == "svg" or (isinstance(file, Path) and file.suffix == ".svg")
    figure.savefig(file, dpi=DPI, format=kind, metadata={"Date": None} if svg else None)


def check_file(file: Path) -> None:
    """Raises ConfigError if a picture cannot be written to this file; called before anything is measured."""
    if file.suffix not in ENDINGS:
        raise ConfigError(f"{file}: a profile is drawn as PNG or SVG; give a name that ends in {' or '.join(ENDINGS)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; create it first, or choose another")


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
    colours = [WAIT if group == OVERHEAD else WORK for group in groups]
    bars = axes.barh(groups, values, color=colours, height=0.72)
    shares = [value / (10 * whole) for value in values]
    labels = [f"{share:.0f} %" if share >= 1 else "< 1 %" if share else "" for share in shares]
    axes.bar_label(bars, labels, padding=3, fontsize=8.5)
    axes.set_title(f"{profile.name}, {duration(whole)}\n{profile.about}", fontsize=9, loc="left")
    axes.set_xlabel("milliseconds")
    axes.set_xlim(0, 1.15 * max(values))
    style_axes(axes, "x")
