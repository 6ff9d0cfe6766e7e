"""Combinations: patterns in one softmax (joined) or one per head (mixed), and any mechanisms side by side (parts)."""

from dataclasses import replace
from functools import reduce
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Mixer, Site, add_extras, combine_packing
from weft.attention.core.sparsity_patterns import Joined, PatternAttention, PatternSpec, build_patterns
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State


class JoinedAttention(PatternAttention):
    """Every query attends to the keys that any of several patterns allows, in one softmax: local and strided, local and global.

    patterns: the patterns, each by its name or with its options
    bias: whether the projections have a bias
    """

    paper = "Child et al. 2019; Beltagy et al. 2020"
    cost = "the sum of its patterns"

    def __init__(
        self,
        site: Site,
        *,
        patterns: list[PatternSpec] = [{"kind": "local"}, {"kind": "strided"}],  # noqa: B006
        bias: bool = True,
    ) -> None:
        if not patterns:
            raise ConfigError("patterns: the list is empty; name at least one pattern, as in `patterns: [local, global]`")
        built = build_patterns(patterns, site.use == "causal")
        super().__init__(site, Joined(tuple(built)), bias=bias)


class MixedAttention(PatternAttention):
    """Every head has its own pattern: `heads: [local, local, strided, global]`.

    heads: the pattern of each head, by its name or with its options; in a shorter list each pattern is for several heads in a
      row
    bias: whether the projections have a bias
    """

    paper = "Child et al. 2019"
    cost = "the sum of its heads"

    def __init__(
        self,
        site: Site,
        *,
        heads: list[PatternSpec] = [{"kind": "local"}, {"kind": "global"}],  # noqa: B006
        bias: bool = True,
    ) -> None:
        if not heads or site.heads % len(heads):
            raise ConfigError(
                f"heads: {len(heads)} patterns for {site.heads} heads; name one per head, or a number that divides {site.heads}"
            )
        built = build_patterns(heads, site.use == "causal")
        each = site.heads // len(heads)
        super().__init__(site, *(pattern for pattern in built for _ in range(each)), bias=bias)


Part = Attention | Mixer


class PartsAttention(Attention):
    """Attentions and mixers of any kind divide the width and the heads evenly; one projection joins their outputs.

    If all heads are softmax attention by patterns, `mixed` does the same with the projections of a single multi-head attention.

    parts: the attentions and mixers, each by its name or with its options
    """

    paper = "Wu et al. 2020; Roy et al. 2021"
    cost = "the sum of its parts"
    uses = frozenset({"encoder", "causal"})

    def __init__(
        self,
        site: Site,
        *,
        parts: list[Annotated[dict[str, Any], Among("weft.attention.mixers:SELF")]] = [  # noqa: B006
            {"kind": "local"},
            {"kind": "linear"},
        ],
    ) -> None:
        super().__init__(site)
        if not parts or site.heads % len(parts) or site.dim % len(parts):
            raise ConfigError(
                f"parts: {len(parts)} parts for {site.heads} heads and a width of {site.dim}; the number must divide both"
            )
        own = replace(site, dim=site.dim // len(parts), heads=site.heads // len(parts))
        built: list[Part] = [build("weft.attention.mixers:SELF", spec, own) for spec in parts]
        self.parts = nn.ModuleList(built)
        self.share = nn.Linear(site.dim, site.dim)
        self.out = nn.Linear(sum(part.context_width for part in built), site.dim)
        sums, reaches = {part.weights_sum for part in built}, {part.receptive_field for part in built}
        self.weights_sum = None if None in sums else "one" if sums == {"one"} else "at most one"
        self.receptive_field = "all" if "all" in reaches else "data" if "data" in reaches else "pattern"
        self.ignores_key_order = all(part.ignores_key_order for part in built)
        combine_packing(self, built)
        self.extras = frozenset().union(*(part.extras for part in built))
        self.max_length = min((part.max_length for part in built if part.max_length is not None), default=None)

    def _each(self) -> list[Part]:
        return cast(list[Part], list(self.parts))

    def sees(self, length: int) -> Tensor:
        return reduce(torch.logical_or, (part.sees(length) for part in self._each()))

    def init_state(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        shares = [None] * len(self.parts) if memory is None else self.share(memory).chunk(len(self.parts), -1)
        return [_start(part, own, layout, rows, room) for part, own in zip(self._each(), shares, strict=True)]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        extras: dict[str, Tensor] = {}
        outputs: list[Attended] = []
        shares = self.share(query).chunk(len(self.parts), -1)
        for part, own, before in zip(self._each(), shares, state, strict=True):
            tokens = {"append": own} if isinstance(part, Attention) else {}
            outputs.append(part(own, before, layout=layout, need_weights=need_weights, **tokens))
            add_extras(extras, outputs[-1].extras)
        context = self.out(torch.cat([one.context.to(query.dtype) for one in outputs], -1))
        weights = None
        heads = [one.weights for one in outputs if one.weights is not None]
        if len(heads) == len(outputs):  # every part shows weights, perhaps over different numbers of keys
            keys = max(each.size(-1) for each in heads)
            weights = torch.cat([F.pad(each, (0, keys - each.size(-1))) for each in heads], 1)
        return Attended(context, [one.state for one in outputs], weights, extras)


def _start(part: Part, memory: Tensor | None, layout: Layout | None, rows: int, room: int | None) -> State:
    """The state before the first token, or after the earlier tokens `memory` [B, M, D]."""
    if isinstance(part, Attention):
        return part.init_state(memory, layout, rows=rows, room=room)
    before = part.init_state(rows=rows if memory is None else memory.size(0), room=room)
    return before if memory is None else part(memory, before, layout=layout).state
