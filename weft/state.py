"""Decoding state: plain trees of tensors, batch first.

A state is a tensor, a dataclass, a dict, a list, a tuple or None, nested at will. Its rows are G sources × K beams, all beams
of a source side by side. A dataclass field marked `shared()` has one row a source instead and is never reordered; one
marked `timed(axis)` has room for tokens to come along that axis. A state class that knows a better way overrides a
function by a method of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

State = Any


def shared(**options: Any) -> Any:
    """A dataclass field with one row a source."""
    return field(metadata={"shared": True}, **options)


def timed(axis: int, **options: Any) -> Any:
    """A dataclass field whose tensor has room for tokens to come along `axis`."""
    return field(metadata={"time": axis}, **options)


@runtime_checkable
class Selects(Protocol):
    def select(self, rows: Tensor, groups: Tensor | None) -> State: ...


@runtime_checkable
class Grows(Protocol):
    def grow(self, room: int) -> State: ...


def select(state: State, rows: Tensor, groups: Tensor | None = None) -> State:
    """Row i of the result is row `rows[i]`.

    With `groups` None no source leaves or moves: rows are reordered, or multiplied, inside their source. Otherwise
    source j of the result is source `groups[j]`.
    """
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, Selects):
        return state.select(rows, groups)
    if is_dataclass(state) and not isinstance(state, type):
        changed = {}
        for part in fields(state):
            value = getattr(state, part.name)
            if not part.metadata.get("shared"):
                changed[part.name] = select(value, rows, groups)
            elif groups is not None:
                changed[part.name] = _map(lambda leaf: leaf.index_select(0, groups), value)
        return replace(state, **changed)
    return _children(lambda child: select(child, rows, groups), state)


def grow(state: State, room: int) -> State:
    """Makes room for `room` tokens in all. Only the search loop calls it."""
    if isinstance(state, Tensor):
        return state
    if isinstance(state, Grows):
        return state.grow(room)
    if is_dataclass(state) and not isinstance(state, type):
        changed = {}
        for part in fields(state):
            value = getattr(state, part.name)
            axis = part.metadata.get("time")
            changed[part.name] = (
                _extend(value, axis, room) if isinstance(value, Tensor) and axis is not None else grow(value, room)
            )
        return replace(state, **changed)
    return _children(lambda child: grow(child, room), state)


def where(mask: Tensor, a: State, b: State) -> State:
    """Row by row: `a` where `mask` [rows] is True, `b` elsewhere (a fresh start for rows that begin a new document)."""
    if isinstance(b, Tensor):
        return torch.where(mask.view(-1, *[1] * (b.dim() - 1)), a, b)
    if is_dataclass(b) and not isinstance(b, type):
        return replace(b, **{part.name: where(mask, getattr(a, part.name), getattr(b, part.name)) for part in fields(b)})
    if isinstance(b, dict):
        return {key: where(mask, a[key], b[key]) for key in b}
    if isinstance(b, list | tuple):
        return type(b)(where(mask, x, y) for x, y in zip(a, b, strict=True))
    return b


def detach(state: State) -> State:
    """The same state, cut off from the graph that made it."""
    return _map(lambda leaf: leaf.detach(), state)


def clone(state: State) -> State:
    """The same state in tensors of its own."""
    return _map(lambda leaf: leaf.clone(), state)


def leaves(state: State) -> list[Tensor]:
    """All tensors of a state, in a fixed order."""
    found: list[Tensor] = []

    def note(leaf: Tensor) -> Tensor:
        found.append(leaf)
        return leaf

    _map(note, state)
    return found


def refill(state: State, tensors: Iterable[Tensor]) -> State:
    """The same tree with other tensors, in the order of `leaves`."""
    following = iter(tensors)
    return _map(lambda leaf: next(following), state)


def write_(old: State, new: State) -> State:
    """Copies `new` into the storage of `old`, which a captured graph needs; leaves already updated in place cost nothing."""
    for mine, theirs in zip(leaves(old), leaves(new), strict=True):
        if mine.data_ptr() != theirs.data_ptr():
            mine.copy_(theirs)
    return old


def spread(tensor: Tensor, rows: int) -> Tensor:
    """A tensor with one row a source as one with a row a beam."""
    sources = tensor.size(0)
    return tensor if sources == rows else tensor.repeat_interleave(rows // sources, 0)


def _map(change: Callable[[Tensor], Tensor], state: State) -> State:
    if isinstance(state, Tensor):
        return change(state)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{part.name: _map(change, getattr(state, part.name)) for part in fields(state)})
    return _children(lambda child: _map(change, child), state)


def _children(change: Callable[[State], State], state: State) -> State:
    if isinstance(state, dict):
        return {key: change(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(change(value) for value in state)
    return state


def _extend(tensor: Tensor, axis: int, room: int) -> Tensor:
    if tensor.size(axis) >= room:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = room
    larger = tensor.new_zeros(shape)
    larger.narrow(axis, 0, tensor.size(axis)).copy_(tensor)
    return larger
