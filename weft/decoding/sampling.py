"""Sampling with temperature, top-k and top-p."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from weft.decoding.search_methods import FEATURES, Search
from weft.decoding.token_selection import (
    CppSelector,
    LengthLimits,
    Selection,
    SelectorState,
    TokenSelector,
    extend_independently,
    uniform,
)


class SamplingSelector(TokenSelector):
    """Samples `count` texts per source.

    Random numbers are a hash of seed, sentence, sample and step, so a text does not depend on its batch.
    """

    def __init__(self, count: int = 1, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> None:
        self.width, self.temperature, self.top_k, self.top_p, self.seed = count, temperature, top_k, top_p, seed

    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        return SelectorState.empty(sources, self.width, self.width, device)

    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        logits, sample = logits.float(), torch.arange(self.width, device=logits.device)
        if self.temperature == 0:
            token = logits.argmax(-1)
        else:
            values, order = (logits / self.temperature).sort(-1, descending=True)
            chances = values.softmax(-1)
            if self.top_k:
                chances = chances.masked_fill(torch.arange(chances.size(-1), device=logits.device) >= self.top_k, 0.0)
            if self.top_p < 1:
                before = chances.cumsum(-1) - chances
                chances = chances.masked_fill(before >= self.top_p * chances.sum(-1, keepdim=True), 0.0)
            cumulative = chances.cumsum(-1)
            drawn = uniform(self.seed, limits.ids, sample, t)[..., None] * cumulative[..., -1:]
            place = (cumulative <= drawn).sum(-1, keepdim=True).clamp_max(cumulative.size(-1) - 1)
            token = order.gather(-1, place)[..., 0]
        logp = logits.gather(-1, token[..., None])[..., 0] - norm
        return extend_independently(state, token, logp, t, limits)

    def in_cpp(self) -> CppSelector | None:
        options = self.temperature, self.top_p, self.top_k, self.seed
        return CppSelector(2, self.width, 0, 0.0, 0.0, *options)


@dataclass(kw_only=True, eq=False)
class SampleSearch(Search):
    """Draws texts at random, decode.n_best per source; a score is the log-probability.

    temperature: below 1 is safer, above 1 bolder
    top_k: sample among this many of the most probable tokens; 0 means all
    top_p: sample among the most probable tokens that together have this probability
    seed: of the random numbers
    """

    kind = "sample"
    continuous = True
    accepts = frozenset(FEATURES) - {"use"}

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1

    def width(self, n_best: int) -> int:
        return n_best

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        return SamplingSelector(n_best, self.temperature, self.top_k, self.top_p, self.seed)
