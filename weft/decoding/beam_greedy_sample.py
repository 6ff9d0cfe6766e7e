"""Choosers: what a step of the search loop decides. Which hypotheses continue, with which token, and which are finished.

Shapes: G sources · K running hypotheses per source · V vocabulary · N entries in the table of finished hypotheses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import EOS, PAD
from weft.layers.kernels.cpp import used

NEVER = float("-inf")

WORST_SCORE = 1e6
"""Taken from the score of a text that breaks a rule, so that it is chosen only if there is no other. `backtrace` adds it."""


@dataclass
class LengthLimits:
    """[G] each: the most and the fewest tokens of a text (`longest` counts EOS), and a number that names the sentence.

    bias [G, V], if given, is added to the logits first: −inf for tokens outside the vocabulary of a source. ending [G, K], at
    most 0, is added to the score of a hypothesis that ends with this step.
    """

    longest: Tensor
    shortest: Tensor
    ids: Tensor
    bias: Tensor | None = None
    ending: Tensor | None = None


@dataclass
class SelectorState:
    """The state of a chooser, on the device.

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
    found: SelectorState
    candidates: BeamCandidates | None = None


class TokenSelector(Protocol):
    """Chooses the next tokens. Nothing in `step` may wait for the device."""

    width: int

    def start(self, sources: int, device: torch.device) -> SelectorState: ...

    def step(self, logits: Tensor, norm: Tensor, found: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        """logits [G, K, V], −inf where a constraint forbids; norm [G, K] = logsumexp before constraints; t counts from 0."""
        ...


class BeamSelector:
    """Beam search. A finished score is log-probability / lengthᵅ, where the length counts generated tokens and EOS, plus the
    `ending` of the limits, such as a coverage penalty. With an offset, the length is (offset + length) / (offset + 1).

    Of the best 2K candidates, those among the first K may finish; at the longest length all do. `stop` says when a source
    is done: "exact", when no running hypothesis can beat the worst one kept; "length" and "first" are the two usual
    heuristics, which may miss a better hypothesis.
    """

    def __init__(
        self,
        width: int,
        penalty: float = 1.0,
        keep: int | None = None,
        stop: Literal["exact", "length", "first"] = "exact",
        offset: float = 0.0,
    ) -> None:
        self.width, self.penalty, self.keep, self.stop, self.offset = width, penalty, keep or width, stop, offset

    def start(self, sources: int, device: torch.device) -> SelectorState:
        found = SelectorState.empty(sources, self.width, self.keep, device)
        found.score[:, 1:] = NEVER  # all hypotheses are equal at first, so only one of them counts
        return found

    def step(self, logits: Tensor, norm: Tensor, found: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        top, parent, token = candidates(logits, found.score - norm, 2 * self.width)
        last = (t + 1 >= limits.longest)[:, None]
        ends, width = (token == EOS) | last, self.width
        may_end = (logits[:, :, EOS] > NEVER).gather(1, parent)
        rank = torch.arange(top.size(1), device=top.device)
        final = self._final(top, parent, t, limits)
        # A hypothesis that is cut off where EOS is forbidden ranks below all others.
        final = torch.where(may_end, final, final - WORST_SCORE)
        final = torch.where(ends & (rank < width) & (top > NEVER) & ~found.done[:, None], final, NEVER)
        kept = self._keep(found, final, parent, token, t)
        score, chosen = torch.where(ends, NEVER, top).topk(min(width, top.size(1)))
        if score.size(1) < width:
            missing = width - score.size(1)
            score, chosen = F.pad(score, (0, missing), value=NEVER), F.pad(chosen, (0, missing))
        done = found.done | last[:, 0] | self._decided(score.amax(1), kept.best, t, limits)
        found = replace(kept, score=score, done=done)
        return Selection(token.gather(1, chosen), parent.gather(1, chosen), found, BeamCandidates(top, parent, token))

    def _final(self, score: Tensor, parent: Tensor, t: Tensor, limits: LengthLimits) -> Tensor:
        """[G, N]: the scores of candidates that end with this step."""
        final = score / length_penalty(t + 1, score, self.penalty, self.offset)
        return final if limits.ending is None else final + limits.ending.gather(1, parent)

    def _keep(self, found: SelectorState, final: Tensor, parent: Tensor, token: Tensor, t: Tensor) -> SelectorState:
        """The table of finished hypotheses, with the new ones sorted in."""
        best, place = torch.cat([found.best, final], 1).topk(self.keep)

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], 1).gather(1, place)

        when = merge(found.when, t.expand_as(parent))
        return replace(found, best=best, when=when, parent=merge(found.parent, parent), token=merge(found.token, token))

    def _decided(self, lead: Tensor, best: Tensor, t: Tensor, limits: LengthLimits) -> Tensor:
        """[G]: whether no running hypothesis can enter the table any more."""
        full = best[:, -1] > NEVER
        if self.stop == "first":
            return full | (lead == NEVER)
        if self.stop == "exact" and self.penalty > 0:
            length = limits.longest
        else:
            length = t + (2 if self.stop == "exact" else 1)
        # The ending of a hypothesis is at most 0, so without it this is the most that it can reach.
        return (full & (lead / length_penalty(length, lead, self.penalty, self.offset) <= best[:, -1])) | (lead == NEVER)


class GreedySelector:
    """Takes the most probable token each time; scores as in beam search."""

    width = 1

    def __init__(self, penalty: float = 1.0, offset: float = 0.0) -> None:
        self.penalty, self.offset = penalty, offset

    def start(self, sources: int, device: torch.device) -> SelectorState:
        return SelectorState.empty(sources, 1, 1, device)

    def step(self, logits: Tensor, norm: Tensor, found: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        # On a CPU, `max` with indices is not vectorised; `top_k` is.
        best, token = top_k(logits[:, 0], 1) if logits.device.type == "cpu" else logits.max(-1)
        return _extend(found, token, best.float() - norm, t, limits, self.penalty, self.offset)


class SamplingSelector:
    """Samples `count` texts per source.

    Random numbers are a hash of seed, sentence, sample and step, so a text does not depend on its batch.
    """

    def __init__(self, count: int = 1, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> None:
        self.width, self.temperature, self.top_k, self.top_p, self.seed = count, temperature, top_k, top_p, seed

    def start(self, sources: int, device: torch.device) -> SelectorState:
        return SelectorState.empty(sources, self.width, self.width, device)

    def step(self, logits: Tensor, norm: Tensor, found: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
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
            ladder = chances.cumsum(-1)
            throw = uniform(self.seed, limits.ids, sample, t)[..., None] * ladder[..., -1:]
            rung = (ladder <= throw).sum(-1, keepdim=True).clamp_max(ladder.size(-1) - 1)
            token = order.gather(-1, rung)[..., 0]
        logp = logits.gather(-1, token[..., None])[..., 0] - norm
        return _extend(found, token, logp, t, limits)


def length_penalty(length: Tensor, like: Tensor, penalty: float, offset: float) -> Tensor:
    """lengthᵅ or, with an offset, ((offset + length) / (offset + 1))ᵅ (Wu et al. 2016, equation 14, where it is 5)."""
    length = length.to(like.dtype)
    return (length if offset == 0 else (length + offset) / (1 + offset)) ** penalty


def _extend(
    found: SelectorState,
    token: Tensor,
    logp: Tensor,
    t: Tensor,
    limits: LengthLimits,
    penalty: float = 0.0,
    offset: float = 0.0,
) -> Selection:
    """Extends hypotheses that do not compete: each runs until its EOS or its limit."""
    running = found.best == NEVER
    score = torch.where(running, found.score + logp, found.score)
    ends = running & ((token == EOS) | (t + 1 >= limits.longest)[:, None])
    own = torch.arange(token.size(1), device=token.device).expand_as(token)
    final = score / length_penalty(t + 1, score, penalty, offset)
    best = torch.where(ends, final if limits.ending is None else final + limits.ending, found.best)
    when = torch.where(ends, t, found.when)
    found = SelectorState(score, best, when, own, torch.where(ends, token, found.token), (~running | ends).all(1))
    return Selection(torch.where(running, token, PAD), None, found)


def uniform(seed: int, ids: Tensor, sample: Tensor, t: Tensor) -> Tensor:
    """[G, K] numbers in [0, 1), one per sentence, sample and step."""
    return hashed(ids[:, None] * 0x1E3779B97F4A7C15 + sample * 0x3F4A7C15D1B54A33 + t * 0x5851F42D4C957F2D, seed)


def hashed(x: Tensor, seed: int) -> Tensor:
    """Numbers in [0, 1), one per integer of x, by the bit mixing of splitmix64."""
    x = x + (seed * 0x2545F4914F6CDD1D) % (1 << 63)
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 16) & ((1 << 24) - 1)).float() / (1 << 24)


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
