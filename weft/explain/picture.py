"""Attention as a picture: what was looked at along the top, what looked down the side.

Right-to-left text runs from the right along the top; matplotlib joins its letters from version 3.11 on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.batch import BOS, SPECIALS
from weft.errors import ConfigError
from weft.explain.explanation import Explanation, Look, Use
from weft.explain.fonts import fonts_for
from weft.explain.text import shown
from weft.inference.predictor import Prediction

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
    from_right: bool = False


SIDES = {"encoder": ("read", "read"), "cross": ("written", "read"), "causal": ("written", "written before")}


def view_of(
    explanation: Explanation,
    use: Use = "cross",
    *,
    layer: int | None = None,
    head: int | Literal["mean", "max"] = "mean",
    words: bool = False,
) -> View:
    """One picture of an explanation. `layer` and `head` count from 1; without a layer it is the mean of all layers."""
    looks = explanation.views(use)
    if not looks:
        raise ConfigError(f"{explanation.model} has nothing to draw for {use}; it has {_uses(explanation)}")
    if layer is not None and not 1 <= layer <= len(looks):
        raise ConfigError(f"there is no layer {layer}: {use} has {len(looks)}, counted from 1")
    chosen = looks if layer is None else [looks[layer - 1]]
    alike = [look for look in chosen if look.weights.shape[1:] == chosen[0].weights.shape[1:]]
    rows, columns = explanation.sides(alike[0])
    weights = np.mean([_one_head(explanation.joined(look) if words else look.weights, head) for look in alike], axis=0)
    names = [side.names if words else [shown(token) for token in side.tokens] for side in (rows, columns)]
    return View(_title(use, alike, head), weights, names[0], names[1], SIDES[use], columns.rtl)


def _one_head(weights: Weights, head: int | Literal["mean", "max"]) -> Weights:
    """[rows, columns] of [H, rows, columns]."""
    if head == "mean" or head == "max":
        joined: Weights = weights.mean(0) if head == "mean" else weights.max(0)
        return joined
    if not 1 <= head <= len(weights):
        raise ConfigError(f"there is no head {head}: there are {len(weights)}, counted from 1")
    return weights[head - 1]


def _title(use: Use, looks: list[Look], head: int | str) -> str:
    layers = looks[0].title if len(looks) == 1 else f"{len(looks)} layers"
    return f"{use}, {layers}, {head if isinstance(head, str) else f'head {head}'}"


def _uses(explanation: Explanation) -> str:
    return " and ".join(dict.fromkeys(look.use for look in explanation.looks)) or "nothing"


def cross_attention(found: Prediction) -> Weights:
    """[target tokens, source tokens]: how much each written token looked at each read one, over all layers and heads."""
    mean = _mean(found, lambda name: ".cross" in name)
    if mean is None:
        raise ConfigError(
            "this translation has no cross-attention to draw: translate with attention=True, by a model that shows weights"
        )
    return mean


def views(found: Prediction) -> list[View]:
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


def draw_attention(found: Prediction, path: str | Path) -> None:
    """Writes a heat map of the cross-attention as PNG, SVG or PDF, by the path's ending."""
    draw(View("cross", cross_attention(found), found.tokens, found.source_tokens), path)


def draw(view: View, file: str | Path | IO[bytes], dpi: int = 150, warn: Callable[[str], None] | None = None) -> None:
    """Writes a heat map: to a path by its ending, to an open file as PNG. `warn` is told of glyphs that no font has."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = view.weights.shape
    wide, high = (
        min(30.0, least + (0.28 if size <= MOST_TICKS else 0.05) * size) for size, least in ((columns, 1.5), (rows, 1.2))
    )
    families, missing = fonts_for("".join([*view.rows, *view.columns]))
    if missing and warn is not None:
        warn(f"no font on this machine has {missing!r}: boxes are drawn; install one that does, for example of the Noto fonts")
    figure = Figure(figsize=(wide, high), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(view.weights, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    # A token may hold a dollar sign, which would begin a formula.
    looks: dict[str, Any] = {"fontfamily": families, "parse_math": False}
    if columns <= MOST_TICKS:
        names, turned = [shown(token) for token in view.columns], 90 if columns > 12 else 0
        axes.set_xticks(range(columns), names, rotation=turned, **looks)
    if rows <= MOST_TICKS:
        axes.set_yticks(range(rows), [shown(token) for token in view.rows], **looks)
    if view.from_right:
        axes.invert_xaxis()
    axes.xaxis.tick_top()
    axes.set_xlabel(view.sides[1])
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(view.sides[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # it was said above, and better
        figure.savefig(file, dpi=dpi)


def _mean(found: Prediction, chosen: Callable[[str], bool]) -> Weights | None:
    """[rows, columns]: over the layers that are chosen by name and their heads. None where there are none of one shape."""
    layers = [weights.mean(0) for name, weights in found.attention.items() if chosen(name)]
    if not layers or len({layer.shape for layer in layers}) > 1:
        return None
    mean: Weights = np.mean(layers, axis=0)
    return mean
