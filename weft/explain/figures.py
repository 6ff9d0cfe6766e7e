"""Figures: made by matplotlib, which the extra `plots` installs, without a display and in one style."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from weft.errors import ConfigError
from weft.version import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Layout = Literal["constrained"] | None
DPI = 150
CANNOT_DRAW = f"drawing needs the package matplotlib: {install('plots')}"


def can_draw() -> bool:
    """Whether matplotlib is installed. Pictures that nobody has asked for are left out without it."""
    return importlib.util.find_spec("matplotlib") is not None


def empty_figure(width: float, height: float, dpi: int = DPI, layout: Layout = "constrained") -> Figure:
    """A figure of that many inches; without a layout its margins are given. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # without pyplot, which would look for a display
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(CANNOT_DRAW) from None
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, grid: Literal["both", "x"] = "both") -> None:
    """Draws a light grid, and no frame at the top and right."""
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


DATES = {"svg": "Date", "pdf": "CreationDate"}
"""Matplotlib's name of the date in files of each kind."""


def save_figure(figure: Figure, file: str | Path | IO[bytes], kind: str | None = None, dpi: int | None = None) -> None:
    """Writes a figure as PNG, SVG or PDF, by the suffix of the path or by `kind`. The same figure gives the same bytes."""
    from matplotlib import rc_context

    kind = kind or (Path(file).suffix[1:].lower() if isinstance(file, str | Path) else "") or "png"
    metadata: dict[str, Any] | None = {DATES[kind]: None} if kind in DATES else None
    with rc_context({"svg.hashsalt": "weft"}):  # otherwise names inside an SVG are drawn at random
        figure.savefig(file, dpi=dpi or figure.dpi, format=kind, metadata=metadata)
