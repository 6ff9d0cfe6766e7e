"""The steps of a prediction as data of a page, and as text.

A page holds what a reader can look at: the first channels of each vector with its norm, mean and deviation, the first tokens of
long texts, and of the vocabulary what is likely somewhere. `Inside` holds everything.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from weft.explain.formulas import tree
from weft.explain.inside import Inside, Step, StepOperand, Values

CHANNELS = 16
"""Channels of a vector that are shown."""

LIKELY, WORDS = 3, 24
"""Of the vocabulary, the likeliest tokens at each position are shown, and this many in all."""

TOKENS = (48, 32, 24, 16, 12, 8, 4)
"""Tokens of a text that are shown: as many as fit into the page."""

BUDGET = 3_400_000
"""The largest size of the data of all predictions on a page, in bytes."""

POSITIONS = frozenset({"query", "key", "token", "hop", "head", "slot", "fact", "back", "move"})
"""Axes that are not channels of a vector."""

KEPT_BITS = np.uint32(0xFFFFFC00)
"""Numbers are stored with 13 binary digits, about four decimal ones."""

WORDS_OF_PARTS = {
    "front": "embedding",
    "mixer": "self-attention",
    "cross": "cross-attention",
    "network": "feed-forward",
    "around_mixer": "around self-attention",
    "around_cross": "around cross-attention",
    "around_network": "around feed-forward",
    **dict.fromkeys(("attention", "heads", "head", "stack", "layers", "blocks", "score"), ""),
}
"""Names of parts of weft's models on a page. Other parts keep their names."""


def part_title(path: str) -> tuple[str, str]:
    """The block and the part of a path: decoder.layers.0.cross is cross-attention in decoder, layer 1."""
    block: list[str] = []
    rest: list[str] = []
    for word in path.split("."):
        if word.isdigit():
            block, rest = [*block, *rest, f"layer {int(word) + 1}"], []
        elif name := WORDS_OF_PARTS.get(word, word.replace("_", " ")):
            (rest if block else block).append(name)
    return ", ".join(block) or "model", ", ".join(rest)


def inside_data(inside: Inside, *, budget: int = BUDGET) -> dict[str, Any]:
    """The data of the page, with as many tokens as fit into the budget."""
    for tokens in TOKENS:
        found = _Selection(inside, tokens).data()
        if len(found["numbers"]) <= budget:
            return found
    return found


def inside_text(inside: Inside) -> str:
    """All steps as text: the name, the formula, where its operands come from, and the numbers that a page shows."""
    selection = _Selection(inside, TOKENS[0])
    return "\n".join(_lines(step, selection) for step in inside.values())


class _Selection:
    """The places along each axis that are shown."""

    def __init__(self, inside: Inside, tokens: int) -> None:
        self.inside, self.tokens, self.words = inside, tokens, _likely(inside)
        self.stored: list[Values] = []
        self.known: dict[tuple[Any, ...], list[Any]] = {}
        self.length = 0

    def places(self, axis: str, size: int) -> Values:
        if axis == "vocabulary":
            return self.words[self.words < size] if len(self.words) else np.arange(min(size, CHANNELS))
        return np.arange(min(size, self.tokens if axis in POSITIONS else CHANNELS))

    def cut(self, values: Values, axes: Sequence[str]) -> Values:
        for place, axis in enumerate(axes):
            if axis != "head":
                values = values.take(self.places(axis, values.shape[place]), place)
        return values

    def store(self, values: Values, axes: Sequence[str]) -> list[Any]:
        """[offset, shape] of an array among all numbers; equal arrays are stored once."""
        cells = np.ascontiguousarray(self.cut(values, axes), dtype=np.float32)
        key = cells.shape, cells.tobytes()
        if key not in self.known:
            self.known[key] = [self.length, list(cells.shape)]
            self.stored.append(cells.reshape(-1))
            self.length += cells.size
        return self.known[key]

    def data(self) -> dict[str, Any]:
        order = {name: number for number, name in enumerate(self.inside)}
        steps = [self._step(step, order) for step in self.inside.values()]
        return {"steps": steps, "stages": list(_stages(self.inside)), "numbers": _packed(self.stored), "count": self.length}

    def _step(self, step: Step, order: Mapping[str, int]) -> dict[str, Any]:
        labels = {
            axis: [step.labels[axis][place] for place in self.places(axis, len(step.labels[axis]))] for axis in step.labels
        }
        return {
            "title": step.title,
            "axes": step.axes,
            "sizes": step.values.shape,
            "labels": labels,
            "values": self.store(step.values, step.axes),
            "summary": self._summary(step),
            "formula": tree(step.formula) if step.formula else None,
            "operands": {name: self._operand(each, order) for name, each in step.operands.items()},
        }

    def _operand(self, operand: StepOperand | float, order: Mapping[str, int]) -> Any:
        if not isinstance(operand, StepOperand):
            return operand
        found: dict[str, Any] = {"axes": operand.axes, "sizes": operand.values.shape, "step": order.get(operand.step, -1)}
        found["weights"] = operand.weights
        if "id" not in operand.axes:  # a whole table of embeddings
            found["values"] = self.store(operand.values, operand.axes)
        return found

    def _summary(self, step: Step) -> list[Any] | None:
        """Norm, mean and deviation of each vector of channels; of masked ones, which are not finite, there are none."""
        if not step.axes or step.axes[-1] != "channel" or not np.isfinite(step.values).all():
            return None
        values = step.values.astype(np.float64)
        columns = np.stack([np.linalg.norm(values, axis=-1), values.mean(-1), values.std(-1)], -1)
        return self.store(columns, [*step.axes[:-1], "statistic"])


def _likely(inside: Inside) -> Values:
    """The ids of the vocabulary that are likely at some position."""
    steps = [step for step in inside.values() if step.axes[-1:] == ("vocabulary",)]
    if not steps:
        return np.arange(0)
    top = np.argsort(-steps[-1].values, axis=-1)[..., :LIKELY]
    return np.array(list(dict.fromkeys(top.swapaxes(0, -1).reshape(-1).tolist()))[:WORDS])


def _stages(inside: Inside) -> Iterator[dict[str, Any]]:
    """Consecutive steps of one part."""
    for part, steps in groupby(enumerate(inside.values()), key=lambda numbered: numbered[1].part):
        block, title = part_title(part)
        yield {"block": block, "part": title, "steps": [number for number, _ in steps]}


def _packed(arrays: Sequence[Values]) -> str:
    """Numbers as deflated bytes in base64: first the lowest byte of each, last the highest."""
    numbers = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    bits = numbers.view(np.uint32)
    rounded = np.where(np.isfinite(numbers), bits + np.uint32(0x200), bits) & KEPT_BITS
    planes = rounded.astype("<u4").view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()


def _lines(step: Step, selection: _Selection) -> str:
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.values.shape, strict=True))
    head = [f"{step.name} [{sizes}]"]
    if step.formula:
        head.append(f"  = {step.formula}")
    for name, each in step.operands.items():
        if isinstance(each, StepOperand):
            origin = each.step or f"{'weights' if each.weights else 'given'} [{', '.join(each.axes)}]"
            head.append(f"    {name}: {origin}")
        else:
            head.append(f"    {name}: {each:g}")
    values = selection.cut(step.values, step.axes)
    names = [_names(step, axis, selection) for axis in step.axes]
    return "\n".join([*head, *_rows(values, names, step.axes)]) + "\n"


def _names(step: Step, axis: str, selection: _Selection) -> list[str]:
    size = step.values.shape[step.axes.index(axis)]
    places = range(size) if axis == "head" else selection.places(axis, size).tolist()
    return [step.labels[axis][place] if axis in step.labels else str(place + 1) for place in places]


def _rows(values: Values, names: Sequence[list[str]], axes: Sequence[str]) -> Iterator[str]:
    """The cells as tables of the last two axes."""
    if values.ndim > 2:
        for place, name in enumerate(names[0]):
            yield f"  {axes[0]} {name}"
            yield from _rows(values[place], names[1:], axes[1:])
        return
    cells = values.reshape(1, -1) if values.ndim < 2 else values
    columns = names[-1] if values.ndim else [""]
    texts = [[f"{cell:d}" if cells.dtype.kind in "iub" else f"{cell:.4f}" for cell in row] for row in cells]
    left = names[0] if values.ndim == 2 else [""]
    width = max([9, *(len(name) + 1 for name in columns), *(len(text) + 1 for row in texts for text in row)])
    room = max(len(name) for name in left) + 2
    yield " " * room + "  " + "".join(name.rjust(width) for name in columns)
    for name, row in zip(left, texts, strict=True):
        yield "  " + name.ljust(room) + "".join(text.rjust(width) for text in row)
