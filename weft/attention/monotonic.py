"""Monotonic attention: moves along the source and never back. Soft in training, a scan outside it.

Shapes: G sources · B rows · T queries · S keys · A width of a key · M width of the memory.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.attention.core.rnn_attention import AdditiveScore, SourceAttention, SourceStates, kept
from weft.data.batch import Layout
from weft.layers.decoder_state import State, spread
from weft.layers.step_recorder import record, recording, steps_under

NEVER = -1e4
"""The logarithm of a probability that is 0 in practice: finite, so that differences are not NaN."""

HALF = math.log(0.5)

BLOCK = 4
"""Keys that a scan scores first on a CPU, then twice as many, and so on. So a query that reads n keys scores at most 2n + 2,
and all T queries over S keys at most 2S + 4T. A GPU scores S per query: checking whether to continue would synchronise."""


@dataclass
class MonotonicState:
    """The source, and where the next scan begins.

    In training `begin` [B, S] holds the log-probability of each position; outside training `begin` [B] is the position.
    """

    source: SourceStates
    begin: Tensor


class MonotonicAttention(SourceAttention):
    """A query continues where the previous one stopped, and stops at each position with probability p_j = σ(e_j).

    e_j = g vᵀ/‖v‖ tanh(W s + b + U h_j) + r. In training the weights are expected values, α_ij = p_ij Σ_{l ≤ j} α_{i−1,l} Π_{l
    ≤ k < j} (1 − p_ik), with noise added to e so that p learns to be 0 or 1. Outside training the scan stops where e_j > 0 (see
    `stops`). On a CPU, T queries over S keys then compute at most 2S + 4T scores, on a GPU all T·S. A scan that runs off the
    end gets 0, and so does every later query. g begins as 1/√hidden.

    hidden: width of the scoring network; 0: the model's width
    bias: initial value of r; at −log n an untrained query passes n positions on average, so n should be the number of source
        positions per target token. If the first queries lag behind or run ahead, training finds no alignment
    noise: standard deviation of the noise added to e in training
    stops: outside training, a scan stops at the first position with p > 1/2 (each, as published), or where it has stopped with
        probability 1/2 in all (total). In speech a word is heard at many positions, and training can stop at any of them with a
        small p; then `each` runs to the end
    forced: whether each query must move on, so that no position is attended to twice
    hold: whether a scan that would run off the end stops at the last token instead; weights then sum to 1
    """

    paper = "Raffel et al. 2017"
    cost = "n², and n after training"
    weights_sum: Literal["one", "at most one"] | None = "at most one"
    receptive_field = "data"

    def __init__(
        self,
        site: Site,
        *,
        hidden: NonNegativeInt = 0,
        bias: float = 0.0,
        noise: NonNegativeFloat = 1.0,
        stops: Literal["each", "total"] = "each",
        forced: bool = False,
        hold: bool = False,
    ) -> None:
        score = AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, normed=True, exact=True)
        super().__init__(site, score)
        self.score = score
        self.bias = nn.Parameter(torch.full((1,), bias))
        self.noise, self.stops, self.forced, self.hold = noise, stops, forced, hold
        self.weights_sum = "one" if hold else "at most one"

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> MonotonicState:
        source = self.head.read(memory, layout, values)
        sources, extent, _ = source.keys.shape
        if not self.training:
            return MonotonicState(source, torch.zeros(sources, dtype=torch.long, device=source.keys.device))
        begin = torch.full((sources, extent), NEVER, dtype=source.keys.dtype, device=source.keys.device)
        begin[:, :1] = 0.0
        return MonotonicState(source, begin)

    def lengthen(self, state: MonotonicState, memory: Tensor) -> MonotonicState:
        """The scan over a source that goes on with `memory` [G, S, M]."""
        old, more = state.source, self.head.read(memory, None)
        keys, values = torch.cat([old.keys, more.keys], 1), torch.cat([old.values, more.values], 1)
        return replace(state, source=SourceStates(keys, values))

    def waits(self, state: MonotonicState) -> bool:
        """Whether the last query could stop elsewhere if the source went on: it found no place, or was held at the last one."""
        extent = state.source.keys.size(1)
        return bool((state.begin >= (extent - 1 if self.hold else extent + self.forced)).any())

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        attend = self._expect if self.training else self._scan
        return attend(query, state, None if layout is None else layout.mask, need_weights)

    def _expect(self, query: Tensor, state: MonotonicState, real: Tensor | None, need_weights: bool) -> Attended:
        """The soft form. All queries are scored at once; only the recurrence over them is a loop."""
        energy = self.head.scores(query, state.source) + self.bias
        energy = energy + self.noise * torch.randn_like(energy)
        keys = state.source.real(query.size(0))
        last = keys & ~F.pad(keys, (0, 1))[:, 1:]
        stop = F.logsigmoid(energy).masked_fill(~keys[:, None], NEVER)
        if self.hold:
            stop = stop.masked_fill(last[:, None], 0.0)
        # The log-probability of passing all positions before j. Padding comes last, so its energies never matter.
        passed = F.pad(F.logsigmoid(-energy), (1, 0))[..., :-1].cumsum(-1)
        begin, log_weights = state.begin, []
        for t in range(query.size(1)):
            log_weights.append(advance(begin, stop[:, t], passed[:, t]))
            begin = kept(real, t, self._move(log_weights[t], last), begin)
        weights = torch.stack(log_weights, 1).exp().to(state.source.values.dtype)
        context = self.head.mix(weights, state.source)
        return Attended(context, replace(state, begin=begin), weights[:, None] if need_weights else None)

    def _move(self, log_weights: Tensor, last: Tensor) -> Tensor:
        """The beginning of the next scan, as log-probabilities [B, S]: the same position, or one further."""
        if not self.forced:
            return log_weights.clamp_min(NEVER)
        moved = F.pad(log_weights, (1, 0), value=NEVER)[:, :-1]
        if self.hold:
            moved = torch.where(last, torch.logaddexp(moved, log_weights), moved)
        return moved.clamp_min(NEVER)

    def _scan(self, query: Tensor, state: MonotonicState, real: Tensor | None, need_weights: bool) -> Attended:
        """The hard form: query after query, each from where the previous one stopped."""
        source, rows = state.source, query.size(0)
        sources, extent, _ = source.keys.shape
        lengths = spread(source.real(sources).sum(1), rows)
        owner = torch.arange(rows, device=query.device) // (rows // sources)
        projected, begin, places = self.score.query(query), state.begin, []
        for t in range(query.size(1)):
            with steps_under(None):
                place = self._stop(projected[:, t : t + 1], source.keys, owner, begin, lengths)
            moved = place + 1 if self.forced else place
            moved = torch.minimum(moved, lengths - 1) if self.hold else moved
            begin = kept(real, t, moved, begin)
            places.append(place)
        stopped = torch.stack(places, 1)
        inside = stopped < lengths[:, None]
        context = source.values[owner[:, None], stopped.clamp(0, extent - 1)].where(inside[..., None], 0.0)
        weights = None
        if need_weights:
            weights = F.one_hot(stopped.clamp(0, extent), extent + 1)[:, None, :, :extent].to(context.dtype)
            weights = weights * inside[:, None, :, None]
            if recording():
                self._record_scan(projected, spread(source.keys, rows), spread(source.values, rows), weights[:, 0], context)
        return Attended(context, replace(state, begin=begin), weights)

    def _record_scan(self, projected: Tensor, keys: Tensor, values: Tensor, weights: Tensor, context: Tensor) -> None:
        """Records the energies of all positions, also of those that the scan did not need."""
        pairs, energy = "row query key", self.score.energy(projected, keys)
        raised = energy + self.bias
        record("energies", raised, pairs, "scores + r", scores=(energy, pairs), r=(self.bias[0], ""))
        chances = raised.sigmoid()
        record("probabilities of stopping", chances, pairs, "sigmoid(e)", e=(raised, pairs))
        record("weights", weights, pairs, stopping=(chances, pairs))
        operands = {"weights": (weights, pairs), "v": (values, "row key channel")}
        record("context", context, "row query channel", "sum(weights * v, key)", **operands)

    def _stop(self, projected: Tensor, keys: Tensor, owner: Tensor, begin: Tensor, lengths: Tensor) -> Tensor:
        """[B]: the first position from `begin` on that stops a scan; if there is none, the last token (hold), or S."""
        extent, waits = keys.size(1), keys.device.type != "cpu"
        place = torch.full_like(begin, extent)
        rows = torch.arange(begin.size(0), device=keys.device) if waits else (begin < lengths).nonzero()[:, 0]
        ahead, block, passed = 0, extent if waits else BLOCK, keys.new_zeros(begin.shape)
        while rows.numel() and ahead < extent:
            at = begin[rows, None] + ahead + torch.arange(block, device=keys.device)
            energy = self.score.energy(projected[rows], keys[owner[rows, None], at.clamp(0, extent - 1)])[:, 0] + self.bias
            if self.stops == "total":
                left = passed[rows, None] + F.logsigmoid(-energy).cumsum(1)
                passed[rows], stops = left[:, -1], left < HALF
            else:
                stops = energy > 0
            stops &= at < lengths[rows, None]
            first = at.gather(1, stops.to(torch.uint8).argmax(1, keepdim=True))[:, 0]
            place[rows] = torch.where(stops.any(1), first, extent)
            ahead, block = ahead + block, min(2 * block, extent)
            # Only the rows that have not stopped read on.
            rows = rows if waits else rows[~stops.any(1) & (at[:, -1] < lengths[rows] - 1)]
        return torch.where(place == extent, lengths - 1, place) if self.hold else place


def advance(begin: Tensor, stop: Tensor, passed: Tensor) -> Tensor:
    """log α_j = log p_j + L_j + log Σ_{l ≤ j} exp(begin_l − L_l), with L_j = `passed` = Σ_{k < j} log(1 − p_k); all [B, S].

    In logarithms nothing is divided by a product that underflows to 0, which the published form has to clamp.
    """
    return stop + passed + torch.logcumsumexp(begin - passed, -1)
