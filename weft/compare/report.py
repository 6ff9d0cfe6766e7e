"""The files of a comparison: results.json, and from it table.csv, chart.png, chart.svg and report.html."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from weft.compare.chart import draw_chart
from weft.compare.page import write_page
from weft.compare.table import write_csv
from weft.errors import DataError


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
        draw_chart(document, out / name)
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
