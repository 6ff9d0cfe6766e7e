"""Patterns: which keys a query may attend to by position, and attention by pattern, whose cost grows with the visible pairs.

`allows` says exactly which pairs of positions may attend to each other. A long sequence is cut into groups of queries, and
`keys` gathers for each group the few keys that any of its queries may attend to; disallowed pairs are then masked. All groups
form one batch of small dense attentions, which a fused kernel can compute. Short sequences, chunks and single steps use a mask.
Gathering too many keys costs time. Gathering too few is caught by the tests against the masked full matrix.

Shapes: B rows · H heads · n tokens · D head width · C groups · T queries of a group · S keys of a group · E extra tokens · …
further axes of a token.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site, join_heads
from weft.attention.core import dot_product
from weft.attention.core.dot_product import AttendOptions, Context, KeyValueStore, attend, masked_softmax, mix
from weft.attention.core.kv_cache import ConcatenatedKeyValues, KeyValueCache, SlidingWindowCache
from weft.attention.core.multihead import MultiHead, MultiHeadAttention
from weft.attention.core.packed_sequences import Heads, attend_window, by_rows, flash_available, packing
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.layers.linear_norm_dropout import dropout as drop
from weft.layers.recurrent import repack, unpack
from weft.layers.step_recorder import steps_under
from weft.torch_startup import complete_torch

PATTERNS = {
    "full": "weft.attention.core.sparsity_patterns:Everything",
    "local": "weft.attention.local:Local",
    "strided": "weft.attention.sparse_transformer:Strided",
    "fixed": "weft.attention.sparse_transformer:Fixed",
    "global": "weft.attention.longformer:Global",
    "random": "weft.attention.bigbird:Random",
    "longformer": "weft.attention.longformer:Longformer",
    "bigbird": "weft.attention.bigbird:BigBird",
}
"""The patterns that a head may have. Each is also an attention of its own."""

PatternSpec = Annotated[dict[str, Any], Among("weft.attention.core.sparsity_patterns:PATTERNS")]
"""A pattern in a configuration: its name, or its `kind` and options."""

SMALLEST = 64
"""The smallest group of queries, if the pattern leaves the choice: smaller products do not pay off."""

LARGEST = 1024
"""The largest group of queries."""


class Pattern(ABC):
    """A set of pairs of positions. Patterns with equal settings are equal, and have the options of the attention of that name.

    insists: groups of queries must have exactly `chunk` members · regroups: its groups are not neighbours, so that other
    patterns cannot share them.
    """

    insists: bool = False
    regroups: bool = False

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """bool, for positions of broadcastable shapes. In causal use, later keys are excluded separately."""

    @abstractmethod
    def keys(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, S, …]: the keys that each group may attend to; zeros beyond the ends."""

    @property
    def chunk(self) -> int:
        """The preferred number of neighbouring queries in a group."""
        return LARGEST

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        """The positions [1 or B, G] of queries that attend to everything (causal: everything before), in one or more sets."""
        return []

    @property
    def span(self) -> tuple[int, int] | None:
        """(before, after) if a query sees exactly the tokens up to that far before and after it."""
        return None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        """The simple patterns whose union this is."""
        return (self,)

    def split(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, T, …]: queries in groups, padded with zeros."""
        return neighbours(x, chunk, 0, 0)

    def join(self, x: Tensor, extent: int) -> Tensor:
        """[B, C, T, …] → [B, n, …], the inverse of `split`."""
        return x.flatten(1, 2)[:, :extent]

    def bound(self, length: int | Tensor) -> Pattern:
        """The pattern for sentences of these lengths (one, [B] per row, or [B, n] per token), if it depends on them."""
        return self

    def sees(self, length: int, causal: bool) -> Tensor:
        """[length, length] bool."""
        place = torch.arange(length)
        seen = self.bound(length).allows(place[:, None], place[None])
        return seen.tril() if causal else seen


class Union(Pattern):
    """The pairs that any of several patterns allows, in one softmax."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Pattern, ...]: ...

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        return [places for part in self.parts for places in part.everywhere(extent, device)]

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return reduce(torch.logical_or, (part.allows(query, key) for part in self.parts))

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return torch.cat([part.keys(x, chunk) for part in self.parts], 2)

    def bound(self, length: int | Tensor) -> Pattern:
        return Joined(tuple(part.bound(length) for part in self.parts))


@dataclass(frozen=True)
class Joined(Union):
    """The union of the given patterns."""

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        blocks = {part.chunk for part in self.parts if part.insists}
        if len(blocks) > 1:
            raise ConfigError(
                f"patterns: random patterns in one head need the same block size, not {', '.join(map(str, sorted(blocks)))}"
            )

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(part for pattern in self.patterns for part in pattern.parts)


@dataclass(frozen=True)
class Everything(Pattern):
    """Every token."""

    causal: bool

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=key.device)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x, x.size(1), chunk)


def build_patterns(specs: list[dict[str, Any]], causal: bool) -> list[Pattern]:
    return [build("weft.attention.core.sparsity_patterns:PATTERNS", spec, causal) for spec in specs]


def neighbours(x: Tensor, chunk: int, before: int, after: int) -> Tensor:
    """x [B, n, …] → [B, C, before + chunk + after, …]: each chunk of tokens with its surroundings, zeros beyond the ends."""
    fill = -x.size(1) % chunk
    if before or after or fill:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (before, fill + after))
    return x.unfold(1, before + chunk + after, chunk).movedim(-1, 2)


def for_each_group(x: Tensor, extent: int, chunk: int) -> Tensor:
    """x [B, S, …] → [B, C, S, …]: the same for each chunk of `extent` queries."""
    return x[:, None].expand(-1, -(-extent // chunk), *[-1] * (x.dim() - 1))


def margin(count: int) -> int:
    """`count` rounded up to a multiple of eight, which kernels prefer."""
    return -(-count // 8) * 8


class LearnedTokens(nn.Module):
    """E learned global tokens of an encoder, which come before every sentence inside the mechanism, and not in its output.

    First they attend to the sentence, g = e + attention(e, [e; x]). Then the tokens attend to [g; x] by their pattern, in which
    the first E positions are global. So any two tokens are two steps apart within one layer.
    """

    def __init__(self, site: Site, count: int) -> None:
        super().__init__()
        if site.use == "causal":
            raise ConfigError(
                "learned: extra tokens see the whole sentence, so a decoder cannot have them; set it to 0 there, and use tokens"
            )
        self.count = count
        self.vectors = nn.Parameter(torch.randn(count, site.dim))

    def run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        """As `Attention.run`. The weights leave out the extra tokens."""
        if layout is not None and layout.packed:
            rows, own = unpack(x, layout)
            return Attended(repack(self._run(heads, rows, own, False).context, layout))
        return self._run(heads, x, layout, need_weights)

    def _run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        longer = None if layout is None else layout.cached(("extra tokens", self.count), lambda: _prepend(layout, self.count))
        extra = self.vectors.to(x.dtype).expand(x.size(0), -1, -1)
        q, k, v = heads.own(torch.cat([extra, x], 1))
        ok = None if longer is None else longer.mask[:, None, None]
        dropout = heads.site.dropout if self.training else 0.0
        with steps_under("learned tokens"):
            seen, _ = mix(q[:, :, : self.count], k, v, ok, dropout, False)
        both = torch.cat([extra + heads.out(join_heads(seen)).to(x.dtype), x], 1)
        attended = heads.run(both, ConcatenatedKeyValues(), both, longer, need_weights)
        weights = None if attended.weights is None else attended.weights[:, :, self.count :, self.count :]
        return replace(attended, context=attended.context[:, self.count :], state=None, weights=weights)


def _prepend(layout: Layout, count: int) -> Layout:
    """The layout of a padded batch with `count` more tokens before each row."""
    segments = F.pad(layout.segments, (count, 0), value=1)
    positions = torch.arange(segments.size(1), device=segments.device).expand(segments.shape)
    known = None if layout.known is None else tuple(count + each for each in layout.known)
    return Layout(segments, positions, None, layout.longest + count, known)


@dataclass(frozen=True)
class PatternScoring:
    """Attention by pattern, in place of `dot_product.attend`. runs: patterns, each with its number of adjacent heads."""

    runs: tuple[tuple[Pattern, int], ...]

    @staticmethod
    def of(patterns: Sequence[Pattern], heads: int) -> PatternScoring:
        """Takes one pattern for all heads, or one per head."""
        each = patterns if len(patterns) == heads else heads * list(patterns)
        return PatternScoring(tuple((pattern, len(list(run))) for pattern, run in groupby(each)))

    @property
    def past(self) -> int | None:
        """The number of earlier tokens that matter; None if a head looks back without limit."""
        spans = [pattern.span for pattern, _ in self.runs]
        return max(span[0] for span in spans if span) if all(spans) else None

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, H or 1, T, S] for query positions [B, T, 1] and key positions [B, 1, S]."""
        masks = [pattern.allows(query, key)[:, None].expand(-1, count, -1, -1) for pattern, count in self.runs]
        return masks[0][:, :1] if len(masks) == 1 else torch.cat(masks, 1)

    def __call__(self, q: Tensor, store: KeyValueStore | SlidingWindowCache, options: AttendOptions) -> Context:
        extent, need_weights = q.size(2), options.need_weights
        if isinstance(store, SlidingWindowCache):
            if store.calls > 1 or need_weights:
                return self._attend_window(q, store, options)
            k, v = store.k[:, :, -extent:], store.v[:, :, -extent:]
            return self._attend_sequence((q, k, v), options), None
        if isinstance(store, KeyValueCache) or need_weights or store.k is None or store.v is None or store.k.size(2) != extent:
            return attend(q, store, options, self._bound(q, options).mask)
        return self._attend_sequence((q, store.k, store.v), options), None

    def _bound(self, q: Tensor, options: AttendOptions) -> PatternScoring:
        """The patterns for the sentences of these rows. Causal ones do not depend on them."""
        if options.causal:
            return self
        layout = options.layout
        length = q.size(2) if layout is None else layout.cached("sentence lengths", lambda: _sentence_lengths(layout))
        return PatternScoring(tuple((pattern.bound(length), count) for pattern, count in self.runs))

    def _attend_sequence(self, heads: Heads, options: AttendOptions) -> Tensor:
        """Attends within a whole sequence. Without a kernel for packed rows, their sentences are unpacked to rows first."""
        spans, layout = [pattern.span for pattern, _ in self.runs], options.layout
        if layout is not None and layout.packed and not (all(spans) and flash_available(heads[0])):
            return by_rows(heads, layout, lambda inside, rows: self._attend_sequence(inside, options._replace(layout=rows)))
        counts = [count for _, count in self.runs]
        split = zip(*(part.split(counts, 1) for part in heads), strict=True)
        contexts = [_attend(pattern, part, options) for (pattern, _), part in zip(self.runs, split, strict=True)]
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts, 1)

    def _attend_window(self, q: Tensor, ring: SlidingWindowCache, options: AttendOptions) -> Context:
        """Attends from the newest tokens of a ring buffer to the tokens before them."""
        assert options.positions is not None
        (cell, real), positions = ring.cells(), options.positions
        seen = real[:, None] & (cell[:, None] <= positions[:, :, None])
        mask = seen[:, None] & self.mask(positions[:, :, None], cell[:, None])
        context, weights = mix(q, ring.k, ring.v, mask, options.dropout, options.need_weights)
        return context, None if weights is None else ring.spread(weights)


class PatternAttention(MultiHeadAttention):
    """Softmax over the keys that a pattern of positions allows: one pattern for all heads, or one per head.

    `class LocalAttention(PatternAttention, pattern=Local)` has the options of `Local`, and bias; with `learns`, also learned.
    """

    uses = frozenset({"encoder", "causal"})
    instead: ClassVar[dict[str, str]] = {
        "cross": "a pattern compares positions, which two sequences do not share; use full, or local_m or local_p"
    }
    weights_sum: Literal["one", "at most one"] | None = "one"
    receptive_field: Literal["all", "pattern", "data"] = "pattern"
    supports_packing = True

    def __init_subclass__(cls, pattern: type[Any] | None = None, learns: bool = False) -> None:
        super().__init_subclass__()
        if pattern is None:
            return

        def init(self: PatternAttention, site: Site, *, learned: NonNegativeInt = 0, bias: bool = True, **options: Any) -> None:
            """
            learned: number of extra global tokens, which are learned; encoder only
            bias: whether the projections have a bias
            """
            causal, extra = site.use == "causal", (learned,) if learned else ()
            PatternAttention.__init__(self, site, pattern(causal, *extra, **options), bias=bias, learned=learned)

        # The registry reads the options from the signature, the annotations and the docstring.
        own, theirs = inspect.signature(init).parameters, inspect.signature(pattern).parameters
        keywords = [each for each in theirs.values() if each.kind is inspect.Parameter.KEYWORD_ONLY]
        parameters = [own["self"], own["site"], *keywords, *([own["learned"]] if learns else []), own["bias"]]
        init.__dict__["__signature__"] = inspect.Signature(parameters)
        init.__annotations__ |= get_type_hints(pattern.__init__, include_extras=True)
        init.__doc__ = "\n".join(inspect.getdoc(each) or "" for each in (*pattern.__mro__[:-1], init))
        cls.__init__ = init  # type: ignore[method-assign, assignment]

    def __init__(self, site: Site, *patterns: Pattern, bias: bool, learned: int = 0) -> None:
        super().__init__(site)
        self.patterns = patterns
        scoring = PatternScoring.of(patterns, site.heads)
        self.heads = MultiHead(site, bias=bias, scoring=scoring, past=scoring.past)
        self.learned: LearnedTokens | None = None
        if learned:
            self.learned, self.receptive_field, self.weights_sum = LearnedTokens(site, learned), "all", "at most one"

    def sees(self, length: int) -> Tensor:
        if self.learned is not None:
            return super().sees(length)
        causal = self.site.use == "causal"
        return reduce(torch.logical_or, (pattern.sees(length, causal) for pattern in self.patterns))

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if self.learned is None:
            return super().run(query, state, append, layout, need_weights)
        return self.learned.run(self.heads, query, layout, need_weights)


@dataclass(frozen=True)
class Tiling:
    """Queries in groups of `chunk`, and the patterns whose keys they attend to, without pairs that `earlier` patterns allow."""

    parts: tuple[Pattern, ...]
    earlier: tuple[Pattern, ...]
    chunk: int
    causal: bool

    def keys(self, x: Tensor) -> list[Tensor]:
        """x [B, n, …] → [B, C, S, …] for each part."""
        return [part.keys(x, self.chunk) for part in self.parts]

    def area(self, extent: int) -> int:
        """The number of pairs formed for a row of `extent` tokens."""
        place = torch.empty(1, extent, device="meta")
        return self.parts[0].split(place, self.chunk).numel() * sum(keys.size(2) for keys in self.keys(place))

    def mask(self, rows: int, extent: int, ok: Tensor | None, device: torch.device) -> Tensor:
        """[B·C, 1, T, S] bool. Positions are grouped like queries and keys, counted from 1, so that 0 marks padding."""
        place = torch.arange(1, extent + 1, device=device, dtype=torch.int32)[None]
        query = self.parts[0].split(place, self.chunk)[..., None] - 1
        masks, before = [], list(self.earlier)
        for part, keys in zip(self.parts, self.keys(place), strict=True):
            key = keys[:, :, None] - 1
            allowed = part.allows(query, key) & (key >= 0)
            for other in before:
                allowed = allowed & ~other.allows(query, key)
            masks.append(allowed & (key <= query) if self.causal else allowed)
            before.append(part)
        distinct = max(mask.size(0) for mask in masks)  # 1, or the rows, if a pattern depends on their lengths
        mask = torch.cat([mask.expand(distinct, -1, -1, -1) for mask in masks], -1).expand(rows, -1, -1, -1)
        if ok is not None:
            mask = mask & _beside(self.keys(ok))[:, :, None]
        return mask.flatten(0, 1)[:, None]

    def tiles(self, heads: Heads) -> Heads:
        """[B, H, n, D] → [B·C, H, T or S, D]."""
        q, k, v = (part.transpose(1, 2) for part in heads)
        grouped = self.parts[0].split(q, self.chunk), *(_beside(self.keys(x)) for x in (k, v))
        q, k, v = (part.transpose(2, 3).flatten(0, 1) for part in grouped)
        return q, k, v

    def back(self, x: Tensor, rows: int, extent: int) -> Tensor:
        """[B·C, H, T, D] → [B, H, n, D]."""
        return self.parts[0].join(x.unflatten(0, (rows, -1)).transpose(2, 3), extent).transpose(1, 2)


def _beside(keys: list[Tensor]) -> Tensor:
    """Concatenates the keys of several patterns, [B, C, S, …] each; those of a single pattern stay a view."""
    return keys[0] if len(keys) == 1 else torch.cat(keys, 2)


def _attend(pattern: Pattern, heads: Heads, options: AttendOptions) -> Tensor:
    """Attends over whole rows: by a fused kernel for windows, by tilings if they form fewer pairs, or with a mask."""
    (q, k, v), (causal, layout, _, dropout, _) = heads, options
    extent = q.size(2)
    padded = layout is not None and not layout.packed and layout.known != (extent,) * q.size(0)
    if pattern.span and (causal or not padded) and flash_available(q):
        return attend_window(q, k, v, pattern.span, packing(layout), dropout)
    everything = isinstance(pattern, Everything)
    sparse = not everything and extent * extent > dot_product.SHORT and _pairs(pattern, causal, extent) < extent * extent
    pattern = pattern.bound(layout.cached("lengths", lambda: layout.lengths) if layout is not None and padded else extent)
    if sparse:
        return _sparse(pattern, plan(pattern, causal), heads, layout if padded else None, dropout)
    allows = None if everything else (lambda query, key: pattern.allows(query, key)[:, None])
    segments, positions = (None, None) if layout is None else (layout.segments, layout.positions)
    place = torch.arange(extent, device=q.device)[None] if positions is None else positions
    store = ConcatenatedKeyValues(k, v, segments, positions)
    return attend(q, store, options._replace(positions=place), allows)[0]


def plan(pattern: Pattern, causal: bool) -> list[Tiling]:
    """One tiling for all patterns that keep neighbouring queries together, and one for each of the others."""
    together = tuple(part for part in pattern.parts if not part.regroups)
    tilings = []
    if together:
        chunk = next((part.chunk for part in together if part.insists), min(part.chunk for part in together))
        tilings.append(Tiling(together, (), chunk, causal))
    before = together
    for part in pattern.parts:
        if part.regroups:
            tilings.append(Tiling((part,), before, part.chunk, causal))
            before = (*before, part)
    return tilings


@lru_cache(maxsize=1024)
def _pairs(pattern: Pattern, causal: bool, extent: int) -> int:
    """The number of pairs that the tilings of a pattern form."""
    complete_torch()  # it computes on the device meta
    everywhere = pattern.everywhere(extent, torch.device("meta"))
    return sum(tiling.area(extent) for tiling in plan(pattern, causal)) + extent * sum(each.size(1) for each in everywhere)


def _sparse(pattern: Pattern, tilings: list[Tiling], heads: Heads, layout: Layout | None, dropout: float) -> Tensor:
    """The context of all tilings together. Queries that see everything attend separately."""
    q, k, v = heads
    rows, extent, ok = q.size(0), q.size(2), None if layout is None else layout.mask
    if len(tilings) == 1:
        grouped, _ = mix(*tilings[0].tiles(heads), _mask(tilings[0], q, layout), dropout, False)
        context = tilings[0].back(grouped, rows, extent)
    else:
        context = _merged(tilings, heads, layout, dropout)
    for places in pattern.everywhere(extent, q.device):
        where = places[:, None, :, None].expand(rows, q.size(1), -1, q.size(3))
        mask = None if ok is None else ok[:, None, None]
        if tilings[0].causal:
            past = torch.arange(extent, device=q.device) <= places[:, None, :, None]
            mask = past if mask is None else past & mask
        context = context.scatter(2, where, mix(q.gather(2, where), k, v, mask, dropout, False)[0])
    return context


def _merged(tilings: list[Tiling], heads: Heads, layout: Layout | None, dropout: float) -> Tensor:
    """One softmax over the keys of several tilings, each weighted by its sum of exp(scores)."""
    q, contexts, sums = heads[0], [], []
    for tiling in tilings:
        mine, keys, values = tiling.tiles(heads)
        mask = _mask(tiling, q, layout)
        scores = (mine @ keys.transpose(-1, -2)).float() / math.sqrt(q.size(-1))
        total = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).logsumexp(-1, keepdim=True)
        context = drop(masked_softmax(scores, mask, shown="").to(values.dtype), dropout) @ values
        contexts.append(tiling.back(context, q.size(0), q.size(2)))
        sums.append(tiling.back(total, q.size(0), q.size(2)))
    return (torch.stack(sums).softmax(0).to(q.dtype) * torch.stack(contexts)).sum(0)


def _sentence_lengths(layout: Layout) -> Tensor:
    """[B, n]: the length of each token's sentence."""
    segments = layout.segments.long()
    counts = torch.zeros(segments.size(0), segments.size(1) + 1, dtype=torch.long, device=segments.device)
    return counts.scatter_add_(1, segments, torch.ones_like(segments)).gather(1, segments)


def _mask(tiling: Tiling, q: Tensor, layout: Layout | None) -> Tensor:
    """The mask of a tiling, computed once for all layers. `layout` is given if rows are padded."""
    if layout is None:
        return tiling.mask(q.size(0), q.size(2), None, q.device)
    return layout.cached(("tiling", tiling), lambda: tiling.mask(q.size(0), q.size(2), layout.mask, q.device))
