"""Every step of one prediction, as arrays with named axes, from what the parts of a model record.

`Inside` maps names to steps. A name is the path of a part in the model and what it computes: `decoder.cross.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.attention.core.weight_recorder import record
from weft.errors import ConfigError
from weft.explain.explanation import shown
from weft.explain.formulas import Named, evaluate
from weft.layers.step_recorder import RecordedStep, StepRecorder, record_steps

Values = NDArray[Any]


@contextmanager
def record_inside(model: nn.Module) -> Iterator[StepRecorder]:
    """Inside this context every step of the last run of `model` is recorded, also those of attention weights."""
    with record(model), record_steps(model) as recorder:
        yield recorder


class AxisNames(Protocol):
    """Names for the places along an axis of a step, such as the tokens of a text; None: they are numbered."""

    def __call__(self, step: str, axis: str, size: int) -> Sequence[str] | None: ...


@dataclass(frozen=True)
class TokenNames:
    """Names for the axes of a model that reads one text: its tokens, wherever there are as many places.

    vocabulary: a readable text for each of some ids, if the model writes tokens · labels: of the outputs that a model
    chooses from, along the axis `label`.
    """

    tokens: Sequence[str]
    vocabulary: Callable[[Sequence[int]], list[str]] | None = None
    labels: Sequence[str] = ()

    def __call__(self, step: str, axis: str, size: int) -> Sequence[str] | None:
        if axis == "vocabulary" and self.vocabulary is not None:
            return self.vocabulary(range(size))
        if axis == "label" and size == len(self.labels):
            return self.labels
        fits = axis in ("query", "key", "token") and size == len(self.tokens)
        return list(map(shown, self.tokens)) if fits else None


@dataclass(frozen=True, eq=False)
class StepOperand:
    """An operand of a formula: values with named axes, and the name of the step that computed them, if one did.

    weights: whether they are weights of the model; other operands without a step are given, such as a mask.
    """

    values: Values
    axes: tuple[str, ...]
    step: str = ""
    weights: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """One step.

    name: the path of the part and the name of the value · values, with named axes · formula: how they follow from the operands,
    "" if that is not said · labels: names of the places along an axis, such as tokens.
    """

    name: str
    values: Values
    axes: tuple[str, ...]
    formula: str = ""
    operands: dict[str, StepOperand | float] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """The path of the part that computes it."""
        return self.name.rpartition(".")[0]

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[2]

    def recompute(self) -> Values:
        """The values by the formula, from the operands, in float64."""
        if not self.formula:
            raise ConfigError(f"{self.name} has no formula; it is where something enters, or a part that does not say more")
        named: dict[str, Named | float] = {
            name: each if isinstance(each, float | int) else Named(torch.from_numpy(each.values).double(), each.axes)
            for name, each in self.operands.items()
        }
        values: Values = evaluate(self.formula, named, self.axes).expand(self.values.shape).numpy()
        return values

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.values.shape, strict=True))
        return f"<{self.name} [{sizes}]{f' = {self.formula}' if self.formula else ''}>"


class Inside(Mapping[str, Step]):
    """The steps of one prediction by name, in the order of computation. The end of a name is enough if only one has it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = {step.name: step for step in steps}

    @staticmethod
    def of(recorder: StepRecorder, names: AxisNames | None = None, *, row: int = 0) -> Inside:
        """The steps of one row of what was recorded."""
        found = recorder.found()
        later: dict[tuple[Any, ...], str] = {}
        for recorded in reversed(found):
            later[_content(_of_row(recorded.value(), recorded.axes, row)[0])] = recorded.name
        known: dict[tuple[Any, ...], str] = {}
        steps = []
        for recorded in found:
            steps.append(_step(recorded, {**later, **known}, names, row))
            known[_content(steps[-1].values)] = recorded.name
        return Inside(steps)

    def find(self, ending: str) -> list[Step]:
        """All steps whose names end so: find("cross.weights")."""
        return [step for name, step in self._steps.items() if f".{name}".endswith(f".{ending}")]

    def __getitem__(self, name: str) -> Step:
        if name in self._steps:
            return self._steps[name]
        found = self.find(name)
        if len(found) == 1:
            return found[0]
        if not found:
            raise KeyError(f"{name}: there is no such step; `list(inside)` has all names")
        some = ", ".join(each.name for each in found[:6])
        raise KeyError(f"{name}: {len(found)} steps end so: {some}, …; give more of the name")

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"<Inside: {len(self)} steps>"


def _step(recorded: RecordedStep, known: Mapping[tuple[Any, ...], str], names: AxisNames | None, row: int) -> Step:
    values, axes = _of_row(recorded.value(), recorded.axes, row)
    operands: dict[str, StepOperand | float] = dict(recorded.constants)
    for name in recorded.operands:
        tensor, its_axes = recorded.operand(name)
        cells, kept = _of_row(tensor, tuple(its_axes.split()), row)
        own = name in recorded.weights
        operands[name] = StepOperand(cells, kept, "" if own else known.get(_content(cells), ""), own)
    labels = {}
    for axis, size in zip(axes, values.shape, strict=True):
        found = None if names is None else names(recorded.name, axis, size)
        if found is not None:
            labels[axis] = list(found)
    return Step(recorded.name, values, axes, recorded.formula, operands, labels)


def _of_row(values: Tensor, axes: tuple[str, ...], row: int) -> tuple[Values, tuple[str, ...]]:
    if "row" in axes:
        place = axes.index("row")
        values, axes = values.select(place, min(row, values.size(place) - 1)), tuple(axis for axis in axes if axis != "row")
    half = values.dtype in (torch.bfloat16, torch.float16)
    return np.asarray((values.float() if half else values).detach().cpu()), axes


def _content(values: Values) -> tuple[Any, ...]:
    """A key that arrays of the same numbers share, also in another shape; in the same one if all numbers are equal."""
    cells = values.reshape(-1)
    plain = cells.size > 1 and bool((cells == cells[0]).all())
    return values.shape if plain else (), str(values.dtype), hash(values.tobytes())
