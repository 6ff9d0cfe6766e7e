"""The base class of attentions by pattern."""

from __future__ import annotations

from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.block_sparse import PatternLook
from weft.attention.core.multihead import MultiHead, MultiHeadAttention
from weft.attention.core.patterns import Pattern


class PatternAttention(MultiHeadAttention):
    """Softmax over the keys that a pattern of positions allows: one pattern for all heads, or one per head."""

    uses = frozenset({"encoder", "causal"})
    instead: ClassVar[dict[str, str]] = {
        "cross": "a pattern compares positions, which two sequences do not share; use full, or local_m or local_p"
    }
    weights_sum = "one"
    reach = "pattern"
    packs = True

    def __init__(self, site: Site, *patterns: Pattern, bias: bool) -> None:
        super().__init__(site)
        self.patterns = patterns
        look = PatternLook.of(patterns, site.heads)
        self.heads = MultiHead(site, bias=bias, look=look, past=look.past)

    def sees(self, length: int) -> Tensor:
        causal = self.site.use == "causal"
        return reduce(torch.logical_or, (pattern.sees(length, causal) for pattern in self.patterns))
