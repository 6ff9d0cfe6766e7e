"""The selector of sampling."""

import torch
from torch import Tensor

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
