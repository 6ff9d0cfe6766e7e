"""Attention to a local window."""

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.core import sparsity_patterns
from weft.attention.core.sparsity_patterns import PatternAttention
from weft.layers.kernels.cpp_plan import PlanBuilder, Register


@dataclass(frozen=True)
class Local(sparsity_patterns.Pattern):
    """The tokens at most `window` positions away; in causal use the last `window` tokens, including the query's own.

    window: how far a query sees
    """

    causal: bool
    _: KW_ONLY
    window: PositiveInt = 64

    @property
    def span(self) -> tuple[int, int]:
        return (self.window - 1, 0) if self.causal else (self.window, self.window)

    @property
    def chunk(self) -> int:
        return max(sparsity_patterns.SMALLEST, min(sparsity_patterns.margin(self.window), sparsity_patterns.LARGEST))

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        before, after = self.span
        away = query - key
        return (away <= before) & (away >= -after)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        before, after = self.span
        return sparsity_patterns.neighbours(x, chunk, sparsity_patterns.margin(before), sparsity_patterns.margin(after))


class LocalAttention(PatternAttention, pattern=Local):
    """Every query attends to the keys at most `window` positions away (in causal use: the last `window`, itself included).

    Causal decoding stores only the last `window` tokens.
    """

    paper = "Luong et al. 2015; Beltagy et al. 2020"
    cost = "n·window"

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.part(self.heads, x)
