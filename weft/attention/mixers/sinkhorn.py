"""Sparse Sinkhorn attention: to the own block and to a block that is sorted next to it.

Shapes: B rows · H heads · T positions · S stored positions · N blocks · b tokens of a block · D head width.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.attention.base import RowMixer, Site
from weft.attention.core.dot_product import mix
from weft.data.batch import Layout
from weft.layers.decoder_state import History, State
from weft.layers.linear_norm_dropout import xavier
from weft.layers.step_recorder import record, recording, steps_under

MAX_FETCHED = 16
"""The largest chunk whose queries fetch the blocks they see; for more queries, all blocks are computed again."""

LOWEST = -1e9
"""The logarithm of zero: finite, so that a block that may not be sorted anywhere has gradient 0 and not NaN."""


@dataclass
class SinkhornState:
    """The past: concatenated keys, values and running means of the input, [B, S, 3·H·D]; and the sum of the input [B, H·D]."""

    tokens: History
    total: Tensor


class SinkhornMixer(RowMixer):
    """Sparse Sinkhorn attention: a block attends to itself and to the blocks that a learned soft permutation puts beside it.

    A network reads the mean of each block and scores the blocks it wants; Sinkhorn's iteration makes rows and columns of that
    matrix sum to 1. In a decoder a block may want earlier blocks only, judged by the tokens up to its first one, and a column
    is divided by the sum of its rows so far, so that later blocks change nothing.

    block: tokens per block
    iterations: how often columns and rows are normalised
    temperature: softness of the permutation; below 0.5 the iteration would be far from convergence
    noise: whether training adds Gumbel noise to the scores, to explore other orders
    max_length: maximum number of tokens of a row
    """

    paper = "Tay et al. 2020"
    cost = "n·block + n²/block"
    uses = frozenset({"encoder", "causal"})

    def __init__(
        self,
        site: Site,
        *,
        block: PositiveInt = 32,
        iterations: PositiveInt = 8,
        temperature: Annotated[float, Field(ge=0.5)] = 0.75,
        noise: bool = True,
        max_length: PositiveInt = 1024,
    ) -> None:
        super().__init__(site)
        self.block, self.iterations, self.temperature, self.noise = block, iterations, temperature, noise
        self.max_length: int = max_length
        self.width, self.blocks = site.head_dim, -(-max_length // block)
        self.query_key_value = nn.Linear(site.dim, 3 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)
        xavier(self.query_key_value, 3)
        xavier(self.out)
        # A bias would favour a block in all rows alike, and normalising columns cancels that.
        last = nn.Linear(site.dim, site.heads * self.blocks, bias=False)
        self.want = nn.Sequential(nn.Linear(site.dim, site.dim), nn.GELU(), last)

    def begin(self, rows: int, room: int | None) -> State:
        weight, dim = self.out.weight, self.site.dim
        return SinkhornState(History.empty(rows, 3 * dim, room, weight), torch.zeros(rows, dim, device=weight.device))

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        self.check_length(x, layout)
        q, k, v = self.query_key_value(x).chunk(3, -1)
        mask = None if layout is None else layout.mask[..., None]
        if mask is not None:
            x, k, v = (part.where(mask, 0.0) for part in (x, k, v))
        if state is None:
            return self.out(self._every_block(q, k, v, self._means(x, mask), mask)), None
        fresh = state.tokens.fresh
        state, place, mean = self._append(x, k, v, state, layout)
        if fresh:
            return self.out(self._every_block(q, k, v, mean[:, :: self.block], mask)), state
        return self.out(self._attend_past(q, place, state)), state

    def _append(
        self, x: Tensor, k: Tensor, v: Tensor, state: SinkhornState, layout: Layout | None
    ) -> tuple[SinkhornState, Tensor, Tensor]:
        """The state after x; the positions [B, T] of its tokens; and for each the mean of all tokens up to it."""
        sums = state.total[:, None] + x.cumsum(1, dtype=torch.promote_types(x.dtype, torch.float32))
        count = state.tokens.length[:, None] + 1 + torch.arange(x.size(1), device=x.device)
        mean = (sums / count[..., None]).to(k.dtype)
        tokens, place = state.tokens.append(torch.cat([k, v, mean], -1), layout)
        return SinkhornState(tokens, sums[:, -1] if x.size(1) else state.total), place, mean

    def _means(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, N, H·D]: the mean of each block's real tokens."""
        total = self._cut(x.to(torch.promote_types(x.dtype, torch.float32))).sum(2)
        real = self._cut(torch.ones_like(x[..., :1]) if mask is None else mask.to(x.dtype)).sum(2)
        return (total / real.clamp_min(1)).to(x.dtype)

    def _every_block(self, q: Tensor, k: Tensor, v: Tensor, means: Tensor, mask: Tensor | None) -> Tensor:
        """Attends from all tokens, block by block: q, k, v [B, T, H·D]; keys and values of padding are 0."""
        rows, extent, dim = q.shape
        real = self._cut(torch.ones_like(q[..., :1], dtype=torch.bool) if mask is None else mask)[..., 0]
        filled = real[..., 0]
        order = self.sort(means, filled).to(v.dtype)
        ours, keys, values = (self._heads(self._cut(part)) for part in (q, k, v))  # [B, H, N, b, D]
        sorted_keys, sorted_values = ((order @ part.flatten(3)).view_as(part) for part in (keys, values))
        own, beside = real[:, :, None], self._beside(real)[:, :, None]
        if self.site.use == "causal":
            own = own & torch.ones(self.block, self.block, dtype=torch.bool, device=q.device).tril()
        seen = torch.cat([own.expand(-1, -1, self.block, -1), beside.expand(-1, -1, self.block, -1)], -1)
        keys, values = torch.cat([keys, sorted_keys], 3), torch.cat([values, sorted_values], 3)
        ours, keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (ours, keys, values))
        with steps_under(None):  # its rows are blocks
            context, _ = mix(ours, keys, values, seen.flatten(0, 1)[:, None], self.dropped, False)
        if recording():
            self._record(q, (k, v), order, seen, context)
        return context.transpose(1, 2).reshape(rows, -1, dim)[:, :extent]

    def _record(self, q: Tensor, pair: tuple[Tensor, Tensor], order: Tensor, seen: Tensor, context: Tensor) -> None:
        """Records what each block gets, and the attention inside blocks. order [B, H, N, N] · context [B · N, H, b, D]."""
        block, number = "row head block", -(-q.size(1) // self.block)
        ours, *both = (self._heads(self._cut(part)) for part in (q, *pair))
        record("permutation", order, "row head block other")
        whole = []
        for name, part in zip(("keys", "values"), both, strict=True):
            gets = (order @ part.flatten(3)).view_as(part)
            operands = {"P": (order, "row head block other"), "x": (part, "row head other candidate channel")}
            record(f"sorted {name}", gets, f"{block} candidate channel", "sum(P * x, other)", **operands)
            whole.append(torch.cat([part, gets], 3))
            axes = f"{block} candidate channel"
            record(name, whole[-1], axes, "join(own, sorted, candidate)", own=(part, axes), sorted=(gets, axes))
        pairs, (keys, values), root = f"{block} cell candidate", whole, math.sqrt(self.width)
        scores = ours @ keys.transpose(-1, -2) / root
        operands = {"q": (ours, f"{block} cell channel"), "k": (keys, f"{block} candidate channel")}
        record("scores", scores, pairs, "sum(q * k, channel) / root", **operands, root=root)
        seen = seen[:, None].expand_as(scores)
        masked = scores.masked_fill(~seen, -math.inf)
        record("masked scores", masked, pairs, "where(mask, scores, -inf)", mask=(seen, pairs), scores=(scores, pairs))
        weights = masked.softmax(-1).nan_to_num(0.0)
        record("weights", weights, pairs, "softmax(scores, candidate)", scores=(masked, pairs))
        found = context.unflatten(0, (-1, number)).transpose(1, 2)
        operands = {"weights": (weights, pairs), "v": (values, f"{block} candidate channel")}
        record("context", found, f"{block} cell channel", "sum(weights * v, candidate)", **operands)

    def _beside(self, real: Tensor) -> Tensor:
        """[B, N, b]: which cells of the block sorted beside each one hold a token. No block is fuller than the first."""
        filled = real[..., :1]
        if self.site.use == "encoder":
            return filled & real[:, :1]
        return (filled & (torch.arange(real.size(1), device=real.device) > 0)[:, None]).expand_as(real)

    def sort(self, means: Tensor, filled: Tensor) -> Tensor:
        """The soft permutation [B, H, N, N] in float32: row n says what block n gets. filled [B, N]: blocks with a token."""
        count, causal = means.size(1), self.site.use == "causal"
        wanted = self.want(means).unflatten(-1, (self.site.heads, self.blocks))[..., :count].transpose(1, 2)
        wanted = wanted.to(torch.promote_types(wanted.dtype, torch.float32))
        if self.training and self.noise:
            wanted = wanted - torch.empty_like(wanted).exponential_().log()
        may = filled[:, :, None] & filled[:, None]
        may = may.tril(-1)[:, None] if causal else may[:, None]
        logs = wanted / self.temperature
        for _ in range(self.iterations):
            logs = logs.masked_fill(~may, LOWEST)
            logs = logs - (logs.logcumsumexp(2) if causal else logs.logsumexp(2, keepdim=True))
            logs = logs.masked_fill(~may, LOWEST)
            logs = logs - logs.logsumexp(3, keepdim=True)
        return logs.exp().masked_fill(~may, 0.0)

    def _attend_past(self, q: Tensor, place: Tensor, state: SinkhornState) -> Tensor:
        """Attends from tokens at positions `place` [B, T] to all tokens so far, including their own chunk."""
        rows, extent, dim = q.shape
        stored = state.tokens.tokens[:, : self.blocks * self.block].to(q.dtype)
        real = torch.arange(stored.size(1), device=q.device) < state.tokens.length[:, None]
        k, v, means = stored.where(real[..., None], 0.0).split(dim, -1)
        means, place = means[:, :: self.block], place.clamp_max(stored.size(1) - 1)
        index = place[..., None].expand(-1, -1, dim)
        if extent > MAX_FETCHED:
            ours = q.new_zeros(rows, stored.size(1), dim).scatter(1, index, q)
            return self._every_block(ours, k, v, means, real[..., None]).gather(1, index)
        mine = place // self.block
        order = self.sort(means, real[:, :: self.block]).to(q.dtype)
        wanted = order.transpose(1, 2).gather(1, mine[..., None, None].expand(-1, -1, order.size(1), order.size(-1)))
        cells = self.block * mine[..., None] + torch.arange(self.block, device=q.device)  # [B, T, b]
        row = torch.arange(rows, device=q.device)[:, None, None]

        def fetch(part: Tensor) -> Tensor:
            every = self._heads(self._cut(part))
            own = part[row, cells.clamp_max(stored.size(1) - 1)].unflatten(-1, (-1, self.width)).transpose(2, 3)
            return torch.cat([own, torch.einsum("bthn,bhnsd->bthsd", wanted, every)], 3).flatten(0, 1)

        seen = torch.cat([cells <= place[..., None], (mine > 0)[..., None].expand_as(cells)], -1)
        ours = q.unflatten(-1, (-1, 1, self.width)).flatten(0, 1)
        context, _ = mix(ours, fetch(k), fetch(v), seen.flatten(0, 1)[:, None, None], self.dropped, False)
        return context.reshape(rows, extent, dim)

    def _cut(self, x: Tensor) -> Tensor:
        """[B, T, …] → [B, N, b, …], padded with zeros."""
        return F.pad(x, (0, 0, 0, -x.size(1) % self.block)).unflatten(1, (-1, self.block))

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, b, H·D] → [B, H, N, b, D]."""
        return x.unflatten(-1, (self.site.heads, self.width)).permute(0, 3, 1, 2, 4)
