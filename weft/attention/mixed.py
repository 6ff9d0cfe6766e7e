"""Heads that look at different things."""

from __future__ import annotations

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import PatternSpec, build_patterns
from weft.errors import ConfigError


class MixedAttention(PatternAttention):
    """Every head has a pattern of its own: `heads: [local, local, strided, global]`.

    heads: what each head looks at, by its name or with its options; of a list of half as many, each is for two heads, and so on
    bias: whether the projections have one
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
                f"heads: {len(heads)} are named for {site.heads} heads; name one for each, or as many as divide {site.heads}"
            )
        built = build_patterns(heads, site.use == "causal")
        each = site.heads // len(heads)
        super().__init__(site, *(pattern for pattern in built for _ in range(each)), bias=bias)
