"""Combinations of patterns: in one softmax (joined), or one per head (mixed)."""

from __future__ import annotations

from weft.attention.base import Site
from weft.attention.core.block_sparse import PatternAttention
from weft.attention.core.sparsity_patterns import Joined, PatternSpec, build_patterns
from weft.errors import ConfigError


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
