"""The coverage penalty of beam search (Wu et al. 2016, section 7): a text that leaves source tokens unattended scores less.

Shapes: G sources · B rows · T tokens just fed · S source positions · H heads.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.attention.base import Attention
from weft.attention.core.weight_recorder import cross_attentions, record_weights
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State, shared, spread
from weft.layers.kernels import widest_float
from weft.models.base import Decoder, Encoded, HiddenStates
from weft.models.ensembles_and_wrapped_decoders import WrappedDecoder

LEAST = 1e-6
"""The least attention that counts: a token that got none would make every penalty infinite."""


def length_penalty(length: Tensor, like: Tensor, penalty: float, offset: float) -> Tensor:
    """lengthᵅ or, with an offset, ((offset + length) / (offset + 1))ᵅ (Wu et al. 2016, equation 14, where it is 5)."""
    length = length.to(like.dtype)
    return (length if offset == 0 else (length + offset) / (1 + offset)) ** penalty


@dataclass
class CoverageState:
    """The state of a decoder, with the attention that each hypothesis has paid to the source.

    seen [B, S]: Σ_j p_ij over the target tokens j that were predicted so far, and the one that is predicted next · real [G, S]:
    which positions hold a token.
    """

    inner: State
    seen: Tensor
    weight: float
    real: Tensor = shared()

    def penalty(self) -> Tensor:
        """[B]: β Σ_i log min(Σ_j p_ij, 1). In float64, so that the sum does not depend on the padding of a batch."""
        share = self.seen.to(widest_float(self.seen.device)).clamp(LEAST, 1.0).log()
        return self.weight * share.where(spread(self.real, share.size(0)), 0.0).sum(-1).float()


class CoverageDecoder(WrappedDecoder):
    """A decoder that adds up its attention to the source: the mean over all heads of all layers that attend to it."""

    def __init__(self, decoder: Decoder, weight: float) -> None:
        super().__init__(decoder)
        self.weight, self.attentions = weight, weighted_cross_attentions(decoder)

    def init_state(self, source: Encoded, *, room: int | None = None) -> CoverageState:
        seen = torch.zeros(source.memory.shape[:2], device=source.memory.device)
        return CoverageState(self.decoder.init_state(source, room=room), seen, self.weight, source.mask)

    def hidden_states(self, tokens: Tensor, state: CoverageState, layout: Layout | None = None) -> HiddenStates:
        with record_weights(self.attentions) as recorded:
            fed = self.decoder.hidden_states(tokens, state.inner, layout)
        each = [torch.cat(steps, 2).float().mean(1) for steps in recorded]
        if any(weights.size(-1) != state.seen.size(1) for weights in each):
            raise ConfigError(
                "decode.search.coverage_penalty: the models of this ensemble have memories of different lengths; set it to 0"
            )
        paid = torch.stack(each).mean(0)
        if layout is not None:
            paid = paid.where(layout.mask[..., None], 0.0)
        return replace(fed, state=replace(state, inner=fed.state, seen=state.seen + paid.sum(1)))

    def inner_state(self, state: CoverageState) -> State:
        return state.inner

    def ending(self, state: CoverageState) -> Tensor:
        inner = super().ending(state)
        return state.penalty() if inner is None else state.penalty() + inner


def weighted_cross_attentions(decoder: Decoder) -> list[Attention]:
    """The attentions of a decoder to its source. Raises ConfigError if there are none, or if one shows no weights."""
    attentions = list(cross_attentions(decoder).values())
    if not attentions:
        raise ConfigError("decode.search.coverage_penalty: this model does not attend to a source; set it to 0")
    for attention in attentions:
        if attention.weights_sum is None:
            raise ConfigError(
                f"decode.search.coverage_penalty: {type(attention).__name__} shows no attention weights, which the penalty "
                "needs; set it to 0"
            )
    return attentions
