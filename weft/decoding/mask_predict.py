"""Writes all tokens of texts at once, on canvases, in one or several passes.

Shapes: G sources · B rows · T target positions · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.data.batch import BOS, EOS, PAD, UNK
from weft.decoding.constraints import Constraint, ForbidTokens, constrained_argmax
from weft.decoding.cpp_search import nonautoregressive_states
from weft.decoding.token_selection import NEVER, hashed, most_probable
from weft.models.base import Encoded
from weft.models.nonautoregressive import NonAutoregressiveDecoder, TargetCanvas


@dataclass(frozen=True)
class HashedUniform:
    """Uniform numbers that are a hash of the seed, the sentence [G], the draw and the place."""

    seed: int
    ids: Tensor

    def __call__(self, number: int, places: int) -> Tensor:
        place, draw = (torch.arange(start, end, device=self.ids.device) for start, end in ((0, places), (number, number + 1)))
        x = (self.ids * 0x1E3779B97F4A7C15)[:, None] + draw * 0x3F4A7C15D1B54A33 + place * 0x5851F42D4C957F2D
        return hashed(x, self.seed)


@dataclass
class RefinementState:
    """Texts on a canvas: tokens [B, T] and their log-probabilities [B, T].

    passes: the tokens after each pass, and which of them it wrote.
    """

    tokens: Tensor
    logp: Tensor
    passes: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def path_logits(decoder: NonAutoregressiveDecoder, hidden: Tensor) -> Tensor:
    """Logits [G, T, V] of paths, without special tokens."""
    logits = decoder.logits(hidden).float()
    logits[..., : UNK + 1] = NEVER
    return logits


def refine(
    decoder: NonAutoregressiveDecoder,
    source: Encoded,
    canvas: TargetCanvas,
    iterations: int = 1,
    shortest: Tensor | None = None,
    constraints: Sequence[Constraint] = (),
    owner: Tensor | None = None,
) -> RefinementState:
    """Writes on a canvas: everything, then again the ⌊N (I − i) / I⌋ least sure tokens in iteration i (mask-predict).

    Only masked tokens change, and only they get new log-probabilities. owner [B]: the source of each row, for constraints.
    """
    state, layout = decoder.open(source, canvas), canvas.layout
    lengths = layout.lengths
    writing = RefinementState(
        torch.full_like(layout.positions, decoder.blank), torch.zeros_like(layout.positions, dtype=torch.float32)
    )
    for iteration in range(iterations):
        masked = layout.mask
        if iteration:
            count = lengths * (iterations - iteration) // iterations
            sure = writing.logp.masked_fill(~layout.mask, float("inf")).argsort(dim=1, stable=True).argsort(dim=1)
            masked = (sure < count[:, None]) & layout.mask
        fed = writing.tokens.masked_fill(masked, decoder.blank)
        logits = decoder.logits(nonautoregressive_states(decoder, fed, state, layout)).float()
        for symbol in (PAD, BOS, UNK, decoder.blank):
            logits[..., symbol] = NEVER
        logits = _without_end(decoder, logits, shortest)
        kept = None if iteration == 0 else torch.where(masked | ~layout.mask, -1, writing.tokens)
        if depends_on_prefix(constraints):
            rows = torch.arange(len(lengths), device=lengths.device) if owner is None else owner
            best, tokens = constrained_argmax(logits.log_softmax(-1)[..., : decoder.blank], constraints, rows, kept)
        else:
            best, tokens = most_probable(logits)
        changed = (
            masked
            if kept is None or not depends_on_prefix(constraints)
            else masked | ((tokens != writing.tokens) & layout.mask)
        )
        writing.tokens, writing.logp = tokens.where(changed, writing.tokens), best.where(changed, writing.logp)
        writing.passes.append((writing.tokens, changed))
    return writing


def _without_end(decoder: NonAutoregressiveDecoder, logits: Tensor, shortest: Tensor | None) -> Tensor:
    """Logits without EOS, where texts have no end or may not end yet."""
    if decoder.canvases.holds == "text":
        logits[..., EOS] = NEVER
    elif shortest is not None:
        early = torch.arange(logits.size(1), device=logits.device) < shortest[:, None]
        logits[..., EOS] = logits[..., EOS].masked_fill(early, NEVER)
    return logits


def depends_on_prefix(constraints: Sequence[Constraint]) -> bool:
    """Whether a constraint depends on the tokens before, so that tokens have to be chosen from left to right."""
    return any(not isinstance(each, ForbidTokens) for each in constraints)
