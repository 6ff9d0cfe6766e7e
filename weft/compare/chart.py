"""A bubble chart in the style of the Long Range Arena: speed on the x axis, quality on the y axis, memory as area."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from weft.compare.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

SMALLEST, LARGEST = 60.0, 1600.0
"""Smallest and largest area of a bubble, in square points."""

DPI = 150

WIDE = 4.0
"""The speed axis is logarithmic if the fastest entry is at least this many times as fast as the slowest."""

ANGLES, DISTANCES = 16, (8, 16, 26, 38, 52, 68)
"""Candidate positions of a label: number of directions, and distances from the edge of its bubble in points."""


def draw_chart(document: dict[str, Any], file: str | Path | IO[bytes], kind: str | None = None) -> None:
    """Writes the chart as PNG or SVG, by the suffix of the path or by `kind`."""
    svg = kind == "svg" or (kind is None and str(file).endswith(".svg"))
    chart(document).savefig(file, dpi=DPI, format=kind, metadata={"Date": None} if svg else None)


def chart(document: dict[str, Any]) -> Figure:
    """The chart. It leaves out entries without a score, a speed or a memory size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in document["entries"] if row["quality"] and row["speed"] and row["memory"]]
    figure = Figure(figsize=(9.5, 6.2), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _axes(axes, document)
    if rows:
        _bubbles(axes, rows)
        figure.canvas.draw()
        figure.set_layout_engine("none")  # keep the layout: labels are placed relative to the bubbles
        _labels(axes, rows)
    return figure


def _axes(axes: Axes, document: dict[str, Any]) -> None:
    headline = document["headline"]
    data = {"valid": "validation", "test": "test"}[headline["data"]]
    axes.set_xlabel(f"training speed ({document['counts']} per second)")
    axes.set_ylabel(f"{headline['title']} ({data})")
    axes.set_title(f"budget: {document['settings']['budget']} each · {document['about']['device']}", fontsize=10, loc="left")
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not headline["higher_is_better"]:
        axes.invert_yaxis()


def _points(rows: Sequence[Row]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The speeds, qualities and areas of the bubbles."""
    speeds, qualities, memory = (np.array([row[key]["mean"] for row in rows]) for key in ("speed", "quality", "memory"))
    return speeds, qualities, np.clip(LARGEST * memory / memory.max(), SMALLEST, None)


def _bubbles(axes: Axes, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    speeds, qualities, areas = _points(rows)
    colours = _colours(len(rows))
    if speeds.max() / speeds.min() >= WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    for row, x, colour in zip(rows, speeds, colours, strict=True):
        if row["quality"]["low"] is not None:
            axes.vlines(x, row["quality"]["low"], row["quality"]["high"], color=colour, linewidth=1.2)
    axes.scatter(speeds, qualities, areas, c=colours, alpha=0.55, edgecolors="white", linewidths=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(x=0.14, y=0.12)
    largest = max(row["memory"]["mean"] for row in rows)
    shown = [largest, largest / 4]
    for memory in shown:
        area = max(SMALLEST, LARGEST * memory / largest)
        axes.scatter([], [], area, c="#bbbbbb", alpha=0.55, label=f"{memory / 2**20:,.0f} MiB")
    axes.legend(
        title="peak memory",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        labelspacing=2.2,
        borderpad=1.4,
        handletextpad=1.6,
    )


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["turbo"](0.08 + 0.84 * number / max(1, count - 1)) for number in range(count)]


def _labels(axes: Axes, rows: Sequence[Row]) -> None:
    """Places each label close to its bubble, connected by a thin line, without covering bubbles or other labels."""
    speeds, qualities, areas = _points(rows)
    centres = axes.transData.transform(np.column_stack([speeds, qualities]))
    scale = axes.figure.dpi / 72
    radii = np.sqrt(areas / np.pi) * scale
    taken: list[Bbox] = []
    for number in np.argsort(-qualities):
        text = axes.annotate(
            rows[number]["label"],
            (speeds[number], qualities[number]),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8.5,
            ha="center",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": "#999999",
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": radii[number] / scale,
            },
        )
        size = text.get_window_extent()
        offset = _label_offset(centres[number], radii[number], size, centres, radii, taken, axes.bbox)
        text.set_position(tuple(offset / scale))
        taken.append(_moved(size, centres[number] + offset))


def _label_offset(
    centre: np.ndarray[Any, Any],
    radius: float,
    size: Bbox,
    centres: np.ndarray[Any, Any],
    radii: np.ndarray[Any, Any],
    taken: Sequence[Bbox],
    inside: Bbox,
) -> np.ndarray[Any, Any]:
    """The offset in pixels from the centre of a bubble to that of its label, at the candidate position of lowest cost."""
    best, least = np.zeros(2), float("inf")
    for distance in DISTANCES:
        for angle in np.linspace(0, 2 * np.pi, ANGLES, endpoint=False):
            direction = np.array([np.cos(angle), np.sin(angle)])
            offset = direction * (radius + distance + abs(direction) @ np.array([size.width, size.height]) / 2)
            box = _moved(size, centre + offset)
            cost = distance / 10 + 100 * sum(_overlap(box, other) for other in taken)
            cost += 100 * sum(_covers(box, other, reach) for other, reach in zip(centres, radii, strict=True))
            cost += 200 * (box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1)
            if cost < least:
                best, least = offset, cost
    return best


def _moved(size: Bbox, centre: np.ndarray[Any, Any]) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(centre[0] - size.width / 2, centre[1] - size.height / 2, size.width, size.height)


def _overlap(one: Bbox, other: Bbox) -> bool:
    return bool(one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1)


def _covers(box: Bbox, centre: np.ndarray[Any, Any], radius: float) -> bool:
    nearest = np.clip(centre, [box.x0, box.y0], [box.x1, box.y1])
    return bool(np.linalg.norm(nearest - centre) < radius)
