"""Draws the figures of the course. Every function returns a figure, which a notebook shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

matplotlib.rcParams["font.size"] = 9
BLUE, RED, GREY = "#1f5fa8", "#c0392b", "#8a8f98"
COLOURS = (BLUE, RED, "#2e8b57", "#b8860b", "#7d3c98", GREY)


class Drawing(Figure):
    """A figure that a notebook shows as the last expression of a cell, without pyplot."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=100)
        return picture.getvalue()


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches, and its axes, row by row."""
    figure = Drawing(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def lines(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    *,
    log: bool = False,
    marks: bool = False,
    size: tuple[float, float] = (6.0, 3.0),
) -> Figure:
    """Curves by name, each with its x and y."""
    figure, (axes,) = panels(1, 1, *size)
    for (name, (place, value)), colour in zip(curves.items(), COLOURS):
        axes.plot(place, value, color=colour, label=name, linewidth=1.8, marker="o" if marks else None, markersize=4)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    plain(axes)
    axes.legend(frameon=False)
    return figure


def bars(
    groups: Mapping[str, Sequence[float]], labels: Sequence[str], y: str, size: tuple[float, float] = (6.0, 3.0)
) -> Figure:
    """Bars side by side: one group per label, one colour per name."""
    figure, (axes,) = panels(1, 1, *size)
    width = 0.8 / len(groups)
    for number, ((name, values), colour) in enumerate(zip(groups.items(), COLOURS)):
        axes.bar(
            [place - 0.4 + width * (number + 0.5) for place in range(len(labels))],
            values,
            width * 0.92,
            color=colour,
            label=name,
        )
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel(y)
    plain(axes)
    if len(groups) > 1:
        axes.legend(frameon=False)
    return figure


def matrices(
    given: Mapping[str, Any],
    *,
    columns: int = 4,
    x: str = "",
    y: str = "",
    side: float = 1.7,
    each: bool = True,
    numbers: bool = False,
    ticks: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Figure:
    """Matrices by name as shaded squares. each: every one has a scale of its own; ticks: names of rows and of columns."""
    rows = -(-len(given) // columns)
    figure, axes = panels(rows, min(columns, len(given)), side * min(columns, len(given)) + 0.4, (side + 0.35) * rows)
    for panel, (name, matrix) in zip(axes, given.items()):
        values = matrix.detach().numpy() if hasattr(matrix, "detach") else matrix
        panel.imshow(values, cmap="Blues", aspect="auto", vmin=0, vmax=None if each else 1, interpolation="nearest")
        panel.set_title(name, fontsize=9)
        panel.set_xticks([], [])
        panel.set_yticks([], [])
        if ticks is not None:
            panel.set_yticks(range(len(ticks[0])), ticks[0])
            panel.set_xticks(range(len(ticks[1])), ticks[1])
        if numbers:
            for (row, column), value in _cells(values):
                panel.text(
                    column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.5 else "black", fontsize=8
                )
    for panel in axes[len(given) :]:
        panel.set_visible(False)
    if x:
        figure.supxlabel(x, fontsize=9)
    if y:
        figure.supylabel(y, fontsize=9)
    return figure


def _cells(values: Any) -> list[tuple[tuple[int, int], float]]:
    return [((row, column), float(value)) for row, line in enumerate(values) for column, value in enumerate(line)]


def cones(stacks: Mapping[str, Sequence[Any]], length: int) -> Figure:
    """The tokens that reach the last output of each stack. A layer is a matrix [length, length] of what each token sees."""
    figure, axes = panels(1, len(stacks), 3.6 * len(stacks), 2.4)
    for panel, (name, layers) in zip(axes, stacks.items()):
        lit = {length - 1}
        for height in range(len(layers), 0, -1):
            below = set()
            for place in lit:
                for source in (column for column in range(length) if layers[height - 1][place][column]):
                    panel.plot([source, place], [height - 1, height], color=BLUE, linewidth=0.7, alpha=0.7)
                    below.add(source)
            panel.scatter(
                range(length), [height] * length, s=7, color=[BLUE if place in lit else "#d5d9df" for place in range(length)]
            )
            lit = below
        panel.scatter(range(length), [0] * length, s=7, color=[RED if place in lit else "#d5d9df" for place in range(length)])
        panel.set_title(f"{name}: {len(lit)} tokens", fontsize=9)
        panel.set_yticks(
            range(len(layers) + 1), ["tokens", *(f"layer {layer + 1}" for layer in range(len(layers)))], fontsize=7
        )
        panel.set_xticks([], [])
        panel.spines[:].set_visible(False)
    return figure


def sinusoids(table: Any) -> Figure:
    """A table of positions [position, channel]: blue is −1, red is 1."""
    figure, (axes,) = panels(1, 1, 6.4, 2.9)
    shown = axes.imshow(table, cmap="RdBu_r", aspect="auto", vmin=-1, vmax=1, interpolation="nearest")
    axes.set_xlabel("channel")
    axes.set_ylabel("position")
    figure.colorbar(shown, ax=axes, ticks=[-1, 0, 1])
    return figure


def tree(nodes: Mapping[tuple[str, ...], float], marked: Mapping[str, Sequence[tuple[str, ...]]]) -> Figure:
    """A search tree: texts, as tuples of words, with their probabilities. marked: a panel per name, with the texts it kept."""
    figure, axes = panels(1, len(marked), 3.7 * len(marked), 3.0)
    leaves = [node for node in nodes if not any(other[:-1] == node for other in nodes)]
    height = {leaf: -float(row) for row, leaf in enumerate(leaves)}
    for node in sorted(nodes, key=len, reverse=True):
        below = [height[other] for other in nodes if other[:-1] == node]
        height.setdefault(node, sum(below) / max(len(below), 1))
    for panel, (name, kept) in zip(axes, marked.items()):
        for node, chance in nodes.items():
            colour = BLUE if node in kept else GREY
            start = (len(node) - 1 + 0.55, height[node[:-1]]) if len(node) > 1 else (0.3, sum(height.values()) / len(height))
            panel.plot([start[0], len(node)], [start[1], height[node]], color=colour, linewidth=1.6 if node in kept else 0.7)
            text = f" {node[-1]}  {chance:.2f}"
            panel.text(
                len(node),
                height[node],
                text,
                va="center",
                color=colour,
                fontsize=8,
                weight="bold" if node in kept else "normal",
            )
        panel.set_title(name, fontsize=9)
        panel.set_xlim(0.2, max(map(len, nodes)) + 1.0)
        panel.axis("off")
    return figure


def arrows(vectors: Mapping[str, Sequence[float]], dashed: Sequence[tuple[str, str]] = ()) -> Figure:
    """Vectors of two numbers as arrows from the origin, and dashed lines between the tips of some."""
    figure, (axes,) = panels(1, 1, 4.2, 4.0)
    for (name, (x, y)), colour in zip(vectors.items(), COLOURS):
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8})
        axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", color=colour, fontsize=9)
    for first, second in dashed:
        axes.plot(*zip(vectors[first], vectors[second]), color=GREY, linewidth=0.9, linestyle="--")
    axes.set_xlim(-0.1, 1.4)
    axes.set_ylim(-0.1, 1.2)
    axes.set_aspect("equal")
    axes.grid(alpha=0.25)
    plain(axes)
    return figure


def maps(clouds: Mapping[str, Sequence[tuple[Sequence[str], Any]]]) -> Figure:
    """Words as points: a panel per name, each with one or more groups of words and their points [words, 2]."""
    figure, axes = panels(1, len(clouds), 3.1 * len(clouds), 3.1)
    for panel, (name, groups) in zip(axes, clouds.items()):
        for (words, points), colour, below in zip(groups, (BLUE, RED), (True, False)):
            panel.scatter(*zip(*points), s=14, color=colour)
            for word, point in zip(words, points):
                shift = (3, -9) if below else (3, 3)
                panel.annotate(word, point, xytext=shift, textcoords="offset points", fontsize=8, color=colour)
        panel.set_title(name, fontsize=9)
        panel.set_xlim(-1.6, 1.9)
        panel.set_ylim(-1.6, 1.6)
        panel.set_xticks([], [])
        panel.set_yticks([], [])
    return figure


def rotations(table: Any, pairs: Sequence[int], shift: int, starts: Sequence[int]) -> Figure:
    """Channel pairs of a table of sinusoids as points on circles, and what a shift does to the positions `starts`."""
    figure, axes = panels(1, len(pairs), 2.7 * len(pairs), 2.9)
    for panel, pair in zip(axes, pairs):
        cosine, sine = table[:, 2 * pair + 1].tolist(), table[:, 2 * pair].tolist()
        shown = max(starts) + shift + 1
        panel.scatter(cosine[:shown], sine[:shown], s=8, color=GREY)
        for start, colour in zip(starts, COLOURS):
            for place in (start, start + shift):
                panel.plot([0, cosine[place]], [0, sine[place]], color=colour, linewidth=1.2)
                panel.text(
                    1.13 * cosine[place], 1.13 * sine[place], str(place), color=colour, ha="center", va="center", fontsize=8
                )
            ends = [(0.6 * cosine[place], 0.6 * sine[place]) for place in (start, start + shift)]
            arrow = {"arrowstyle": "-|>", "color": colour, "connectionstyle": "arc3,rad=0.3"}
            panel.annotate("", ends[1], ends[0], arrowprops=arrow)
        panel.set_title(f"channels {2 * pair} and {2 * pair + 1}", fontsize=9)
        panel.set_xlim(-1.3, 1.3)
        panel.set_ylim(-1.3, 1.3)
        panel.set_aspect("equal")
        panel.axis("off")
    return figure
