"""Functions on decoding state, and the key-value cache, which overrides some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.core.kv_cache import KeyValueCache
from weft.data.batch import Layout
from weft.layers.decoder_state import (
    State,
    clone,
    detach,
    grow,
    leaves,
    select,
    share_common,
    shared,
    spread,
    timed,
    without_cached,
    write_,
)


@dataclass
class Memory:
    source: Tensor = shared()
    mask: Tensor | None = shared(default=None)


@dataclass
class Toy:
    """A leaf with a row per beam, a shared part, room along an axis, and children of every kind."""

    hidden: Tensor
    memory: Memory
    stored: Tensor = timed(2)
    children: Any = None
    count: int = 7


class Counted:
    """A custom state: neither a tensor nor a container, so only its methods are called."""

    def __init__(self, calls: tuple[str, ...] = ()) -> None:
        self.calls = calls

    def select(self, rows: Tensor, groups: Tensor | None) -> Counted:
        return Counted((*self.calls, f"select {rows.tolist()} {None if groups is None else groups.tolist()}"))

    def grow(self, room: int) -> Counted:
        return Counted((*self.calls, f"grow {room}"))


def toy(sources: int = 2, beams: int = 1) -> Toy:
    rows = sources * beams
    hidden = torch.arange(rows, dtype=torch.float32)[:, None]
    children = {"list": [hidden + 10, None], "tuple": (hidden + 20, "word")}
    return Toy(hidden, Memory(torch.arange(sources, dtype=torch.float32)[:, None]), hidden[..., None].repeat(1, 2, 3), children)


def test_select_multiplies_rows_and_leaves_shared_parts_alone() -> None:
    before = toy()
    after = select(before, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert after.hidden.flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert after.children["list"][0].flatten().tolist() == [10, 10, 10, 11, 11, 11]
    assert after.children["tuple"][0].flatten().tolist() == [20, 20, 20, 21, 21, 21]
    assert after.children["list"][1] is None and after.children["tuple"][1] == "word" and after.count == 7
    assert after.memory.source is before.memory.source
    assert before.hidden.flatten().tolist() == [0, 1]


def test_select_with_groups_moves_shared_parts_too() -> None:
    state = toy(sources=3, beams=2)
    after = select(state, torch.tensor([5, 4, 0, 0]), torch.tensor([2, 0]))
    assert after.hidden.flatten().tolist() == [5, 4, 0, 0]
    assert after.memory.source.flatten().tolist() == [2, 0]
    assert after.memory.mask is None


def test_a_state_of_its_own_kind_is_asked_itself() -> None:
    states = [Counted(), {"inner": Counted()}]
    chosen = grow(select(states, torch.tensor([1, 0]), torch.tensor([0])), 9)
    assert chosen[0].calls == chosen[1]["inner"].calls == ("select [1, 0] [0]", "grow 9")


def test_grow_extends_timed_parts_and_keeps_what_they_hold() -> None:
    state = toy()
    larger = grow(state, 8)
    assert larger.stored.shape == (2, 2, 8)
    assert torch.equal(larger.stored[..., :3], state.stored) and not larger.stored[..., 3:].any()
    assert larger.hidden.shape == state.hidden.shape and larger.memory.source.shape == (2, 1)
    assert grow(larger, 4).stored.shape == (2, 2, 8)


def test_detach_cuts_every_leaf_off() -> None:
    weight = torch.ones(2, 1, requires_grad=True)
    state: State = {"a": [weight * 2], "b": Memory(weight * 3), "c": None}
    assert all(leaf.requires_grad for leaf in leaves(state))
    free = detach(state)
    assert len(leaves(free)) == 2 and not any(leaf.requires_grad for leaf in leaves(free))
    assert torch.equal(free["b"].source, state["b"].source)


def test_write_copies_into_the_same_storage() -> None:
    old, new = toy(), toy()
    new.hidden = new.hidden + 5
    addresses = [leaf.data_ptr() for leaf in leaves(old)]
    written = write_(old, new)
    assert written is old
    assert [leaf.data_ptr() for leaf in leaves(old)] == addresses
    assert old.hidden.flatten().tolist() == [5, 6]


def test_write_refuses_states_of_different_build() -> None:
    with pytest.raises(ValueError, match="zip"):
        write_([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)])


def test_spread_repeats_each_source_for_its_beams() -> None:
    assert spread(torch.tensor([[1], [2]]), 6).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    tensor = torch.tensor([[1], [2]])
    assert spread(tensor, 2) is tensor


def filled(sources: int, room: int, count: int) -> KeyValueCache:
    """A cache in which token s of source g is the number 10 g + s."""
    cache = KeyValueCache.empty(sources, 1, room, 1, torch.zeros(1))
    numbers = 10.0 * torch.arange(sources)[:, None] + torch.arange(count)
    return cache.append(numbers[:, None, :, None], -numbers[:, None, :, None], None)


def read(cache: KeyValueCache) -> list[list[float]]:
    """The tokens that each row sees, in order."""
    beams, (k, v) = cache.k.size(2), cache.dense()
    assert torch.equal(k, -v)
    return [row[0, : int(cache.index.length[i // beams]), 0].tolist() for i, row in enumerate(k)]


def fed(cache: KeyValueCache, numbers: list[float], layout: Layout | None = None) -> KeyValueCache:
    new = torch.tensor(numbers).view(cache.k.size(0) * cache.k.size(2), 1, -1, 1)
    return cache.append(new, -new, layout)


def test_cache_follows_its_ancestors() -> None:
    cache = select(filled(2, room=4, count=1), torch.tensor([0, 0, 1, 1]))
    cache = fed(cache, [1, 2, 11, 12])
    assert read(cache) == [[0, 1], [0, 2], [10, 11], [10, 12]]
    cache = fed(select(cache, torch.tensor([1, 1, 3, 2])), [3, 4, 13, 14])
    assert read(cache) == [[0, 2, 3], [0, 2, 4], [10, 12, 13], [10, 11, 14]]
    cache = fed(select(cache, torch.tensor([1, 0, 2, 2])), [5, 6, 15, 16])
    assert read(cache) == [[0, 2, 4, 5], [0, 2, 3, 6], [10, 12, 13, 15], [10, 12, 13, 16]]


def test_cache_is_reordered_without_copying() -> None:
    cache = select(filled(2, room=4, count=1), torch.tensor([0, 0, 1, 1]))
    moved = select(cache, torch.tensor([1, 0, 3, 2]))
    assert moved.k.data_ptr() == cache.k.data_ptr() and moved.v.data_ptr() == cache.v.data_ptr()


def test_cache_loses_sources_and_gains_room() -> None:
    cache = fed(select(filled(3, room=2, count=1), torch.tensor([0, 0, 1, 1, 2, 2])), [1, 2, 11, 12, 21, 22])
    cache = grow(select(cache, torch.tensor([5, 4, 1, 1]), torch.tensor([2, 0])), 3)
    assert cache.k.size(3) == 3
    assert read(fed(cache, [23, 24, 3, 4])) == [[20, 22, 23], [20, 21, 24], [0, 2, 3], [0, 2, 4]]


def test_cache_above_the_widest_beam_owns_its_cells() -> None:
    wide = KeyValueCache.max_shared + 1
    cache = select(filled(1, room=3, count=1), torch.zeros(wide, dtype=torch.long))
    assert cache.owned
    cache = fed(cache, [float(beam + 1) for beam in range(wide)])
    cache = select(cache, torch.arange(wide).flip(0))
    assert read(cache) == [[0, float(beam)] for beam in range(wide, 0, -1)]
    narrow = select(cache, torch.tensor([0, 2]))
    assert not narrow.owned and read(narrow) == [[0, wide], [0, wide - 2]]


def test_cache_overwrites_what_was_padding() -> None:
    cache = KeyValueCache.empty(2, 1, 6, 1, torch.zeros(1))
    cache = fed(cache, [1, 2, 3, 11, 99, 99], Layout.padded([3, 1]))
    assert read(cache) == [[1, 2, 3], [11]]
    assert read(fed(cache, [4, 12])) == [[1, 2, 3, 4], [11, 12]]
    assert cache.place(torch.zeros(2, 1, 1), None).tolist() == [[3], [1]]


def layers(count: int = 3) -> list[tuple[KeyValueCache, None]]:
    """The states of several layers that start together, with one source of one beam."""
    return share_common([(KeyValueCache.empty(1, 1, 4, 1, torch.zeros(1)), None) for _ in range(count)])


def test_layers_that_begin_together_keep_one_ledger() -> None:
    state: State = layers()
    for rows in ([0, 0], [1, 0], [0, 1], None):
        if rows is None:
            state = grow(state, 8)
        else:
            state = select(state, torch.tensor(rows))
        state = [(fed(cache, [3.0, 4.0]), None) for cache, _ in state]
        assert len({id(cache.index) for cache, _ in state}) == 1
        assert len({cache.k.data_ptr() for cache, _ in state}) == 3
    assert [read(cache) for cache, _ in state] == [[[4.0, 3.0, 3.0, 3.0], [3.0, 4.0, 4.0, 4.0]]] * 3


def test_only_layers_of_one_kind_share_a_ledger() -> None:
    """Two kinds in turn, whose caches have different sizes."""
    states = share_common([(KeyValueCache.empty(1, 1, 4 + layer % 2, 1, torch.zeros(1)), None) for layer in range(4)], 2)
    ledgers = [cache.index for cache, _ in states]
    assert ledgers[0] is ledgers[2] and ledgers[1] is ledgers[3] and ledgers[0] is not ledgers[1]


def test_layers_that_are_alone_count_alone() -> None:
    one, other = (KeyValueCache.empty(1, 1, 4, 1, torch.zeros(1)) for _ in range(2))
    one = fed(one, [1.0])
    assert (one.index.length.tolist(), other.index.length.tolist()) == ([1], [0])


def test_what_stands_twice_is_copied_once_and_stays_one() -> None:
    state = layers()
    assert len(leaves(state)) == 2 * 3 + 2
    copied = clone(state)
    assert len({id(cache.index) for cache, _ in copied}) == 1 and copied[0][0].index is not state[0][0].index
    assert not {leaf.data_ptr() for leaf in leaves(state)} & {leaf.data_ptr() for leaf in leaves(copied)}


def test_a_tree_made_again_has_forgotten_what_was_derived() -> None:
    """After tensors are changed in place, values derived from the old ones must not be reused."""
    ledger = layers(1)[0][0].index
    assert ledger.plan(1, None).positions.tolist() == [[0]]
    ledger.length.fill_(2)
    assert ledger.plan(1, None).positions.tolist() == [[0]]
    fresh = without_cached(ledger)
    assert fresh.plan(1, None).positions.tolist() == [[2]] and fresh.length is ledger.length
