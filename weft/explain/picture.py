"""Attention as a picture: what was looked at along the top, what looked down the side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from weft.batch import BOS, SPECIALS
from weft.errors import ConfigError
from weft.tasks.decoding import Translation

Weights = NDArray[np.float32]

MOST_TICKS = 80
"""Tokens that are written along a side; of longer texts none is, since nobody could read them."""


@dataclass(frozen=True)
class View:
    """One picture: weights [rows, columns], the mean of layers and heads, with the tokens of both sides and their names."""

    title: str
    weights: Weights
    rows: list[str]
    columns: list[str]
    sides: tuple[str, str] = ("written", "read")


def cross_attention(found: Translation) -> Weights:
    """[target tokens, source tokens]: how much each written token looked at each read one, over all layers and heads."""
    mean = _mean(found, lambda name: ".cross" in name)
    if mean is None:
        raise ConfigError(
            "this translation has no cross-attention to draw: translate with attention=True, by a model that shows weights"
        )
    return mean


def views(found: Translation) -> list[View]:
    """Every kind of looking that a translation (or a label) has weights of: among what was read, at it, at what was written."""
    read, written = found.source_tokens, found.tokens
    fed = [SPECIALS[BOS], *written[:-1]]
    cross = _mean(found, lambda name: ".cross" in name)
    within = _mean(found, lambda name: name.startswith("encoder."))
    pooled = found.attention.get("pooling")
    before = _mean(found, lambda name: name.startswith("decoder.") and ".cross" not in name)
    possible = [
        ("encoder", within, read, read, ("read", "read")),
        ("cross", cross, written, read, ("written", "read")),
        ("decoder", before, written, fed, ("written", "written before")),
        ("pooling", pooled, [str(row + 1) for row in range(0 if pooled is None else len(pooled))], read, ("vector", "read")),
    ]
    return [
        View(title, weights, rows, columns, sides)
        for title, weights, rows, columns, sides in possible
        if weights is not None and weights.shape == (len(rows), len(columns))
    ]


def draw_attention(found: Translation, path: str | Path) -> None:
    """Writes a heat map of the cross-attention as PNG, SVG or PDF, by the path's ending."""
    draw(View("cross", cross_attention(found), found.tokens, found.source_tokens), path)


def draw(view: View, file: str | Path | IO[bytes], dpi: int = 150) -> None:
    """Writes a heat map: to a path by its ending, to an open file as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = view.weights.shape
    wide, high = (
        min(30.0, least + (0.28 if size <= MOST_TICKS else 0.05) * size) for size, least in ((columns, 1.5), (rows, 1.2))
    )
    figure = Figure(figsize=(wide, high), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(view.weights, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    if columns <= MOST_TICKS:
        axes.set_xticks(range(columns), [_shown(token) for token in view.columns], rotation=90 if columns > 12 else 0)
    if rows <= MOST_TICKS:
        axes.set_yticks(range(rows), [_shown(token) for token in view.rows])
    axes.xaxis.tick_top()
    axes.set_xlabel(view.sides[1])
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(view.sides[0])
    figure.savefig(file, dpi=dpi)


def _mean(found: Translation, chosen: Callable[[str], bool]) -> Weights | None:
    """[rows, columns]: over the layers that are chosen by name and their heads. None where there are none of one shape."""
    layers = [weights.mean(0) for name, weights in found.attention.items() if chosen(name)]
    if not layers or len({layer.shape for layer in layers}) > 1:
        return None
    mean: Weights = np.mean(layers, axis=0)
    return mean


def _shown(token: str) -> str:
    return {" ": "␣", "</s>": "end", "<s>": "begin"}.get(token, token)
