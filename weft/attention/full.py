"""Scaled dot-product attention over everything."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from weft.attention.base import Site
from weft.attention.core.dot_product import attend
from weft.attention.core.multihead import LookFunction, MultiHead, MultiHeadAttention
from weft.attention.core.relative_positions import Alibi, Shaw
from weft.errors import ConfigError


class FullAttention(MultiHeadAttention):
    """Every query looks at every key: softmax(QKᵀ/√d)V in several heads.

    Positions of three kinds make a score depend on how far key and query are apart, so they have no meaning across two
    sequences and are refused there. Rotary ones turn queries and keys by where they stand (Su et al. 2021); alibi lowers a
    score with the distance, in an encoder on both sides alike (Press et al. 2022); shaw adds to keys, and to values, a learned
    vector for each distance (Shaw et al. 2018).

    position: rotary, alibi, shaw, or none
    rotary_base: the longest wavelength of rotary positions, in tokens, over 2π
    shaw_distance: from how far on all distances are one, for shaw
    shaw_values: whether values have vectors too, for shaw
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
        position: Literal["none", "rotary", "alibi", "shaw"] = "none",
        rotary_base: PositiveFloat = 10000.0,
        shaw_distance: PositiveInt = 16,
        shaw_values: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(site)
        if position != "none" and site.use == "cross":
            raise ConfigError(
                f"{position} positions have no meaning between two sequences; use position: none for cross-attention"
            )
        if position == "rotary" and site.head_dim % 2:
            raise ConfigError(f"rotary positions turn channels in pairs, so a head's width must be even, not {site.head_dim}")
        look: LookFunction = attend
        if position == "alibi":
            look = Alibi()
        elif position == "shaw":
            look = Shaw(site.head_dim, shaw_distance, shaw_values)
        self.heads = MultiHead(site, bias=bias, look=look, rotary=rotary_base if position == "rotary" else None)
        self.position = position
        self.ignores_key_order = position == "none"
