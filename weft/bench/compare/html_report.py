"""The files of a comparison: results.json, and from it table.csv, chart.png, chart.svg and report.html.

The page is self-contained: pictures are embedded, and nothing is loaded from a network.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.bench.compare.bubble_chart import chart
from weft.bench.compare.results import Row
from weft.bench.compare.results_table import column_notes, columns, failures, title, write_csv
from weft.bench.figures import save_figure
from weft.errors import DataError
from weft.explain.attention_heatmap import View, draw

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .3em .8em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
th { cursor: pointer; background: #f5f5f5; }
th:hover { background: #e8e8e8; }
pre { white-space: pre-wrap; background: #f8f8f8; padding: .6em; }
figure { display: inline-block; margin: .5em; vertical-align: top; }
figcaption { font-size: 13px; color: #555; }
img { max-width: 100%; }
.note { color: #555; font-size: 13px; }
"""

SCRIPT = """
document.querySelectorAll("th").forEach((heading, place) => heading.addEventListener("click", () => {
  const body = heading.closest("table").tBodies[0], down = heading.dataset.down !== "yes";
  heading.dataset.down = down ? "yes" : "no";
  const key = row => row.cells[place].dataset.value;
  const order = (a, b) => {
    if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
    const by = place ? key(a) - key(b) : key(a).localeCompare(key(b));
    return down === (place > 0) ? -by : by;
  };
  [...body.rows].sort(order).forEach(row => body.append(row));
}));
"""


def write_report(document: dict[str, Any], out: Path) -> list[Path]:
    """Writes all files and returns them. Without matplotlib it leaves out the pictures."""
    out.mkdir(parents=True, exist_ok=True)
    drawing = importlib.util.find_spec("matplotlib") is not None
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
        if isinstance(document, dict) and "entries" in document:
            return document
    except ValueError:
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
    head = f'<meta charset="utf-8"><title>weft compare</title><style>{STYLE}</style>'
    body = "\n".join(filter(None, parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n<script>{SCRIPT}</script></body></html>\n'


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
