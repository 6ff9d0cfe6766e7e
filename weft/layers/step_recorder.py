"""Records what the parts of a model compute, step by step: each value with a name, an axis for each dimension, and a formula.

A part calls `record` once for each step, and nothing else: `weft.explain.inside` shows the steps of any part that does. Linear
layers, norms and embeddings are recorded by themselves. While nobody listens, `record` returns at once.

A formula says how a value follows from its operands, cell by cell: `sum(q * k, channel)`, `softmax(scores, key)`. Axes of the
same name belong together. `weft.explain.formulas` has the functions. A step whose formula is empty may name operands as well:
then they are what it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

CALLS = ("query", "token", "hop")
"""Axes along which the values of several calls are joined, as of a decoder that takes one step after the other."""

Operand = tuple[Tensor, str]
"""A value that a formula reads, and its axes: (q, "row head query channel")."""


@dataclass
class RecordedStep:
    """One step. values: of each call · operands: those of each call, by the names that the formula uses · weights: those of
    them that are weights of the model · automatic: recorded because of the type of the layer, not by the part itself."""

    name: str
    axes: tuple[str, ...]
    formula: str
    values: list[Tensor] = field(default_factory=list)
    operands: dict[str, tuple[list[Tensor], tuple[str, ...]]] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    automatic: bool = False

    def value(self) -> Tensor:
        """The values of all calls, joined along an axis of `CALLS`; without such an axis, that of the last call."""
        return _joined(self.values, self.axes)

    def operand(self, name: str) -> Operand:
        values, axes = self.operands[name]
        return _joined(values, axes), " ".join(axes)

    def continued_by(self, formula: str, axes: tuple[str, ...], value: Tensor, given: Mapping[str, Operand]) -> bool:
        """Whether a value can be that of a further call, which reads the same operands where calls are not joined."""
        place = _joining(axes)
        sizes = [list(each.shape) for each in (value, self.values[-1])]
        if place is not None:
            for each in sizes:
                each[place] = 0
        same = [
            torch.equal(operand, self.operands[name][0][-1])
            for name, (operand, its_axes) in given.items()
            if _joining(its_axes.split()) is None and name in self.operands
        ]
        return (formula, axes) == (self.formula, self.axes) and sizes[0] == sizes[1] and all(same)


class StepRecorder:
    """The steps of a model by name, in the order of their first call. A step is named after the module that computes it."""

    def __init__(self, model: nn.Module) -> None:
        self.steps: dict[str, RecordedStep] = {}
        self.names = {module: name for name, module in model.named_modules()}
        self.scopes: list[str] = []
        self.first: str | None = None
        self.thread = get_ident()
        self._weights = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
        self._explained: set[int] = set()
        self._automatic: dict[str, int] = {}

    def add(
        self,
        name: str,
        value: Tensor,
        axes: str,
        formula: str,
        scope: str,
        given: Mapping[str, Operand | float],
        *,
        automatic: bool = False,
    ) -> None:
        """Adds one call of a step. scope: the name of its module · given: the operands."""
        full, names = ".".join(filter(None, (scope, name))), tuple(axes.split())
        assert len(names) == value.dim(), f"{full}: {value.dim()} dimensions and the axes {axes}"
        kept = {key: each for key, each in given.items() if isinstance(each, tuple)}
        number, chosen = 1, full
        while chosen in self.steps and not self.steps[chosen].continued_by(formula, names, value, kept):
            number += 1
            chosen = f"{full} {number}"
        step = self.steps.setdefault(chosen, RecordedStep(chosen, names, formula, automatic=automatic))
        step.values.append(value.detach().clone())
        for each, operand in given.items():
            if isinstance(operand, tuple):
                tensor, its_axes = operand
                assert tensor.dim() == len(its_axes.split()), f"{full}: {each} has {tensor.dim()} dimensions, not {its_axes}"
                step.operands.setdefault(each, ([], tuple(its_axes.split())))[0].append(self._kept(tensor, automatic))
                if tensor.untyped_storage().data_ptr() in self._weights:
                    step.weights.add(each)
            else:
                step.constants[each] = operand

    def _kept(self, operand: Tensor, automatic: bool) -> Tensor:
        """A copy of a value that may change; weights stay where they are."""
        if (place := operand.untyped_storage().data_ptr()) not in self._weights:
            return operand.detach().clone()
        if not automatic:
            self._explained.add(place)
        return operand.detach()

    def found(self) -> list[RecordedStep]:
        """All steps, without those of layers whose weights are in the formula of a part."""
        return [step for name, step in self.steps.items() if self._automatic.get(name) not in self._explained]

    def enter(self, module: nn.Module, _: Any) -> None:
        name = self.names[module]
        if not self.scopes:
            self.first = name if self.first is None else self.first
            if name == self.first:  # the model, or its encoder, begins anew
                self.steps.clear()
        inner = isinstance(module, StepsOfCaller) and self.scopes
        self.scopes.append(self.scopes[-1] if inner else name)

    def leave(self, module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            self._automatic[self.names[module]] = module.weight.untyped_storage().data_ptr()
            _record_layer(self, module, given[0], output)
        self.scopes.pop()


class StepsOfCaller:
    """A module whose steps are named as those of the module that calls it, because it is a part of its formula."""


_recorder: StepRecorder | None = None


def recording() -> bool:
    """Whether anybody listens: whether values should be computed that are only shown."""
    return _recorder is not None and _recorder.thread == get_ident()


def record(
    name: str, value: Tensor, axes: str, formula: str = "", of: nn.Module | None = None, /, **operands: Operand | float
) -> None:
    """Records a step of the module that is being called, or of the module `of`.

    axes: a word for each dimension. `row` is that of the batch; attention has `query`, `key` and `head`, other values have
    `token` for positions, and a vector has `channel`, or `input` where a sum runs over it.
    """
    if _recorder is not None and _recorder.thread == get_ident():
        scope = _recorder.names.get(of, "") if of is not None else _recorder.scopes[-1] if _recorder.scopes else ""
        _recorder.add(name, value, axes, formula, scope, operands)


def steps_under(name: str | None) -> AbstractContextManager[None]:
    """Inside this context steps are recorded under a further name, or, if it is None, not at all."""
    return _under(name) if recording() else nullcontext()


@contextmanager
def _under(name: str | None) -> Iterator[None]:
    global _recorder
    recorder = _recorder
    assert recorder is not None
    if name is None:
        _recorder = None
    else:
        recorder.scopes.append(".".join(filter(None, (recorder.scopes[-1] if recorder.scopes else "", name))))
    try:
        yield
    finally:
        _recorder = recorder
        if name is not None:
            recorder.scopes.pop()


@contextmanager
def record_steps(model: nn.Module) -> Iterator[StepRecorder]:
    """Inside this context everything that the parts of `model` record is kept, of its last run."""
    global _recorder
    recorder, before = StepRecorder(model), _recorder
    with ExitStack() as stack:
        for module in recorder.names:
            stack.callback(module.register_forward_pre_hook(recorder.enter).remove)
            stack.callback(module.register_forward_hook(recorder.leave, always_call=True).remove)
        _recorder = recorder
        try:
            yield recorder
        finally:
            _recorder = before


def record_linear(x: Tensor, output: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Records the output of a linear layer that is no `nn.Linear`."""
    if recording():
        assert _recorder is not None
        _record_linear(_recorder, x, output, weight, bias)


def _record_layer(recorder: StepRecorder, layer: nn.Linear | nn.LayerNorm | nn.Embedding, x: Tensor, y: Tensor) -> None:
    if type(layer) is nn.Linear:
        return _record_linear(recorder, x, y, layer.weight, layer.bias)
    if y.dim() not in (2, 3):
        return None
    name, y = recorder.scopes[-1], _with_tokens(y)
    if not isinstance(layer, nn.LayerNorm):  # an embedding, or a layer with an adapter
        return recorder.add("", y, "row token channel", "", name, {}, automatic=True)
    given: dict[str, Operand | float] = {"x": (_with_tokens(x), "row token channel"), "epsilon": layer.eps}
    formula = "standardize(x, channel, epsilon)"
    if layer.elementwise_affine:
        given |= {"gain": (layer.weight, "channel")} | ({} if layer.bias is None else {"bias": (layer.bias, "channel")})
        formula += " * gain" + ("" if layer.bias is None else " + bias")
    return recorder.add("", y, "row token channel", formula, name, given, automatic=True)


def _record_linear(recorder: StepRecorder, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if y.dim() not in (2, 3):
        return
    given: dict[str, Operand | float] = {"x": (_with_tokens(x), "row token input"), "W": (weight, "channel input")}
    if bias is not None:
        given["b"] = (bias, "channel")
    formula = "sum(W * x, input)" + ("" if bias is None else " + b")
    recorder.add("", _with_tokens(y), "row token channel", formula, recorder.scopes[-1], given, automatic=True)


def _with_tokens(x: Tensor) -> Tensor:
    """[B, D] as [B, 1, D]."""
    return x[:, None] if x.dim() == 2 else x


def _joined(values: list[Tensor], axes: tuple[str, ...]) -> Tensor:
    place = _joining(axes)
    return values[-1] if place is None or len(values) == 1 else torch.cat(values, place)


def _joining(axes: Sequence[str]) -> int | None:
    """The place of the axis along which calls are joined."""
    return next((axes.index(name) for name in CALLS if name in axes), None)
