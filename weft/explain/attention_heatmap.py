"""Heat maps of attention weights: keys along the top, queries down the side.

Right-to-left text along the top starts at the right. Joining its letters needs matplotlib 3.11 or later.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from rich.cells import cell_len

from weft.attention.base import View as Shown
from weft.data.batch import BOS, SPECIALS
from weft.decoding.predictor import Prediction
from weft.errors import ConfigError
from weft.explain.explanation import SIDES, Explanation, Weights, shown
from weft.explain.figures import empty_figure, save_figure
from weft.explain.html_page import Pixels, image, notes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Head = int | Literal["mean", "max"]
CELL, LEAST, ROOM = 0.28, 1.0, 22.0
"""Width of a cell, and the least and most that all cells of a row or column take together, in inches."""

SMALLEST, LARGEST = 6.0, 10.0
"""Sizes of a label in points."""

LONGEST = 24
"""Characters of a label."""

FIRST = "DejaVu Sans"
"""Comes with matplotlib; covers Latin, Greek, Cyrillic, Hebrew, Arabic, Armenian and Georgian."""

NO_FONT = "Last Resort"
"""A font that draws a box for every character."""


@dataclass(frozen=True)
class View:
    """One heat map: weights [rows, columns], the tokens along both axes, and the names of the axes (`sides`)."""

    title: str
    weights: Weights
    rows: list[str]
    columns: list[str]
    sides: tuple[str, str] = ("target", "source")
    from_right: bool = False


def view_of(
    explanation: Explanation, use: Shown = "cross", *, layer: int | None = None, head: Head = "mean", words: bool = False
) -> View:
    """Returns one heat map of an explanation. `layer` and `head` count from 1; the default layer is the mean of all."""
    maps = explanation.views(use)
    if not maps:
        uses = " and ".join(dict.fromkeys(each.use for each in explanation.maps)) or "nothing"
        raise ConfigError(f"{explanation.model} has nothing to draw for {use}; it has {uses}")
    if layer is not None and not 1 <= layer <= len(maps):
        raise ConfigError(f"there is no layer {layer}: {use} has {len(maps)}, counted from 1")
    selected = maps if layer is None else [maps[layer - 1]]
    same_shape = [each for each in selected if each.weights.shape[1:] == selected[0].weights.shape[1:]]
    rows, columns = explanation.sides(same_shape[0])
    heads = [_one_head(explanation.joined(each) if words else each.weights, head) for each in same_shape]
    names = [side.names if words else [shown(token) for token in side.tokens] for side in (rows, columns)]
    layers = same_shape[0].title if len(same_shape) == 1 else f"{len(same_shape)} layers"
    title = f"{use}, {layers}, {head if isinstance(head, str) else f'head {head}'}"
    return View(title, np.mean(heads, axis=0), names[0], names[1], SIDES[use], columns.rtl)


def _one_head(weights: Weights, head: Head) -> Weights:
    """Selects or combines heads: [rows, columns] from [H, rows, columns]."""
    if head == "mean" or head == "max":
        joined: Weights = weights.mean(0) if head == "mean" else weights.max(0)
        return joined
    if not 1 <= head <= len(weights):
        raise ConfigError(f"there is no head {head}: there are {len(weights)}, counted from 1")
    return weights[head - 1]


def cross_attention(prediction: Prediction) -> Weights:
    """Returns [target tokens, source tokens]: cross-attention weights, averaged over all layers and heads."""
    mean = mean_attention(prediction, "cross")
    if mean is None:
        raise ConfigError(
            "this translation has no cross-attention weights; translate with attention=True and a model that has them"
        )
    return mean


def views(prediction: Prediction) -> list[View]:
    """Returns a heat map for each kind of attention in a translation or label: encoder, cross, decoder and pooling."""
    source, target = prediction.source_tokens, prediction.tokens
    fed = [SPECIALS[BOS], *target[:-1]]
    pooled = prediction.attention.get("pooling")
    vectors = [str(row + 1) for row in range(0 if pooled is None else len(pooled))]
    candidates = [
        ("encoder", mean_attention(prediction, "encoder"), source, source, SIDES["encoder"]),
        ("cross", mean_attention(prediction, "cross"), target, source, SIDES["cross"]),
        ("decoder", mean_attention(prediction, "causal"), target, fed, SIDES["causal"]),
        ("target", mean_attention(prediction, "target"), target, target, SIDES["target"]),
        ("pooling", pooled, vectors, source, ("vector", "source")),
    ]
    return [
        View(title, weights, rows, columns, sides)
        for title, weights, rows, columns, sides in candidates
        if weights is not None and weights.shape == (len(rows), len(columns))
    ]


def draw_attention(prediction: Prediction, path: str | Path) -> None:
    """Writes a heat map of the cross-attention as PNG, SVG or PDF, depending on the file suffix."""
    draw(View("cross", cross_attention(prediction), prediction.tokens, prediction.source_tokens), path)


def draw(view: View, file: str | Path | IO[bytes], dpi: int = 150, warn: Callable[[str], None] | None = None) -> None:
    """Writes a heat map: to a path in the format of its suffix, to an open file as PNG. `warn` reports missing glyphs."""
    left, top = _labels(view.rows), _labels(view.columns)
    sides = [max(each, 0.2) for each in (left.longest, top.longest if top.rotated else 0)]
    figure = empty_figure(1.6 + sides[0] + top.inches, 0.8 + sides[1] + left.inches, dpi)
    families, missing = fonts_for("".join([*view.rows, *view.columns]))
    if missing and warn is not None:
        warn(f"no installed font has {missing!r}, so boxes are drawn instead; install a font that does, such as a Noto font")
    axes = figure.subplots()
    image = axes.imshow(view.weights, cmap="Blues", vmin=0, vmax=max(1e-6, float(view.weights.max())), aspect="auto")
    _add_scale(figure, axes, image)
    # A dollar sign in a token must not start a formula.
    style: dict[str, Any] = {"fontfamily": families, "parse_math": False}
    axes.xaxis.tick_top()
    axes.set_xticks(top.places, top.names, fontsize=top.size, **style)
    axes.set_yticks(left.places, left.names, fontsize=left.size, **style)
    for text, name in zip(axes.get_xticklabels(), top.names, strict=True):
        text.set_rotation(90 if top.width(name) > top.cell else 0)
    if view.from_right:
        axes.invert_xaxis()
    axes.set_xlabel(view.sides[1])
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(view.sides[0])
    axes.tick_params(length=0)
    axes.spines[:].set_color("#bbbbbb")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # reported above, with advice
        save_figure(figure, file, dpi=dpi)


def _add_scale(figure: Figure, axes: Axes, image: AxesImage) -> None:
    """Adds a colour bar with the weights that the colours stand for."""
    bar = figure.colorbar(image, ax=axes, fraction=0.15, aspect=14, shrink=min(1.0, 2.4 / figure.get_figheight()), pad=0.02)
    bar.set_label("weight", fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.ax.locator_params(nbins=5)
    bar.outline.set_visible(False)


@dataclass(frozen=True)
class Labels:
    """Labels along an axis of `inches`: the places and names of every first, second, … token, their size in points, and the
    inches that each of them has."""

    places: range
    names: list[str]
    size: float
    cell: float
    inches: float

    def width(self, name: str) -> float:
        """The width of a label in inches, roughly."""
        return cell_len(name) * self.size * 0.65 / 72

    @property
    def longest(self) -> float:
        return max(map(self.width, self.names))

    @property
    def rotated(self) -> bool:
        """Whether a label along the top does not fit its cell. Those that do stand upright."""
        return self.longest > self.cell


def _labels(tokens: Sequence[str]) -> Labels:
    """Labels that do not touch each other. If cells are too narrow for all tokens, only every second, third, … has one."""
    cell = max(min(CELL, ROOM / len(tokens)), LEAST / len(tokens))
    every = math.ceil(SMALLEST * 1.3 / (72 * cell))
    size = min(LARGEST, max(SMALLEST, 0.75 * 72 * cell * every))
    places = range(0, len(tokens), every)
    names = [elided(shown(tokens[place])) for place in places]
    return Labels(places, names, size, cell * every, cell * len(tokens))


def elided(name: str) -> str:
    """A label of at most LONGEST characters; a longer one loses its middle."""
    kept = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:kept]}…{name[-kept + 1 :]}"


def mean_attention(prediction: Prediction, use: Shown) -> Weights | None:
    """Returns [rows, columns]: the mean over layers of one use and their heads; None without layers, or if shapes differ."""
    layers = [weights.mean(0) for name, weights in prediction.attention.items() if prediction.uses.get(name) == use]
    if not layers or len({layer.shape for layer in layers}) > 1:
        return None
    mean: Weights = np.mean(layers, axis=0)
    return mean


def fonts_for(text: str) -> tuple[list[str], str]:
    """Returns font families for a text, in order of preference, and the characters that no font has."""
    from matplotlib.font_manager import FontEntry, findfont, fontManager

    missing = {character for character in text if character.isprintable() and not character.isspace()}
    missing -= _glyphs(findfont(FIRST))
    families = [FIRST]

    def distance(entry: FontEntry) -> tuple[bool, int]:
        return entry.style != "normal", abs(entry.weight - 400) if isinstance(entry.weight, int) else 0

    for entry in sorted(fontManager.ttflist, key=distance):
        usable = missing and entry.name not in families and not entry.name.startswith(NO_FONT)
        if usable and missing & _glyphs(entry.fname):
            families.append(entry.name)
            missing -= _glyphs(entry.fname)
    return families, "".join(sorted(missing))


@cache
def _glyphs(path: str) -> frozenset[str]:
    """Returns the characters that a font file has glyphs for; empty if the file cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()


DARKEST = 215
"""The part of a place without attention that is hidden on a page that explains a caption, of 255."""


def shaded_pictures(pixels: Pixels, prediction: Prediction) -> str:
    """A picture [3, S, S], and for each token the picture, dark where there is no attention (mean of all layers and heads)."""
    picture = image(pixels.transpose(1, 2, 0), "the picture")
    weights = mean_attention(prediction, "cross")
    if weights is None:
        return f"<figure class=picture>{picture}</figure>\n{notes(['the decoder shows no attention weights'])}"
    side = int(weights.shape[-1] ** 0.5)
    figures = [f"<figure class=picture>{picture}<figcaption></figcaption></figure>\n"]
    for token, row in zip(prediction.tokens, weights[:, : side * side], strict=True):
        shade = np.zeros((side, side, 4), np.uint8)
        shade[..., 3] = (DARKEST * (1 - row / max(float(row.max()), 1e-9))).reshape(side, side)
        over = image(shade, f"attention of {token}")
        figures.append(f"<figure class=picture>{picture}{over}<figcaption>{escape(token)}</figcaption></figure>\n")
    return "".join(figures)


def spectrogram_rows(frames: Weights, seconds: float, prediction: Prediction) -> str:
    """The spectrogram of frames [T, M], and below it where each token was heard.

    That is by attention, the mean of all layers and heads, and by CTC.
    """
    views = {"attention": mean_attention(prediction, "cross")}
    if "ctc" in prediction.attention:
        views["CTC"] = prediction.attention["ctc"][0]
    return sound_rows(frames, seconds, prediction.tokens, {name: each for name, each in views.items() if each is not None})


def sound_rows(frames: Weights, seconds: float, tokens: Sequence[str], views: Mapping[str, Weights]) -> str:
    """The spectrogram of frames [T, M], and below it, for each view and token, weights over the same time, [tokens, steps]."""
    low, high = float(frames.min()), float(frames.max())
    spectrum = (255 * (frames.T[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
    rows = f"<tr><th>{seconds:.2f} s</th><td>{image(spectrum, 'spectrogram', kind='wide')}</td></tr>\n"
    for name, weights in views.items():
        for token, row in zip(tokens, weights):
            shade = (255 * row / max(float(row.max()), 1e-9)).astype(np.uint8)[None]
            line = image(shade, f"{name} of {token}", kind="wide")
            rows += f"<tr><th>{escape(shown(token))} <small>{name}</small></th><td>{line}</td></tr>\n"
    return f"<table class=sound>{rows}</table>\n"
