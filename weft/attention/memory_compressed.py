"""Memory-compressed attention: a strided convolution shortens keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, split_heads
from weft.attention.core.dot_product import AttendOptions, KeyValueStore, attend, attend_memory
from weft.attention.core.kv_cache import ConcatenatedKeyValues, CrossAttentionMemory, KeyValueCache
from weft.attention.core.multihead import Projections
from weft.data.batch import Layout
from weft.layers.decoder_state import State, grow
from weft.layers.embeddings_and_rotary_positions import token_positions
from weft.layers.linear_norm_dropout import xavier


@dataclass
class CompressedCache:
    """The past of causal attention: complete windows, compressed, and the tokens of an incomplete one.

    store: compressed keys and values · tail [B, stride − 1, 2D]: keys and values of the incomplete window, followed by
      undefined values · count [B]: tokens fed. tail and count are None before the first token.
    """

    store: KeyValueStore
    stride: int
    tail: Tensor | None = None
    count: Tensor | None = None

    def grow(self, room: int) -> CompressedCache:
        return replace(self, store=grow(self.store, _cells(room, self.stride)))


class CompressedAttention(Attention):
    """softmax(QK'ᵀ/√d) V', where a convolution of width and stride `stride` compresses keys and values to K' and V'.

    The last window of a sequence may be incomplete. In causal use a query sees complete windows only, so the first stride − 1
    queries see nothing and get 0, and recent tokens become visible late: combine it with heads or layers that see recent
    tokens. The cost still grows with the square of the length, divided by the stride.

    stride: tokens per window
    bias: whether the projections of queries, keys and values have a bias
    """

    paper = "Liu et al. 2018"
    cost = "n²/stride"
    uses = frozenset({"encoder", "causal", "cross"})

    def __init__(self, site: Site, *, stride: PositiveInt = 3, bias: bool = True) -> None:
        super().__init__(site)
        self.stride = stride
        self.receptive_field = "pattern" if site.use == "causal" else "all"
        self.ignores_key_order = stride == 1
        self.heads = Projections(site, bias=bias)
        self.keys, self.values = (nn.Linear(stride * site.dim, site.dim) for _ in range(2))
        xavier(self.keys)
        xavier(self.values)

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        return self._ended(place[:, None], place[None] // self.stride)

    def _ended(self, query: Tensor, window: Tensor) -> Tensor:
        """Whether a window, given by its number, is complete when the query's token is read."""
        return (window + 1) * self.stride <= query + 1

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        return self._memory(self.heads.joint_key_value(memory, values), layout)

    def begin(self, rows: int, room: int | None) -> State:
        if room is None:
            return CompressedCache(ConcatenatedKeyValues(), self.stride)
        sizes = self.site.heads, _cells(room, self.stride), self.heads.width
        return CompressedCache(KeyValueCache.empty(rows, *sizes, self.heads.out.weight), self.stride)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return self._append(self._own(x)[1], state, layout)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            context, _ = attend_memory(self.heads.queries(query), state, layout=None, dropout=self.dropped)
        else:
            q, key_value = self._own(append)
            if self.site.use == "encoder":
                context, _ = attend_memory(q, self._memory(key_value, layout), layout=None, dropout=self.dropped)
            else:
                after = self._append(key_value, state, layout)
                context = self._attend_past(q, state, after, layout)
                state = after
        return Attended(self.heads.join(context), state)

    def _own(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, H, T, D / H], and concatenated keys and values [B, T, 2D]."""
        q, key_value = self.heads.query_key_value(x).split([self.site.dim, 2 * self.site.dim], -1)
        return split_heads(q, self.site.heads), key_value

    def _shorten(self, key_value: Tensor) -> tuple[Tensor, Tensor]:
        """[B, W · stride, 2D] → k, v [B, H, W, D / H]."""
        k, v = key_value.unflatten(1, (-1, self.stride)).chunk(2, -1)
        heads = self.site.heads
        return split_heads(self.keys(k.flatten(2)), heads), split_heads(self.values(v.flatten(2)), heads)

    def _memory(self, key_value: Tensor, layout: Layout | None) -> CrossAttentionMemory:
        """All windows; the last one of a row is padded with zeros."""
        if layout is not None:
            key_value = torch.where(layout.mask[..., None], key_value, 0.0)
        key_value = F.pad(key_value, (0, 0, 0, -key_value.size(1) % self.stride))
        segments = None if layout is None else layout.segments[:, :: self.stride]
        return CrossAttentionMemory(*self._shorten(key_value), segments)

    def _append(self, key_value: Tensor, state: CompressedCache, layout: Layout | None) -> CompressedCache:
        """The state after these tokens: windows that they complete go into the store, the remaining tokens into the tail."""
        rows, extent, _ = key_value.shape
        fed = torch.full((rows,), extent, device=key_value.device) if layout is None else layout.lengths
        row, count, filled = key_value, fed, fed
        if state.tail is not None and state.count is not None:
            begun = state.count % self.stride
            row = _join(state.tail.to(key_value.dtype), key_value, begun)
            count, filled = state.count + fed, begun + fed
        number, ended = row.size(1) // self.stride, filled // self.stride
        store = state.store
        if number:
            place = torch.arange(number, device=row.device).expand(rows, number)
            real = Layout((place < ended[:, None]).to(torch.int32), place, longest=number)
            store = store.append(*self._shorten(row[:, : number * self.stride]), real)
        left = (ended * self.stride)[:, None] + torch.arange(self.stride - 1, device=row.device)
        row = F.pad(row, (0, 0, 0, self.stride))
        tail = row.gather(1, left[..., None].expand(-1, -1, row.size(-1)))
        return CompressedCache(store, self.stride, tail, count)

    def _attend_past(self, q: Tensor, before: CompressedCache, after: CompressedCache, layout: Layout | None) -> Tensor:
        """Attends from each query to the windows that are complete."""
        store = after.store
        if isinstance(store, ConcatenatedKeyValues) and store.k is None:
            return torch.zeros_like(q)
        if isinstance(store, ConcatenatedKeyValues) and before.count is None:
            return self._triangle(q, store)
        positions = token_positions(q[:, 0], layout) + (0 if before.count is None else before.count[:, None])
        options = AttendOptions(causal=False, positions=positions, dropout=self.dropped)
        return attend(q, store, options, lambda query, window: self._ended(query, window)[:, None])[0]

    def _triangle(self, q: Tensor, store: ConcatenatedKeyValues) -> Tensor:
        """A whole sequence without a mask: queries `stride` apart form a group, and query n of a group sees n + 1 windows."""
        assert store.k is not None and store.v is not None
        first, windows = self.stride - 1, store.k.size(2)
        apart = F.pad(q[:, :, first:], (0, 0, 0, windows * self.stride + first - q.size(2)))
        apart = apart.unflatten(2, (windows, self.stride))
        k, v = (x[:, :, None].expand(-1, -1, self.stride, -1, -1).flatten(1, 2) for x in (store.k, store.v))
        options = AttendOptions(causal=True, dropout=self.dropped)
        context, _ = attend(apart.transpose(2, 3).flatten(1, 2), ConcatenatedKeyValues(k, v), options)
        context = context.unflatten(1, (-1, self.stride)).transpose(2, 3).flatten(2, 3)
        return F.pad(context, (0, 0, first, 0))[:, :, : q.size(2)]


def _join(tail: Tensor, new: Tensor, begun: Tensor) -> Tensor:
    """Concatenates the first `begun` [B] rows of the tail and the new rows: [B, stride − 1 + T, 2D]."""
    both = torch.cat([tail, new], 1)
    place = torch.arange(both.size(1), device=new.device)[None]
    behind = place - begun[:, None] + tail.size(1)
    index = torch.where(place < begun[:, None], place, behind).clamp_max(both.size(1) - 1)
    return both.gather(1, index[..., None].expand(-1, -1, both.size(-1)))


def _cells(room: int, stride: int) -> int:
    """The cells of a store for `room` tokens. Incomplete windows are written too."""
    return room // stride + 2
