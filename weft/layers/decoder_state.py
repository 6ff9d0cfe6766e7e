"""Decoding state: plain trees of tensors, batch first.

A state is a tensor, a dataclass, a dict, a list, a tuple or None, nested at will. Its rows are G sources × K beams, with the
beams of a source adjacent. A dataclass field marked `shared()` has one row per source instead and is never reordered; one
marked `timed(axis)` has room for future tokens along that axis; one marked `common()` is the same in every layer. A state class
with a faster implementation overrides a function by a method of the same name. Nodes that occur several times in a tree are
copied once and stay shared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import Layout

State = Any
T = TypeVar("T")


def shared(**options: Any) -> Any:
    """A dataclass field with one row per source."""
    return field(metadata={"shared": True}, **options)


def timed(axis: int, **options: Any) -> Any:
    """A dataclass field whose tensor has room for future tokens along `axis`."""
    return field(metadata={"time": axis}, **options)


def common(**options: Any) -> Any:
    """A dataclass field that is the same in every layer, so that layers that start together can share it."""
    return field(metadata={"common": True}, **options)


@dataclass
class CachesDerived:
    """A part of a state that caches values derived from it, so that all layers share them.

    The cached values are valid as long as its tensors are. A change in place must keep them valid, or be followed by
    `without_cached`.
    """

    _memory: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def cached(self, key: Hashable, make: Callable[[], T], *held: Any) -> T:
        """The cached result of `make` for this key. `held`: objects that the key identifies by id, kept alive with it."""
        if key not in self._memory:
            self._memory[key] = make(), held
        return self._memory[key][0]


def select(state: State, rows: Tensor, groups: Tensor | None = None) -> State:
    """Row i of the result is row `rows[i]`.

    Without `groups` no source leaves or moves: rows are reordered or repeated inside their source. Otherwise source j of the
    result is source `groups[j]`.
    """
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if hasattr(state, "select"):
        return state.select(rows, groups)

    def change(value: State, part: Field[Any] | None = None) -> State:
        if part is None or not part.metadata.get("shared"):
            return select(value, rows, groups)
        return value if groups is None else _map(lambda leaf: leaf.index_select(0, groups), value)

    return map_children(change, state)


def grow(state: State, room: int) -> State:
    """Makes room for `room` tokens in total. Only the search loop calls it."""
    if isinstance(state, Tensor):
        return state
    if hasattr(state, "grow"):
        return state.grow(room)

    def change(value: State, part: Field[Any] | None = None) -> State:
        axis = None if part is None else part.metadata.get("time")
        if axis is None or not isinstance(value, Tensor):
            return grow(value, room)
        missing = max(0, room - value.size(axis))
        return F.pad(value, (0, 0) * (value.dim() - 1 - axis) + (0, missing)) if missing else value

    return map_children(change, state)


def share_common(states: Sequence[State], kinds: int = 1) -> list[State]:
    """States of layers that start at the same time, with a single copy of all fields that are `common()`.

    There are `kinds` kinds of layers, in turn; only layers of the same kind have fields in common.
    """
    known: dict[Hashable, State] = {}

    def join(state: State, place: tuple[Hashable, ...]) -> State:
        if isinstance(state, dict):
            return {key: join(value, (*place, key)) for key, value in state.items()}
        if isinstance(state, list | tuple):
            return type(state)(join(value, (*place, k)) for k, value in enumerate(state))

        def change(value: State, part: Field[Any]) -> State:
            inside = (*place, part.name)
            return known.setdefault(inside, value) if part.metadata.get("common") else join(value, inside)

        return map_children(change, state)

    return [join(state, (layer % kinds,)) for layer, state in enumerate(states)]


def insert_rows(state: State, new: State, places: Tensor, sources: int) -> None:
    """Writes the sources of `new` over those with the numbers `places` [N] of a state with some sources, in place.

    A store of `new` may be shorter; what lies behind its end becomes 0. Raises ValueError if the state has a tensor without a
    row for each source or beam, or if anything else in it differs: its sources must have begun together.
    """
    done: set[int] = set()

    def walk(old: State, fresh: State) -> None:
        if id(old) in done:
            return
        done.add(id(old))
        if isinstance(old, Tensor):
            _insert_leaf(old, fresh, places, sources)
        elif hasattr(old, "insert_rows"):
            old.insert_rows(fresh, places, sources)
        elif is_dataclass(old) and not isinstance(old, type):
            for part in _fields(type(old)):
                walk(getattr(old, part.name), getattr(fresh, part.name))
        elif isinstance(old, dict):
            for key, value in old.items():
                walk(value, fresh[key])
        elif isinstance(old, list | tuple):
            for value, other in zip(old, fresh, strict=True):
                walk(value, other)
        elif old != fresh:
            raise ValueError(f"sources that begin at different times do not share a state with {old!r} and {fresh!r}")

    walk(state, new)


def _insert_leaf(old: Tensor, fresh: Tensor, places: Tensor, sources: int) -> None:
    each, rest = divmod(old.size(0), sources) if old.dim() else (0, 0)
    if not isinstance(fresh, Tensor) or not each or rest or fresh.size(0) != each * places.numel():
        raise ValueError(f"a state with a tensor of {tuple(old.shape)} has no row for each of {sources} sources")
    rows = places if each == 1 else (places[:, None] * each + torch.arange(each, device=places.device)).flatten()
    inside = old
    for axis in range(1, old.dim()):
        if fresh.size(axis) < old.size(axis):
            inside = inside.narrow(axis, 0, fresh.size(axis))
    if inside is not old:
        old.index_fill_(0, rows, 0)
    inside.index_copy_(0, rows, fresh)


def detach(state: State) -> State:
    """The same state, detached from the graph."""
    return _map(lambda leaf: leaf.detach(), state)


def clone(state: State) -> State:
    """The same state with copied tensors."""
    return _map(lambda leaf: leaf.clone(), state)


def without_cached(state: State) -> State:
    """The same tensors in a new tree without cached values, for use after tensors were changed in place."""
    return _map(lambda leaf: leaf, state)


def leaves(state: State) -> list[Tensor]:
    """All tensors of a state, each once, in a fixed order."""
    tensors: list[Tensor] = []

    def note(leaf: Tensor) -> Tensor:
        tensors.append(leaf)
        return leaf

    _map(note, state)
    return tensors


def refill(state: State, tensors: Iterable[Tensor]) -> State:
    """The same tree with other tensors, in the order of `leaves`."""
    following = iter(tensors)
    return _map(lambda leaf: next(following), state)


def write_(old: State, new: State) -> State:
    """Copies `new` into the storage of `old`, as a captured graph needs; leaves already updated in place cost nothing."""
    for mine, theirs in zip(leaves(old), leaves(new), strict=True):
        if mine.data_ptr() != theirs.data_ptr():
            mine.copy_(theirs)
    return old


def spread(tensor: Tensor, rows: int) -> Tensor:
    """Repeats a tensor with one row per source to one row per beam."""
    sources = tensor.size(0)
    return tensor if sources == rows else tensor.repeat_interleave(rows // sources, 0)


def _map(change: Callable[[Tensor], Tensor], state: State) -> State:
    done: dict[int, State] = {}

    def walk(state: State, _: Field[Any] | None = None) -> State:
        if id(state) not in done:
            new = change(state) if isinstance(state, Tensor) else map_children(walk, state)
            if not isinstance(state, Tensor) and not is_dataclass(state):
                return new
            done[id(state)] = new
        return done[id(state)]

    return walk(state)


@cache
def _fields(kind: type) -> tuple[Field[Any], ...]:
    """The init fields of a dataclass, without its cache."""
    return tuple(part for part in fields(kind) if part.init)


def map_children(change: Callable[..., State], state: State) -> State:
    """The same node with changed children. `change` receives each child, and its field if the node is a dataclass."""
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{part.name: change(getattr(state, part.name), part) for part in _fields(type(state))})
    if isinstance(state, dict):
        return {key: change(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(change(value) for value in state)
    return state


@dataclass
class History:
    """All earlier tokens of a row by position, for causal layers that attend to every token.

    tokens [B, S, D], of which the first `length` [B] of each row were fed: the index of a cell is its token's position. With
    `room` the store has a fixed size, which only the search loop grows, and is written in place; without it, it is appended to.
    """

    length: Tensor
    tokens: Tensor = timed(1)
    room: bool = False

    @staticmethod
    def empty(rows: int, width: int, room: int | None, like: Tensor) -> History:
        length = torch.zeros(rows, dtype=torch.long, device=like.device)
        return History(length, like.new_zeros(rows, room or 0, width), room is not None)

    @property
    def fresh(self) -> bool:
        """Whether nothing was fed, as far as the host knows without synchronising."""
        return self.tokens.size(1) == 0

    def append(self, x: Tensor, layout: Layout | None) -> tuple[History, Tensor]:
        """Feeds x [B, T, D] and returns the positions [B, T] of its tokens. The next tokens overwrite cells of padding."""
        extent = x.size(1)
        place = self.length[:, None] + torch.arange(extent, device=x.device)
        length = self.length + (extent if layout is None else layout.lengths)
        if self.fresh:
            return History(length, x), place
        row = torch.arange(x.size(0), device=x.device)[:, None]
        if self.room:
            tokens = self.tokens.index_put_((row, place), x.to(self.tokens.dtype))
        else:
            tokens = F.pad(self.tokens, (0, 0, 0, extent)).index_put((row, place), x.to(self.tokens.dtype))
        return History(length, tokens, self.room), place
