"""The base class of attentions by pattern."""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.block_sparse import PatternLook
from weft.attention.core.multihead import MultiHead, MultiHeadAttention
from weft.attention.core.patterns import Pattern


class PatternAttention(MultiHeadAttention):
    """Softmax over the keys that a pattern of positions allows: one pattern for all heads, or one per head.

    `class LocalAttention(PatternAttention, pattern=Local)` has the options of `Local`, and bias.
    """

    uses = frozenset({"encoder", "causal"})
    instead: ClassVar[dict[str, str]] = {
        "cross": "a pattern compares positions, which two sequences do not share; use full, or local_m or local_p"
    }
    weights_sum = "one"
    reach = "pattern"
    packs = True

    def __init_subclass__(cls, pattern: type[Any] | None = None) -> None:
        super().__init_subclass__()
        if pattern is None:
            return

        def init(self: PatternAttention, site: Site, *, bias: bool = True, **options: Any) -> None:
            """bias: whether the projections have a bias"""
            PatternAttention.__init__(self, site, pattern(site.use == "causal", **options), bias=bias)

        # The registry reads the options from the signature, the annotations and the docstring.
        own, theirs = inspect.signature(init).parameters, inspect.signature(pattern).parameters
        keywords = [each for each in theirs.values() if each.kind is inspect.Parameter.KEYWORD_ONLY]
        parameters = [own["self"], own["site"], *keywords, own["bias"]]
        init.__dict__["__signature__"] = inspect.Signature(parameters)
        init.__annotations__ |= get_type_hints(pattern.__init__, include_extras=True)
        init.__doc__ = f"{inspect.getdoc(pattern)}\n{init.__doc__}"
        cls.__init__ = init  # type: ignore[method-assign, assignment]

    def __init__(self, site: Site, *patterns: Pattern, bias: bool) -> None:
        super().__init__(site)
        self.patterns = patterns
        look = PatternLook.of(patterns, site.heads)
        self.heads = MultiHead(site, bias=bias, look=look, past=look.past)

    def sees(self, length: int) -> Tensor:
        causal = self.site.use == "causal"
        return reduce(torch.logical_or, (pattern.sees(length, causal) for pattern in self.patterns))
