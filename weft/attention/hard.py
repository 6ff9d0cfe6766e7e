"""Hard attention: attends to one position, sampled in training."""

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from weft.attention.base import Attended, Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.rnn_attention import AdditiveScore, SourceAttention
from weft.data.batch import Layout
from weft.layers.decoder_state import State, spread
from weft.layers.step_recorder import record, recording


class HardAttention(SourceAttention):
    """α = softmax(e) as in additive attention; one position j is sampled from α, and the context is h_j.

    Outside training j is the most likely position. No gradient passes through the sample. The extras log_prob (log α_j of the
    sampled position) and entropy (−Σ α log α) are for REINFORCE: the task adds (reward − baseline) · log_prob, and a share of
    the entropy to encourage exploration.

    hidden: width of the scoring network; 0: the model's width
    """

    paper = "Xu et al. 2015"
    weights_sum = "one"
    receptive_field = "data"
    ignores_key_order = True
    extras = frozenset({"log_prob", "entropy"})

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, exact=True))

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        rows, real = query.size(0), state.real(query.size(0))[:, None]
        scores = self.head.scores(query, state)
        log_probs = scores.masked_fill(~real, torch.finfo(scores.dtype).min).log_softmax(-1)
        chosen = self._choose(log_probs)
        owner = torch.arange(rows, device=query.device) // (rows // state.values.size(0))
        # A row without tokens selects padding, so its context is set to 0.
        context = state.values[owner[:, None], chosen[..., 0]].where(real.any(-1, keepdim=True), 0.0)
        weights, extras = None, {}
        if need_weights or recording():
            weights = torch.zeros_like(log_probs).scatter(-1, chosen, 1.0).masked_fill(~real, 0.0)[:, None]
        if weights is not None and recording():
            self._record(scores, real, weights[:, 0], spread(state.values, rows), context)
        if self.training:
            # Gradients are added in the reverse order of these two lines, so exchanging them changes the last bits of a run.
            entropy = -(log_probs.exp() * log_probs).masked_fill(~real, 0.0).sum(-1)
            extras = {"log_prob": log_probs.gather(-1, chosen)[..., 0].where(real.any(-1), 0.0), "entropy": entropy}
        return Attended(context, state, weights, extras)

    def _record(self, scores: Tensor, real: Tensor, weights: Tensor, values: Tensor, context: Tensor) -> None:
        pairs = "row query key"
        chances = masked_softmax(scores, real.expand_as(scores), shown="probabilities"), pairs
        record("weights", weights, pairs, "largest(probabilities, key)" if not self.training else "", probabilities=chances)
        operands = {"weights": (weights, pairs), "v": (values, "row key channel")}
        record("context", context, "row query channel", "sum(weights * v, key)", **operands)

    def _choose(self, log_probs: Tensor) -> Tensor:
        """[B, T, 1]: the likeliest; in training a sample, by the Gumbel-max trick, which does not synchronise."""
        if not self.training:
            return log_probs.argmax(-1, keepdim=True)
        noise = torch.empty_like(log_probs).exponential_().log()
        return (log_probs - noise).argmax(-1, keepdim=True)
