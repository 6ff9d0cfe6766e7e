"""Attention as a picture: what was read along the top, what was written down the side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.errors import ConfigError
from weft.tasks.decoding import Translation


def cross_attention(found: Translation) -> NDArray[np.float32]:
    """[target tokens, source tokens]: how much each written token looked at each read one, over all layers and heads."""
    layers = [weights for name, weights in found.attention.items() if ".cross" in name]
    if not layers:
        raise ConfigError(
            "this translation has no cross-attention to draw: translate with attention=True, by a model that shows weights"
        )
    mean: NDArray[np.float32] = np.mean([weights.mean(0) for weights in layers], axis=0)
    return mean


def draw_attention(found: Translation, path: str | Path) -> None:
    """Writes a heat map of the cross-attention as PNG, SVG or PDF, by the path's ending."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weights = cross_attention(found)
    rows, columns = weights.shape
    figure = Figure(figsize=(min(30, 1.5 + 0.28 * columns), min(30, 1.2 + 0.28 * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks(range(columns), [_shown(token) for token in found.source_tokens], rotation=90 if columns > 12 else 0)
    axes.set_yticks(range(rows), [_shown(token) for token in found.tokens])
    axes.xaxis.tick_top()
    axes.set_xlabel("read")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("written")
    figure.savefig(path, dpi=150)


def _shown(token: str) -> str:
    return {" ": "␣", "</s>": "end"}.get(token, token)
