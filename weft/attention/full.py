"""Scaled dot-product attention over everything."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from weft.attention.base import Site
from weft.attention.multihead import MultiHead, MultiHeadAttention
from weft.errors import ConfigError


class FullAttention(MultiHeadAttention):
    """Every query looks at every key: softmax(QKᵀ/√d)V in several heads.

    Rotary positions turn queries and keys by where they stand (Su et al. 2021), so that a score depends on how far they
    are apart; they have no meaning across two sequences and are refused there.

    position: rotary, or none
    rotary_base: the longest wavelength of rotary positions, in tokens, over 2π
    bias: whether the projections have one
    """

    paper = "Vaswani et al. 2017"
    uses = frozenset({"encoder", "causal", "cross"})
    weights_sum = "one"
    ignores_key_order = True
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        position: Literal["none", "rotary"] = "none",
        rotary_base: PositiveFloat = 10000.0,
        bias: bool = True,
    ) -> None:
        super().__init__(site)
        if position == "rotary" and site.use == "cross":
            raise ConfigError("rotary positions have no meaning between two sequences; use position: none for cross-attention")
        if position == "rotary" and site.head_dim % 2:
            raise ConfigError(f"rotary positions turn channels in pairs, so a head's width must be even, not {site.head_dim}")
        self.heads = MultiHead(site, bias=bias, rotary=rotary_base if position == "rotary" else None)
        self.position = position
        self.ignores_key_order = position == "none"
