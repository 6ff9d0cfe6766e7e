"""Scaled dot-product attention over all positions."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from weft.attention.base import Site
from weft.attention.core.dot_product import attend
from weft.attention.core.multihead import MultiHead, MultiHeadAttention, Scoring
from weft.attention.core.relative_positions import Alibi, Shaw
from weft.errors import ConfigError
from weft.layers.kernels.cpp_plan import NotPlanned, PlanBuilder, Register


class FullAttention(MultiHeadAttention):
    """Every query attends to every key: multi-head softmax(QKᵀ/√d)V.

    Three kinds of relative positions make scores depend on the distance between key and query. Distances across two sequences
    are meaningless, so cross use refuses them. rotary rotates queries and keys by their positions (Su et al. 2021); alibi
    lowers a score with the distance, symmetrically in an encoder (Press et al. 2022); shaw adds a learned vector per distance
    to keys and values (Shaw et al. 2018).

    position: rotary, alibi, shaw, or none
    rotary_base: the longest wavelength of rotary positions, in tokens, divided by 2π
    shaw_distance: the largest distance that shaw distinguishes
    shaw_values: whether shaw adds vectors to values too
    bias: whether the projections have a bias
    """

    paper = "Vaswani et al. 2017"
    uses = frozenset({"encoder", "causal", "cross"})
    weights_sum = "one"
    ignores_key_order = True
    supports_packing = True

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
                f"position: {position} needs distances, which two sequences do not have; use position: none for cross-attention"
            )
        if position == "rotary" and site.head_dim % 2:
            raise ConfigError(f"rotary positions rotate pairs of channels, so the head width must be even, not {site.head_dim}")
        scoring: Scoring = attend
        if position == "alibi":
            scoring = Alibi()
        elif position == "shaw":
            scoring = Shaw(site.head_dim, shaw_distance, shaw_values)
        self.heads = MultiHead(site, bias=bias, scoring=scoring, rotary=rotary_base if position == "rotary" else None)
        self.position = position
        self.ignores_key_order = position == "none"

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        if self.heads.look is not attend:
            raise NotPlanned(f"position: {self.position}")
        return draft.part(self.heads, x)
