"""Heads with different patterns."""

from __future__ import annotations

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import PatternSpec, build_patterns
from weft.errors import ConfigError


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
