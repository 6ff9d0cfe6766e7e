"""Token selection: which hypotheses continue at a step of the search loop, with which token, and which are finished.

Shapes: G sources · K running hypotheses per source · V vocabulary · N entries in the table of finished hypotheses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft.data.batch import EOS, PAD
from weft.decoding.length_and_coverage_penalty import length_penalty
from weft.layers.kernels.cpp import used

NEVER = float("-inf")

WORST_SCORE = 1e6
"""Taken from the score of a text that breaks a rule, so that it is chosen only if there is no other. `backtrace` adds it."""


@dataclass
class LengthLimits:
    """[G] each: the most and the fewest tokens of a text (`max_tokens` counts EOS), and a number that names the sentence.

    bias [G, V], if given, is added to the logits first: −inf for tokens outside the vocabulary of a source. ending [G, K], at
    most 0, is added to the score of a hypothesis that ends with this step.
    """

    max_tokens: Tensor
    min_tokens: Tensor
    ids: Tensor
    bias: Tensor | None = None
    ending: Tensor | None = None


@dataclass
class SelectorState:
    """The state of a selector, on the device.

    score [G, K]: log-probabilities of running hypotheses · best [G, N]: final scores of finished ones; `when`, `parent` and
    `token` say at which step each ended, from which parent and with which token · done [G].
    """

    score: Tensor
    best: Tensor
    when: Tensor
    parent: Tensor
    token: Tensor
    done: Tensor

    @staticmethod
    def empty(sources: int, width: int, keep: int, device: torch.device) -> SelectorState:
        never = torch.full((sources, keep), NEVER, device=device)
        none = torch.zeros(sources, keep, dtype=torch.long, device=device)
        score = torch.zeros(sources, width, device=device)
        return SelectorState(score, never, none, none, none, torch.zeros(sources, dtype=torch.bool, device=device))


@dataclass
class BeamCandidates:
    """The best continuations of a step, [G, N] each, best first: those that continue or end, and the next best."""

    score: Tensor
    parent: Tensor
    token: Tensor


@dataclass
class Selection:
    """tokens [G, K] to feed next · parents [G, K]: the hypothesis that each continues, None if always itself.

    candidates: the alternatives, if hypotheses compete.
    """

    tokens: Tensor
    parents: Tensor | None
    selector_state: SelectorState
    candidates: BeamCandidates | None = None


class CppSelector(NamedTuple):
    """The options of a selector that the search in C++ has as well, in the order of its struct (cpp/search.h)."""

    method: int
    keep: int = 1
    stop: int = 0
    penalty: float = 0.0
    offset: float = 0.0
    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    seed: int = 0


class TokenSelector(ABC):
    """Selects the next tokens. Nothing in `step` may wait for the device. width: hypotheses per source."""

    width: int

    @abstractmethod
    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        """The state before the first step."""

    @abstractmethod
    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        """logits [G, K, V], −inf where a constraint forbids; norm [G, K] = logsumexp before constraints.

        t: the number of the step, from 0: a scalar, or [G, 1] in a `continuous` search, whose sources begin at different times.
        """

    def in_cpp(self) -> CppSelector | None:
        """The same selection in C++; None if there is none."""
        return None


def extend_independently(
    state: SelectorState,
    token: Tensor,
    logp: Tensor,
    t: Tensor,
    limits: LengthLimits,
    penalty: float = 0.0,
    offset: float = 0.0,
) -> Selection:
    """Extends hypotheses that do not compete: each runs until its EOS or its limit."""
    running = state.best == NEVER
    score = torch.where(running, state.score + logp, state.score)
    ends = running & ((token == EOS) | (t + 1 >= limits.max_tokens[:, None]))
    own = torch.arange(token.size(1), device=token.device).expand_as(token)
    final = score / length_penalty(t + 1, score, penalty, offset)
    best = torch.where(ends, final if limits.ending is None else final + limits.ending, state.best)
    when = torch.where(ends, t, state.when)
    state = SelectorState(score, best, when, own, torch.where(ends, token, state.token), (~running | ends).all(1))
    return Selection(torch.where(running, token, PAD), None, state)


def hashed(x: Tensor, seed: int) -> Tensor:
    """Numbers in [0, 1), one per integer of x, by the bit mixing of splitmix64."""
    x = x + (seed * 0x2545F4914F6CDD1D) % (1 << 63)
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 16) & ((1 << 24) - 1)).float() / (1 << 24)


def uniform(seed: int, ids: Tensor, sample: Tensor, place: Tensor) -> Tensor:
    """[G, K] numbers in [0, 1), one per sentence `ids` [G], sample and place, of which one is [K] and the other a scalar."""
    return hashed(ids[:, None] * 0x1E3779B97F4A7C15 + sample * 0x3F4A7C15D1B54A33 + place * 0x5851F42D4C957F2D, seed)


def candidates(logits: Tensor, score: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` continuations of each source: score in float32, parent, token [G, N], best first.

    logits [G, K, V] · score [G, K] is added to the logits of each hypothesis. Only the best tokens of each hypothesis are
    added up, because their order does not depend on its score.
    """
    sources, width, size = logits.shape
    own, token = top_k(logits.flatten(0, 1), min(count, size))
    each = own.size(1)
    total = (own.float().view(sources, width, each) + score[..., None]).flatten(1)
    top, index = total.topk(min(count, total.size(1)))
    return top, index // each, token.view(sources, width * each).gather(1, index)


def most_probable(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of the largest of each row of logits [..., V], and its index."""
    native = used(logits)
    if native is None:
        logp, index = logits.log_softmax(-1, dtype=torch.float32).max(-1)
        return logp, index
    rows, shape = logits.flatten(0, -2), logits.shape[:-1]
    best, place = native.best(rows, 1)
    return (best[:, 0] - native.log_sum(rows)).view(shape), place.view(shape)


def top_k(values: Tensor, k: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """The k largest values of each row [R, N] and their indices, by block maxima: several times faster for wide rows."""
    extent, native = values.size(1), used(values)
    if native is not None and k <= block:
        return native.best(values, k)
    if extent < 64 * block or k > extent // block // 2:
        return values.topk(k)
    whole = extent - extent % block
    highest = values[:, :whole].unflatten(1, (-1, block)).amax(-1)
    if whole < extent:
        highest = torch.cat([highest, values[:, whole:].amax(-1, keepdim=True)], 1)
    place = (highest.topk(k).indices[..., None] * block + torch.arange(block, device=values.device)).flatten(1)
    inside = values.gather(1, place.clamp_max(extent - 1))
    if whole < extent:
        inside = inside.masked_fill(place >= extent, NEVER)
    best, at = inside.topk(k)
    return best, place.gather(1, at)
