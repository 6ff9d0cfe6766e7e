"""Attention Free Transformer: keys weight values channel by channel, without scores.

Shapes: B rows · T positions or queries · S keys · H heads · D channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import RowMixer, Site
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import History, State
from weft.layers.linear_norm_dropout import to_float32
from weft.layers.step_recorder import record, recording

Form = Literal["simple", "local", "full", "conv"]

LOWEST = -1e30
"""The exponent of masked tokens: finite, so that the difference of two of them is 0 and not NaN."""

CHUNK = 16
"""Queries computed at once in causal use: earlier keys by one matrix product, keys within the chunk pair by pair."""

BLOCK = 64
"""Queries computed at once in an encoder if w has a window: nearby keys by one matrix product, the others by sums."""


@dataclass
class WeightedSum:
    """Σ eᵏ v and Σ eᵏ over some tokens, both divided by e^top: total, weight and top, each [B, T, D] in float32.

    Exact for exponents of any size.
    """

    total: Tensor
    weight: Tensor
    top: Tensor

    @staticmethod
    def of(k: Tensor, v: Tensor, mask: Tensor | None = None) -> WeightedSum:
        """Each token separately; masked tokens have weight 0."""
        k, v = to_float32(k), to_float32(v)
        if mask is not None:
            k, v = torch.where(mask, k, LOWEST), torch.where(mask, v, 0.0)
        top = k.detach()
        weight = (k - top).exp()  # equals 1, but carries the gradient
        if mask is not None:
            weight = torch.where(mask, weight, 0.0)
        return WeightedSum(weight * v, weight, top)

    @staticmethod
    def over(k: Tensor, v: Tensor, seen: Tensor | None, axis: int) -> WeightedSum:
        """All `seen` tokens along an axis together; the axis is kept with size 1."""
        k, v = to_float32(k), to_float32(v)
        if seen is not None:
            k = torch.where(seen, k, LOWEST)
        top = k.detach().amax(axis, keepdim=True)
        weight = (k - top).exp()
        if seen is not None:
            weight = torch.where(seen, weight, 0.0)
        return WeightedSum((weight * v).sum(axis, keepdim=True), weight.sum(axis, keepdim=True), top)

    @staticmethod
    def nothing(rows: int, width: int, device: torch.device) -> WeightedSum:
        total = torch.zeros(rows, 1, width, device=device)
        return WeightedSum(total, torch.zeros_like(total), torch.full_like(total, LOWEST))

    def join(self, other: WeightedSum) -> WeightedSum:
        """The union of both, position by position. Keeping the larger top avoids overflow and keeps the larger part exact."""
        top = torch.maximum(self.top, other.top)
        mine, theirs = (self.top - top).exp(), (other.top - top).exp()
        total = mine * self.total + theirs * other.total
        return WeightedSum(total, mine * self.weight + theirs * other.weight, top)

    def mean(self) -> Tensor:
        """Σ eᵏ v / Σ eᵏ, or 0 without tokens."""
        some = self.weight > 0
        return torch.where(some, self.total / torch.where(some, self.weight, 1.0), 0.0)

    def flip(self) -> WeightedSum:
        """Reverses the positions."""
        return WeightedSum(self.total.flip(1), self.weight.flip(1), self.top.flip(1))

    def at(self, places: slice) -> WeightedSum:
        return WeightedSum(self.total[:, places], self.weight[:, places], self.top[:, places])


def prefix_sums(parts: WeightedSum) -> WeightedSum:
    """All tokens up to each position: joins pairs, computes their prefixes recursively, and fills in the positions between.

    There are at most twice as many joins as tokens, in logarithmically many calls (Blelloch 1990).
    """
    extent = parts.top.size(1)
    if extent < 2:
        return parts
    even, odd = parts.at(slice(0, None, 2)), parts.at(slice(1, None, 2))
    pairs = prefix_sums(even.at(slice(0, extent // 2)).join(odd))
    between = pairs.at(slice(0, (extent - 1) // 2)).join(even.at(slice(1, None)))
    return WeightedSum(
        _interleave(even.total[:, :1], between.total, pairs.total),
        _interleave(even.weight[:, :1], between.weight, pairs.weight),
        _interleave(even.top[:, :1], between.top, pairs.top),
    )


def _interleave(first: Tensor, evens: Tensor, odds: Tensor) -> Tensor:
    """Interleaves positions 0, 2, 4, … (the first of them given separately) and 1, 3, 5, …."""
    evens = torch.cat([first, evens], 1)
    shared = odds.size(1)
    both = torch.stack([evens[:, :shared], odds], 2).flatten(1, 2)
    return torch.cat([both, evens[:, shared:]], 1)


class AttentionFreeMixer(RowMixer):
    """y_t = σ(q_t) ⊙ Σ_s exp(k_s + w_ts) ⊙ v_s / Σ_s exp(k_s + w_ts), with w in one of four forms (Zhai et al. 2021).

    simple: no w; a decoder has a state of constant size. full: a learned w for each pair of positions. local: the same within a
      window, and 0 outside. conv: w depends on the distance between two tokens, within a window, separately for each head.

    form: how positions enter
    window: how far w reaches (local: distances below this; conv: this many tokens, odd in an encoder)
    rank: inner width of w as a product of two matrices (full, local); 0: one matrix
    max_length: number of positions of w (full, local)
    """

    paper = "Zhai et al. 2021"
    cost = "n (simple), n·window, n² (full)"
    uses = frozenset({"encoder", "causal"})

    def __init__(
        self,
        site: Site,
        *,
        form: Form = "simple",
        window: PositiveInt = 31,
        rank: NonNegativeInt = 64,
        max_length: PositiveInt = 1024,
    ) -> None:
        super().__init__(site)
        self.form, self.window = form, window
        self.causal = site.use == "causal"
        self.query_key_value = nn.Linear(site.dim, 3 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)
        self.ignores_key_order = form == "simple"
        if form == "conv":
            if not self.causal and window % 2 == 0:
                raise ConfigError(f"a window centred on its token must be odd, not {window}; use a window of {window + 1}")
            self.taps = nn.Parameter(torch.empty(site.heads, window))
            self.width = site.head_dim
            nn.init.normal_(self.taps, std=0.1)
        elif form != "simple":
            self.max_length = max_length
            self.rows = nn.Parameter(torch.empty(max_length, rank or max_length))
            self.columns = nn.Parameter(torch.empty(max_length, rank)) if rank else None
            for table in self.parameters(recurse=False):
                nn.init.normal_(table, std=0.1 if rank else 0.01)

    def begin(self, rows: int, room: int | None) -> State:
        like = self.out.weight
        if self.form == "simple":
            return WeightedSum.nothing(rows, self.site.dim, like.device)
        return History.empty(rows, 2 * self.site.dim, room, like)

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        q, k, v = self.query_key_value(x).chunk(3, -1)
        whole = recording() and self._is_whole(state)
        if layout is not None:
            k, v = (torch.where(layout.mask[..., None], part, 0.0) for part in (k, v))
        with torch.autocast(x.device.type, enabled=False):
            if not self.causal:
                mixed = self._both_ways(k, v, layout)
            elif self.form == "simple":
                # All prefixes at once, joined with the past.
                sums = state.join(prefix_sums(WeightedSum.of(k, v, None if layout is None else layout.mask[..., None])))
                mixed, state = sums.mean(), sums.at(slice(-1, None))
            elif state.fresh:
                mixed = self._whole(k, v)
                state = state.append(torch.cat([k, v], -1), layout)[0]
            else:
                state, place = state.append(torch.cat([k, v], -1), layout)
                mixed = self._steps(state.tokens, place)
        gated = torch.sigmoid(q) * mixed.to(q.dtype)
        if whole:
            self._record(q, k, v, layout, (mixed, gated))
        return self.out(gated), state

    def _is_whole(self, state: State) -> bool:
        """Whether no tokens precede these ones."""
        if not self.causal:
            return True
        return not state.weight.any() if self.form == "simple" else bool(state.fresh)

    def _record(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout | None, found: tuple[Tensor, Tensor]) -> None:
        """Records the weights of keys, channel by channel, and what they give; all tokens from the first one on."""
        cells, pairs, keys = "row query channel", "row query key channel", "row key channel"
        place, (mean, gated) = torch.arange(k.size(1), device=k.device), found
        seen = torch.ones(k.size(0), k.size(1), k.size(1), dtype=torch.bool, device=k.device)
        seen = seen.tril() if self.causal else seen
        if layout is not None and (self.form == "simple" or not self.causal):  # otherwise only padding sees padding
            seen = seen & layout.mask[:, None]
        exponents, formula, operands = k[:, None], "where(seen, k, -inf)", {"k": (k, keys), "seen": (seen, "row query key")}
        if self.form != "simple":
            among = self._spread(self._positions(place, place).permute(1, 2, 0), k.size(-1)).to(k.dtype)
            exponents, formula = exponents + among, "where(seen, k + w, -inf)"
            operands["w"] = among, "query key channel"
        masked = exponents.masked_fill(~seen[..., None], -torch.inf)
        weights = masked.softmax(2)
        record("exponents", masked, pairs, formula, **operands)
        record("weights of channels", weights, pairs, "softmax(e, key)", e=(masked, pairs))
        record("mean", mean, cells, "sum(w * v, key)", w=(weights, pairs), v=(v, keys))
        record("gated", gated, cells, "sigmoid(q) * mean", q=(q, cells), mean=(mean, cells))

    def _both_ways(self, k: Tensor, v: Tensor, layout: Layout | None) -> Tensor:
        """The encoder: all real tokens count, with exponents relative to the largest key of each channel and row."""
        mask = None if layout is None else layout.mask[..., None]
        if self.form == "simple":
            return WeightedSum.over(k, v, mask, 1).mean().expand_as(v)
        extent = k.size(1)
        place = torch.arange(extent, device=k.device)
        if self.form == "full" or extent <= BLOCK:
            return self._product(k, v, mask, self._positions(place, place)).mean()
        each = WeightedSum.of(k, v, mask)
        before, behind = prefix_sums(each), prefix_sums(each.flip()).flip()
        means = []
        for begin in range(0, extent, BLOCK):
            own = place[begin : begin + BLOCK]
            near = slice(max(0, begin - self.window), min(extent, begin + BLOCK + self.window))
            bias = self._positions(own, place[near])
            here = self._product(k[:, near], v[:, near], None if mask is None else mask[:, near], bias)
            if near.start > 0:
                here = here.join(before.at(slice(near.start - 1, near.start)))
            if near.stop < extent:
                here = here.join(behind.at(slice(near.stop, near.stop + 1)))
            means.append(here.mean())
        return torch.cat(means, 1)

    def _product(self, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor) -> WeightedSum:
        """All queries over all keys by a matrix product: bias [H, T, S], k and v [B, S, D]."""
        k = to_float32(k) if mask is None else torch.where(mask, to_float32(k), -torch.inf)
        top, most = k.detach().amax(1, keepdim=True).clamp_min(-1e30), bias.detach().amax(-1)
        weight = (k - top).exp()
        both = torch.stack([weight * to_float32(v), weight], -1).unflatten(2, (bias.size(0), -1))
        total, norm = torch.einsum("hts,bshdp->pbthd", (bias - most[..., None]).exp(), both).flatten(3)
        return WeightedSum(total, norm, top + self._spread(most.T, k.size(-1)))

    def _whole(self, k: Tensor, v: Tensor) -> Tensor:
        """Causal, from the first token on. Exponents are relative to the largest key before the chunk, never to a later one."""
        extent = k.size(1)
        place = torch.arange(extent, device=k.device)
        before = None if self.form == "full" else prefix_sums(WeightedSum.of(k, v))
        means = []
        for begin in range(0, extent, CHUNK):
            own = place[begin : begin + CHUNK]
            near = slice(0 if before is None else max(0, begin - self.window), begin)
            among = self._spread(self._positions(own, own).permute(1, 2, 0), k.size(-1))  # [T, S, D]
            seen = (own <= own[:, None])[..., None]
            keys, values = (part[:, None, begin : begin + CHUNK] for part in (k, v))
            here = WeightedSum.over(keys + among, values, seen, 2)
            here = WeightedSum(here.total[:, :, 0], here.weight[:, :, 0], here.top[:, :, 0])
            if begin:
                here = here.join(self._product(k[:, near], v[:, near], None, self._positions(own, place[near])))
            if before is not None and near.start > 0:
                here = here.join(before.at(slice(near.start - 1, near.start)))
            means.append(here.mean())
        return torch.cat(means, 1)

    def _steps(self, tokens: Tensor, place: Tensor) -> Tensor:
        """Causal, from a history: tokens at positions `place` [B, T], which differ between rows, one after the other."""
        if self.max_length is not None:
            tokens, place = tokens[:, : self.max_length], place.clamp_max(self.max_length - 1)
        k, v = tokens.chunk(2, -1)
        cells = torch.arange(k.size(1), device=k.device)
        means = []
        for now in place.unbind(1):
            among = self._spread(self._positions(now, cells).permute(1, 2, 0), k.size(-1))  # [B, S, D]
            means.append(WeightedSum.over(k + among, v, (cells <= now[:, None])[..., None], 1).mean())
        return torch.cat(means, 1)

    def _positions(self, queries: Tensor, keys: Tensor) -> Tensor:
        """w [H or 1, T, S] in float32 between positions queries [T] and keys [S]."""
        apart = queries[:, None] - keys
        if self.form == "conv":
            tap = apart + (0 if self.causal else self.window // 2)
            inside = (tap >= 0) & (tap < self.window)
            return torch.where(inside, to_float32(self.taps[:, tap.clamp(0, self.window - 1)]), 0.0)
        rows = to_float32(self.rows[queries])
        bias = rows[:, keys] if self.columns is None else rows @ to_float32(self.columns[keys]).T
        return (bias if self.form == "full" else torch.where(apart.abs() < self.window, bias, 0.0))[None]

    def _spread(self, heads: Tensor, width: int) -> Tensor:
        """[…, H] → […, D]: repeats the value of each head for all its channels."""
        return heads.repeat_interleave(width // heads.size(-1), -1)
