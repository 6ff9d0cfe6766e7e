"""The coverage penalty of beam search (Wu et al. 2016, section 7): a text that leaves source tokens unattended scores less.

Shapes: G sources · B rows · T tokens just fed · S source positions · H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention
from weft.attention.core.weight_recorder import observe
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State, shared, spread
from weft.models.base import Decoder, Encoded, HiddenStates
from weft.models.wrapped_decoders import WrappedDecoder

LEAST = 1e-6
"""The least attention that counts: a token that got none would make every penalty infinite."""


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
        share = self.seen.double().clamp(LEAST, 1.0).log()
        return self.weight * share.where(spread(self.real, share.size(0)), 0.0).sum(-1).float()


class CoverageDecoder(WrappedDecoder):
    """A decoder that adds up its attention to the source: the mean over all heads of all layers that attend to it."""

    def __init__(self, decoder: Decoder, weight: float) -> None:
        super().__init__(decoder)
        self.weight, self.looks = weight, cross_attentions_of(decoder)

    def init_state(self, source: Encoded, *, room: int | None = None) -> CoverageState:
        rows, extent = source.memory.shape[:2]
        seen = torch.zeros(rows, extent, device=source.memory.device)
        real = torch.ones_like(seen, dtype=torch.bool) if source.layout is None else source.layout.mask
        return CoverageState(self.decoder.init_state(source, room=room), seen, self.weight, real)

    def hidden_states(self, tokens: Tensor, state: CoverageState, layout: Layout | None = None) -> HiddenStates:
        noted: list[list[Tensor]] = [[] for _ in self.looks]

        def note(place: int) -> Callable[[Attended], None]:
            return lambda found: noted[place].append(_weights(found))

        with ExitStack() as stack:
            for place, look in enumerate(self.looks):
                stack.enter_context(observe(look, note(place)))
            fed = self.decoder.hidden_states(tokens, state.inner, layout)
        each = [torch.cat(steps, 2).float().mean(1) for steps in noted]
        if any(weights.size(-1) != state.seen.size(1) for weights in each):
            raise ConfigError(
                "decode.search.coverage_penalty: the models of this ensemble have memories of different lengths; set it to 0"
            )
        paid = torch.stack(each).mean(0)
        if layout is not None:
            paid = paid.where(layout.mask[..., None], 0.0)
        return replace(fed, state=replace(state, inner=fed.state, seen=state.seen + paid.sum(1)))

    def ending(self, state: CoverageState) -> Tensor:
        return state.penalty()


def cross_attentions_of(decoder: Decoder) -> list[Attention]:
    """The attentions of a decoder to its source. Raises ConfigError if there are none, or if one shows no weights."""
    looks = [part for part in decoder.modules() if isinstance(part, Attention) and part.site.use == "cross"]
    if not looks:
        raise ConfigError("decode.search.coverage_penalty: this model does not attend to a source; set it to 0")
    for look in looks:
        if look.weights_sum is None:
            raise ConfigError(
                f"decode.search.coverage_penalty: {type(look).__name__} shows no attention weights, which the penalty needs; "
                "set it to 0"
            )
    return looks


def _weights(found: Attended) -> Tensor:
    assert found.weights is not None
    return found.weights
