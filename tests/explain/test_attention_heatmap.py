"""Pictures of attention: a scale, labels that do not touch each other, and upright digits."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from weft.explain import attention_heatmap as picture
from weft.explain.attention_heatmap import View, draw, elided


def drawn(rows: list[str], columns: list[str], monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The figure that `draw` saves."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *given: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *given, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    weights = np.random.default_rng(0).random((len(rows), len(columns))).astype(np.float32) * 0.4
    draw(View("cross", weights, rows, columns), io.BytesIO(), dpi=50)
    return figures[0]


def test_the_colours_have_a_scale_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(["a", "b"], ["c", "d", "e"], monkeypatch)
    assert len(figure.axes) == 2 and figure.axes[1].get_ylabel() == "weight"
    numbers = [float(text.get_text()) for text in figure.axes[1].get_yticklabels()]
    assert numbers[0] == 0 and len(numbers) >= 3 and max(numbers) <= 0.5


def test_digits_stand_upright_and_only_long_labels_are_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(list("2026"), [*"Dienstag, 3. März 2026", "Donaudampfschiff"], monkeypatch)
    turned = {text.get_text(): text.get_rotation() for text in figure.axes[0].get_xticklabels()}
    assert all(turned[character] == 0 for character in "Dg,36")
    assert turned["Donaudampfschiff"] == 90
    assert all(text.get_rotation() == 0 for text in figure.axes[0].get_yticklabels())


@pytest.mark.parametrize("count", [2, 13, 150])
def test_labels_do_not_touch_and_stay_inside(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"▁piece{number}" for number in range(count - 1)] + ["▁" + "verylong" * 10]
    figure = drawn(names, names, monkeypatch)
    for labels, low, high in ((figure.axes[0].get_xticklabels(), "x0", "x1"), (figure.axes[0].get_yticklabels(), "y0", "y1")):
        boxes = sorted((text.get_window_extent() for text in labels if text.get_text()), key=lambda box: getattr(box, low))
        assert 2 <= len(boxes) <= count
        assert all(getattr(one, high) <= getattr(other, low) + 1 for one, other in pairwise(boxes))
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1 for box in boxes)


def test_long_names_lose_their_middle() -> None:
    assert elided("short") == "short"
    assert elided("a" * 30 + "b" * 30) == "a" * 12 + "…" + "b" * 11
    assert len(elided("x" * 99)) == picture.LONGEST
