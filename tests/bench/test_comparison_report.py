"""The reports of a comparison: chart, page and CSV, and writing them again from the results."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

from weft.bench.compare.comparison_report import chart, read_results, write_page, write_report
from weft.bench.compare.results import mean_with_interval, write_csv
from weft.errors import DataError


def document(count: int = 20) -> dict[str, Any]:
    """Results of `count` entries, many with similar values; the last one failed."""
    rows = []
    for number in range(count):
        quality = mean_with_interval([30 + (number % 5) * 0.2, 30.3 + (number % 5) * 0.2])
        run = {"seed": 1, "folder": "x", "error": "", "steps": 5, "valid": {"bleu": 30.0}, "test": {}}
        rows.append(
            {
                "label": f"mechanism <{number}>",
                "recipe": "transformer-small",
                "set": [f"model.encoder_self=kind{number}"],
                "error": "",
                "parameters": 1_000_000 + number,
                "quality": quality,
                "speed": mean_with_interval([10_000.0 * (1 + number % 7)]),
                "memory": mean_with_interval([2**30 * (1.0 + number % 3)]),
                "seconds": mean_with_interval([60.0]),
                "steps": mean_with_interval([500]),
                "decoding": 12.5,
                "growth": {"lengths": [64, 128], "seconds": [1, 2], "bytes": [1, 4], "time": 1.0, "memory": 2.0},
                "views": [
                    {
                        "title": "cross",
                        "weights": [[0.5, 0.5], [1.0, 0.0]],
                        "rows": ["a", "b"],
                        "columns": ["c", "d"],
                        "sides": ["written", "read"],
                    }
                ],
                "scores": {"valid": {"bleu": quality, "loss": mean_with_interval([1.5])}, "test": {}},
                "runs": [run],
            }
        )
    bad = rows[-1]
    bad |= {"error": "cannot serve & be", "quality": None, "speed": None, "memory": None, "parameters": None, "growth": None}
    bad["runs"] = [{**bad["runs"][0], "error": bad["error"], "steps": None}]
    settings = {"budget": "500-steps", "repeat": 2, "at_once": 1, "sentences": 10, "data": ["a,b"], "valid": [], "test": []}
    return {
        "format": 1,
        "about": {"date": "2026-01-01", "device": "CPU (x, 2 cores)", "python": "3", "torch": "2", "weft": "0"},
        "settings": {**settings, "sets": ["model.dim=8"], "lengths": [64, 128]},
        "headline": {"key": "bleu", "title": "BLEU", "higher_is_better": True, "data": "valid"},
        "counts": "target tokens",
        "entries": rows,
    }


def test_labels_of_twenty_bubbles_do_not_cover_each_other() -> None:
    figure = chart(document())
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts].count("mechanism <3>") == 1 and len(texts) == 19
    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in texts]  # without the line to the bubble
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_a_lower_loss_is_drawn_higher() -> None:
    lower = document(3)
    lower["headline"] |= {"key": "loss", "title": "loss", "higher_is_better": False}
    assert chart(lower).axes[0].yaxis_inverted()
    assert not chart(document(3)).axes[0].yaxis_inverted()


def flat(values: list[list[float]], title: str = "BLEU") -> dict[str, Any]:
    """Results of entries of about the same speed, with these qualities."""
    found = document(len(values) + 1)
    found["entries"].pop()
    found["headline"] |= {"title": title}
    for number, (row, quality) in enumerate(zip(found["entries"], values, strict=True)):
        row |= {"quality": mean_with_interval(quality), "speed": mean_with_interval([10_000.0 + number])}
    return found


def test_noise_does_not_fill_the_axes() -> None:
    axes = chart(flat([[35.0], [35.05], [35.1]])).axes[0]
    (low, high), (slow, fast) = axes.get_ylim(), axes.get_xlim()
    assert high - low >= 3.5 and low < 35.0 < 35.1 < high
    assert fast - slow >= 2_500 and slow < 10_000 < fast
    assert chart(flat([[97.0], [97.1]], "accuracy")).axes[0].get_ylim()[1] <= 101
    wide = chart(flat([[10.0], [40.0]])).axes[0].get_ylim()  # real differences keep the axis
    assert wide[0] < 10 and wide[1] > 40 and wide[1] - wide[0] < 45
    lower = flat([[2.0], [2.001]])
    lower["headline"] |= {"title": "loss", "higher_is_better": False}
    bottom, top = chart(lower).axes[0].get_ylim()
    assert bottom > 2.05 > 1.95 > top


def test_spread_is_drawn_and_one_seed_is_called_one_seed() -> None:
    one, three = flat([[35.0], [36.0]]), flat([[35.0, 35.5, 36.0], [36.0, 36.2, 36.4]])
    notes = [found._supxlabel.get_text() for found in (chart(one), chart(three))]
    assert "1 seed per entry: no spread" in notes[0] and "over 3 seeds" in notes[1]
    assert "1 seed per entry: no spread" in write_page(one, pictures=False)
    assert "over 3 seeds" in write_page(three, pictures=False) and "1 seed" not in write_page(three, pictures=False)
    assert not chart(one).axes[0].lines
    seeds = [line.get_ydata().tolist() for line in chart(three).axes[0].lines if line.get_marker() == "."]
    assert seeds == [[35.0, 35.5, 36.0], [36.0, 36.2, 36.4]]
    three["headline"]["signature"] = "nrefs:1|tok:zh"
    assert "tok:zh" in write_page(three, pictures=False)


def test_the_page_needs_nothing_from_elsewhere_and_shows_everything() -> None:
    page = write_page(document())
    outside = re.sub(r'"data:image/[^"]*"', '""', page)
    assert not re.search(r"https?:|//\w|@import|url\(|<link|<iframe|\bfetch\(", outside)
    assert not re.search(r"""(src|href)\s*=\s*["'][^"']""", outside)
    assert page.count("data:image/png") == 20 and page.count("data:image/svg+xml") == 1
    for text in (
        "mechanism &lt;3&gt;",
        "cannot serve &amp; be",
        "model.dim=8",
        "30.15 ± 1.91",
        "n^2.00",
        "model.encoder_self=kind7",
    ):
        assert text in page, text
    assert "mechanism <3>" not in page
    assert "data:image" not in write_page(document(), pictures=False)


def test_csv_has_plain_numbers() -> None:
    first, *_, last = csv.DictReader(io.StringIO(write_csv(document())))
    assert float(first["quality"]) == pytest.approx(30.15)
    assert float(first["quality_low"]) < 30 < float(first["quality_high"])
    assert (first["per_second"], first["growth_memory"], first["error"]) == ("10000.0", "2.0", "")
    assert (last["quality"], last["error"]) == ("", "cannot serve & be")


def test_reports_are_drawn_again_from_results(tmp_path: Path) -> None:
    files = write_report(document(4), tmp_path / "one")
    assert sorted(file.name for file in files) == ["chart.png", "chart.svg", "report.html", "results.json", "table.csv"]
    again = write_report(read_results(tmp_path / "one" / "results.json"), tmp_path / "two")
    for one, other in zip(files, again, strict=True):
        assert one.stat().st_size > 100
        if one.suffix in (".json", ".csv"):
            assert one.read_bytes() == other.read_bytes()
    assert json.loads((tmp_path / "two" / "results.json").read_text())["format"] == 1
    for text in ("{}", "[", "[1]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DataError, match="does not contain results"):
            read_results(tmp_path / "bad.json")


def test_floors_and_ranks_are_shown() -> None:
    found = document(3)
    found["floors"] = {"most frequent label": 25.5}
    for row, place in zip(found["entries"], ([1, 2], [1, 2], [3, 3]), strict=True):
        row["rank"] = place
    page = write_page(found, pictures=False)
    assert "floors without a neural network: most frequent label 25.50" in page
    assert page.count('<td data-value="1">1–2</td>') == 2 and '<td data-value="3">3</td>' in page
    assert write_csv(found).splitlines()[0].count("rank_") == 2
