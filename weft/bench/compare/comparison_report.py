"""The files of a comparison: results.json, and from it table.csv, chart.png, chart.svg and report.html.

The chart is a bubble chart in the style of the Long Range Arena: speed on the x axis, quality on the y axis, memory as area.
The page is self-contained: pictures are embedded, and nothing is loaded from a network.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.bench.compare.results import Row, column_notes, columns, failures, seeds_note, title, write_csv
from weft.errors import DataError
from weft.explain.attention_heatmap import View, draw
from weft.explain.figures import can_draw, empty_figure, save_figure, style_axes
from weft.explain.html_page import asset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Floats = NDArray[np.float64]

PERCENT = ("BLEU", "chrF2", "exact", "accuracy", "macro F1")
"""Titles of metrics that go up to 100."""

SMALLEST, LARGEST = 60.0, 1600.0
"""Smallest and largest area of a bubble, in square points."""

WIDE = 4.0
"""The speed axis is logarithmic if the fastest entry is at least this many times as fast as the slowest."""

LEAST_QUALITY, LEAST_SPEED = 0.1, 0.25
"""The least extent of an axis, as a share of the middle of its values, so that noise does not look like a result."""

ANGLES, DISTANCES = 16, (8, 16, 26, 38, 52, 68)
"""Candidate positions of a label: number of directions, and distances from the edge of its bubble in points."""


def chart(document: dict[str, Any]) -> Figure:
    """The chart. It leaves out entries without a score, a speed or a memory size."""
    rows = [row for row in document["entries"] if row["quality"] and row["speed"] and row["memory"]]
    figure = empty_figure(9.5, 6.2)
    axes = figure.subplots()
    _axes(axes, document)
    if rows:
        speeds, qualities, memory = (np.array([row[key]["mean"] for row in rows]) for key in ("speed", "quality", "memory"))
        places, areas = np.column_stack([speeds, qualities]), np.clip(LARGEST * memory / memory.max(), SMALLEST, None)
        _bubbles(axes, rows, places, areas)
        _widen(axes, rows, places, percent=document["headline"]["title"] in PERCENT)
        _legend(axes, memory.max())
        figure.canvas.draw()
        figure.set_layout_engine("none")  # keep the layout: labels are placed relative to the bubbles
        _labels(axes, rows, places, areas)
    return figure


def _axes(axes: Axes, document: dict[str, Any]) -> None:
    headline = document["headline"]
    data = {"valid": "validation", "test": "test"}[headline["data"]]
    axes.set_xlabel(f"training speed ({document['counts']} per second)")
    axes.set_ylabel(f"{headline['title']} ({data})")
    axes.set_title(f"budget: {document['settings']['budget']} each · {document['about']['device']}", fontsize=10, loc="left")
    axes.figure.supxlabel(_note(document), fontsize=8, color="#555555", x=0.01, ha="left")
    style_axes(axes)
    if not headline["higher_is_better"]:
        axes.invert_yaxis()


def _note(document: dict[str, Any]) -> str:
    """The meaning of areas, lines and dots."""
    spread = seeds_note(document)
    lines = f"Lines: {spread.removeprefix('± half the ')}. Dots: seeds." if spread.startswith("±") else f"{spread}."
    return f"Area: peak memory. {lines}"


def _widen(axes: Axes, rows: Sequence[Row], places: Floats, percent: bool) -> None:
    """Widens the axes to their least extent, around the middle of the values. No percentage exceeds 100."""
    bounds = [value for row in rows for value in (row["quality"]["low"], row["quality"]["high"]) if value is not None]
    qualities = [*places[:, 1], *bounds]
    _extend(axes.set_ylim, axes.get_ylim(), min(qualities), max(qualities), LEAST_QUALITY, 101.0 if percent else math.inf)
    if axes.get_xscale() == "linear":
        _extend(axes.set_xlim, axes.get_xlim(), places[:, 0].min(), places[:, 0].max(), LEAST_SPEED)


def _extend(
    set_limits: Callable[..., Any], now: tuple[float, float], low: float, high: float, least: float, most: float = math.inf
) -> None:
    """Sets limits that cover at least `least` of the middle of [low, high]; inverted limits stay inverted."""
    middle = (low + high) / 2
    half = max(abs(now[1] - now[0]), least * abs(middle)) / 2
    begin, end = middle - half, min(middle + half, most)
    set_limits(*((begin, end) if now[0] <= now[1] else (end, begin)))


def _bubbles(axes: Axes, rows: Sequence[Row], places: Floats, areas: Floats) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import LogLocator, NullFormatter

    speeds, colours = places[:, 0], colormaps["turbo"](np.linspace(0.08, 0.92, len(rows)))
    if speeds.max() / speeds.min() >= WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    for row, x, colour in zip(rows, speeds, colours, strict=True):
        quality = row["quality"]
        if quality["low"] is not None:
            axes.vlines(x, quality["low"], quality["high"], color=colour, linewidth=1.2, zorder=3)
            axes.plot([x, x], [quality["low"], quality["high"]], "_", color=colour, markersize=7, zorder=3)
            axes.plot([x] * len(quality["values"]), quality["values"], ".", color=colour, markersize=4, zorder=4)
    axes.scatter(speeds, places[:, 1], areas, c=colours, alpha=0.55, edgecolors="white", linewidths=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(x=0.14, y=0.12)


def _legend(axes: Axes, largest: float) -> None:
    for share in (1, 1 / 4):
        axes.scatter([], [], LARGEST * share, c="#bbbbbb", alpha=0.55, label=f"{largest * share / 2**20:,.0f} MiB")
    spacing = {"labelspacing": 2.2, "borderpad": 1.4, "handletextpad": 1.6}
    axes.legend(title="peak memory", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, **spacing)


def _labels(axes: Axes, rows: Sequence[Row], places: Floats, areas: Floats) -> None:
    """Places each label close to its bubble, connected by a thin line, without covering bubbles or other labels."""
    centres = axes.transData.transform(places)
    scale = axes.figure.dpi / 72
    radii = np.sqrt(areas / np.pi) * scale
    taken: list[Bbox] = []
    for number in np.argsort(-places[:, 1]):
        line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": radii[number] / scale}
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "ha": "center", "va": "center"}
        text = axes.annotate(rows[number]["label"], places[number], xytext=(0, 0), arrowprops=line, **style)
        offset, box = _place(text.get_window_extent(), number, centres, radii, taken, axes.bbox)
        text.set_position(tuple(offset / scale))
        taken.append(box)


def _place(
    extent: Bbox, number: int, centres: Floats, radii: Floats, taken: Sequence[Bbox], inside: Bbox
) -> tuple[Floats, Bbox]:
    """The offset of a label from the centre of bubble `number` and its box, in pixels, at the position of lowest cost."""
    from matplotlib.transforms import Bbox

    size = np.array([extent.width, extent.height])
    best, least = (np.zeros(2), extent), float("inf")
    for distance in DISTANCES:
        for angle in np.linspace(0, 2 * np.pi, ANGLES, endpoint=False):
            direction = np.array([np.cos(angle), np.sin(angle)])
            offset = direction * (radii[number] + distance + abs(direction) @ size / 2)
            low, high = centres[number] + offset - size / 2, centres[number] + offset + size / 2
            box = Bbox([low, high])
            covered = (np.linalg.norm(np.clip(centres, low, high) - centres, axis=1) < radii).sum()
            outside = not (inside.contains(*low) and inside.contains(*high))
            cost = distance / 10 + 100 * (box.count_overlaps(taken) + covered) + 200 * outside
            if cost < least:
                best, least = (offset, box), cost
    return best


def write_report(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes all files and returns them. Without matplotlib it leaves out the pictures."""
    out.mkdir(parents=True, exist_ok=True)
    drawing = can_draw()
    texts = {
        "results.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        "table.csv": write_csv(document),
        "report.html": write_page(document, pictures=drawing),
    }
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")
    charts = ["chart.png", "chart.svg"] if drawing else []
    for name in charts:
        save_figure(chart(document), out / name)
    return [out / name for name in (*texts, *charts)]


def read_results(file: Path) -> dict[str, Any]:
    """Reads results.json, to write the report again."""
    try:
        document = json.loads(file.read_text("utf-8"))
        if isinstance(document, dict) and isinstance(document.get("entries"), list):
            return document
    except (ValueError, RecursionError):
        pass
    raise DataError(f"{file}: this file does not contain results of `weft compare`")


def write_page(document: dict[str, Any], pictures: bool = True) -> str:
    """The page. Without `pictures`, which need matplotlib, it has only tables."""
    failed = failures(document)
    parts = [
        f"<h1>{escape(title(document))}</h1>",
        _table(document),
        f"<h2>Failed</h2>{''.join(f'<pre>{escape(error)}</pre>' for error in failed)}" if failed else "",
        _chart(document) if pictures else "",
        _settings(document),
        _attention(document["entries"]) if pictures else "",
    ]
    head = f'<meta charset="utf-8"><title>weft compare</title><style>{asset("comparison.css")}</style>'
    body = "\n".join([*filter(None, parts), f"<script>{asset('comparison.js')}</script>"])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}</body></html>\n'


def _table(document: dict[str, Any]) -> str:
    shown = columns(document)
    headings = "".join(f'<th title="{escape(column.note)}">{escape(column.heading)}</th>' for column in shown)
    lines = []
    for row in document["entries"]:
        cells = [f'<td data-value="{escape(row["label"])}">{escape(row["label"])}</td>']
        for column in shown:
            value = column.value(row)
            cells.append(f'<td data-value="{"" if value is None else value}">{escape(column.shown(row))}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    table = f"<table><thead><tr><th>entry</th>{headings}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'{table}<p class="note">Click a heading to sort. {escape("; ".join(column_notes(document)))}.</p>'


def _chart(document: dict[str, Any]) -> str:
    picture = _picture(lambda file: save_figure(chart(document), file, "svg"), "svg+xml", "bubble chart")
    note = "Up and to the right is better. The axes do not start at 0; a quality axis covers at least a tenth of its values."
    return f'<h2>Quality, speed and memory</h2><p class="note">{note}</p><p>{picture}</p>'


def _settings(document: dict[str, Any]) -> str:
    facts = [*document["about"].items(), *document["settings"].items()]
    facts += [(row["label"], " ".join([row["recipe"], *row["set"]])) for row in document["entries"]]
    texts = [(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)) for name, value in facts]
    lines = [f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in texts]
    return f"<h2>Settings</h2><table><tbody>{''.join(lines)}</tbody></table>"


def _attention(rows: Iterable[Row]) -> str:
    """The attention maps of each entry for one sentence."""
    parts = [f"<h3>{escape(row['label'])}</h3>{''.join(map(_figure, row['views']))}" for row in rows if row["views"]]
    if not parts:
        return ""
    note = "Attention weights for one sentence, averaged over layers and heads. Entries without attention weights are left out."
    return f'<h2>Attention</h2><p class="note">{note}</p>{"".join(parts)}'


def _figure(view: dict[str, Any]) -> str:
    """The heat map of a view."""
    name, weights = str(view["title"]), np.array(view["weights"], np.float32)
    shown = View(name, weights, view["rows"], view["columns"], tuple(view["sides"]))
    picture = _picture(lambda file: draw(shown, file, dpi=70), "png", name)
    return f"<figure>{picture}<figcaption>{escape(name)}</figcaption></figure>"


def _picture(draw: Callable[[IO[bytes]], None], kind: str, description: str) -> str:
    """An image with its data, which `draw` writes into a file."""
    file = io.BytesIO()
    draw(file)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/{kind};base64,{data}">'
