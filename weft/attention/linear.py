"""Attention whose cost grows with length, not with its square, by taking the softmax apart.

Shapes: B rows · H heads · T queries · S keys · D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads, split_heads
from weft.batch import Layout
from weft.state import State, shared, spread

CHUNK = 64
"""Tokens handled at once in causal use: quadratic inside a chunk, running sums between them."""


@dataclass
class Sums:
    """What was seen, in float32: kv [B, H, D, D] = Σ φ(k)vᵀ · k [B, H, D] = Σ φ(k) · segment [B], whose sums these are."""

    kv: Tensor
    k: Tensor
    segment: Tensor


@dataclass
class MemorySums:
    """The same sums of a whole source, one row a source; of packed rows the features themselves."""

    kv: Tensor = shared()
    k: Tensor = shared()
    v: Tensor | None = shared(default=None)
    segments: Tensor | None = shared(default=None)


class LinearAttention(Attention):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K) with φ(x) = elu(x) + 1; causal use is a recurrence with a state of constant size.

    bias: whether the projections have one
    """

    paper = "Katharopoulos et al. 2020"
    cost = "n"
    uses = frozenset({"encoder", "causal", "cross"})
    weights_sum = None
    ignores_key_order = True
    packs = True

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site)
        self.query = nn.Linear(site.dim, site.dim, bias=bias)
        self.key = nn.Linear(site.memory_dim, site.dim, bias=bias)
        self.value = nn.Linear(site.memory_dim, site.dim, bias=bias)
        self.out = nn.Linear(site.dim, site.dim, bias=bias)
        self.width = site.head_dim

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        if self.site.use == "cross":
            assert memory is not None
            return self._memory(memory, layout)
        weight = self.out.weight
        zeros = torch.zeros(rows, self.site.heads, self.width, self.width + 1, device=weight.device)
        state = Sums(zeros[..., :-1], zeros[..., -1], torch.ones(rows, dtype=torch.int32, device=weight.device))
        return state if memory is None else self._recur(self._features(memory)[0], *self._features(memory), state, layout)[1]

    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        q = _phi(split_heads(self.query(query), self.site.heads))
        if append is None:
            context = self._look(q, state, layout)
        elif self.site.use == "encoder":
            context = self._look(q, self._memory(append, layout), layout)
        else:
            context, state = self._recur(q, *self._features(append), state, layout)
        return Attended(self.out(join_heads(context).to(query.dtype)), state)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """φ(k), v [B, H, S, D] in float32."""
        return _phi(split_heads(self.key(x), self.site.heads)), split_heads(self.value(x), self.site.heads).float()

    def _memory(self, memory: Tensor, layout: Layout | None) -> MemorySums:
        k, v = self._features(memory)
        if layout is not None and layout.packed:
            return MemorySums(k, k, v, layout.segments)
        if layout is not None:
            k = torch.where(layout.ok[:, None, :, None], k, 0.0)
            v = torch.where(layout.ok[:, None, :, None], v, 0.0)
        return MemorySums(k.transpose(-1, -2) @ v, k.sum(2))

    def _look(self, q: Tensor, sums: MemorySums, layout: Layout | None) -> Tensor:
        """Every query against everything of its source."""
        if sums.v is not None and sums.segments is not None:
            assert layout is not None
            same = (layout.segments[:, :, None] == sums.segments[:, None]) & layout.ok[:, :, None]
            weights = torch.where(same[:, None], q @ sums.k.transpose(-1, -2), 0.0)
            return _ratio(weights @ sums.v, weights.sum(-1))
        kv, k = spread(sums.kv, q.size(0)), spread(sums.k, q.size(0))
        return _ratio(q @ kv, (q @ k[..., None])[..., 0])

    def _recur(self, q: Tensor, k: Tensor, v: Tensor, state: Sums, layout: Layout | None) -> tuple[Tensor, Sums]:
        """Chunk by chunk: what came before by the sums, what is inside by the masked product. Sums restart with a sentence."""
        rows, _, extent, _ = q.shape
        segments = torch.ones(rows, extent, dtype=torch.int32, device=q.device) if layout is None else layout.segments
        contexts = []
        for begin in range(0, extent, CHUNK):
            part = slice(begin, begin + CHUNK)
            qc, kc, vc, own = q[:, :, part], k[:, :, part], v[:, :, part], segments[:, part]
            inside = ((own[:, :, None] == own[:, None]) & (own > 0)[:, None]).tril()[:, None]
            weights = torch.where(inside, qc @ kc.transpose(-1, -2), 0.0)
            before = (own == state.segment[:, None])[:, None, :, None]
            total = weights @ vc + torch.where(before, qc @ state.kv, 0.0)
            norm = weights.sum(-1) + torch.where(before, qc @ state.k[..., None], 0.0)[..., 0]
            contexts.append(_ratio(total, norm))
            state = _advance(state, kc, vc, own)
        return torch.cat(contexts, 2), state


def _advance(state: Sums, k: Tensor, v: Tensor, segments: Tensor) -> Sums:
    """The sums after a chunk: those of the last sentence begun in it."""
    last = torch.maximum(segments.amax(1), state.segment)
    keep = (last == state.segment)[:, None, None]
    mine = (segments == last[:, None])[:, None, :, None]
    k, v = torch.where(mine, k, 0.0), torch.where(mine, v, 0.0)
    kv = torch.where(keep[..., None], state.kv, 0.0) + k.transpose(-1, -2) @ v
    return Sums(kv, torch.where(keep, state.k, 0.0) + k.sum(2), last)


def _phi(x: Tensor) -> Tensor:
    return F.elu(x.float()) + 1


def _ratio(total: Tensor, norm: Tensor) -> Tensor:
    """total / norm, and 0 where nothing was seen."""
    seen = norm > 0
    return torch.where(seen[..., None], total / torch.where(seen, norm, 1.0)[..., None], 0.0)
