"""Bugs of attentions that sort, and of reversible layers."""

from __future__ import annotations

from contract.planting import Bug

SORTING = [
    Bug(
        "tokens of a bucket look ahead",
        "mixers.buckets",
        "back = key <= query if causal else key < query + window",
        "back = key < query + window",
        ("lsh-causal-future", "routing-narrow-causal-future"),
    ),
    Bug(
        "the sorted row is cut into fixed chunks",
        "mixers.buckets",
        "return back & (query < key + window), query == key",
        "return back & (query // window <= key // window + 1), query == key",
        ("lsh-narrow-causal-future",),
    ),
    Bug(
        "a cluster takes the tokens that fit it best",
        "mixers.routing",
        "self.centroids.float(), dim=-1)).argmax(-1)",
        "self.centroids.float(), dim=-1)).mul(9).softmax(2).argmax(-1)",
        ("routing-causal-future",),
    ),
    Bug(
        "padding is sorted in among the tokens",
        "mixers.buckets",
        "buckets = buckets + self.kinds * segments[:, None, None]",
        "pass",
        ("lsh-encoder-padding-content", "routing-encoder-packed"),
    ),
    Bug(
        "buckets stand side by side without a gap",
        "mixers.buckets",
        "near = _near(rank + window * buckets,",
        "near = _near(rank,",
        ("sorting_attention: lsh_is_softmax_over_what_any_round_finds(causal)",),
    ),
    Bug(
        "a pair that two rounds find counts twice",
        "mixers.buckets",
        "added = -added.clamp_(min=1).log_()",
        "added = 0 * added",
        ("sorting_attention: lsh_is_softmax_over_what_any_round_finds(encoder)",),
    ),
    Bug(
        "all rounds weigh the same",
        "mixers.buckets",
        "found[..., -1:].softmax(2)",
        "(0 * found[..., -1:]).softmax(2)",
        ("sorting_attention: lsh_is_softmax_over_what_any_round_finds(encoder)",),
    ),
    Bug(
        "a token looks at itself first",
        "mixers.buckets",
        "return added.sub_(ITSELF * itself)",
        "return added",
        ("sorting_attention: routing_is_softmax_over_the_nearest_of_the_cluster(causal)",),
    ),
    Bug(
        "a step sees one token more than the whole row",
        "mixers.buckets",
        "count > count[..., -1:] - window",
        "count >= count[..., -1:] - window",
        ("lsh-narrow-causal-chunks",),
    ),
    Bug(
        "clusters learn from padding",
        "mixers.routing",
        "way, mine = way.where(ok[:, None, :, None], 0.0), mine * ok[:, None, :, None]",
        "pass",
        ("sorting_attention: centroids_move_to_the_mean_direction_of_their_tokens",),
    ),
    Bug(
        "clusters learn from a step that was skipped",
        "mixers.routing",
        "good = (count > 0) & moved.isfinite().all(-1, keepdim=True)",
        "good = count != 0",
        ("sorting_attention: a_step_that_is_not_finite_moves_no_centroid",),
    ),
    Bug(
        "columns are divided by rows to come",
        "mixers.sinkhorn",
        "logs.logcumsumexp(2) if causal else",
        "logs.logsumexp(2, keepdim=True) if causal else",
        ("sinkhorn-small-causal-future",),
    ),
    Bug(
        "a block is sorted by tokens to come",
        "mixers.sinkhorn",
        "self._every_block(q, k, v, mean[:, :: self.block], ok)",
        "self._every_block(q, k, v, self._means(x, ok), ok)",
        ("sinkhorn-small-causal-future",),
    ),
    Bug(
        "a block that may be sorted nowhere is sorted everywhere",
        "mixers.sinkhorn",
        "return logs.exp().masked_fill(~may, 0.0)",
        "return logs.exp()",
        ("sorting_attention: causal_sorting_takes_earlier_blocks_alone",),
    ),
    Bug(
        "sorting is too hard to come to its end",
        "mixers.sinkhorn",
        "temperature: Annotated[float, Field(ge=0.5)] = 0.75",
        "temperature: float = 0.1",
        ("sorting_attention: rows_and_columns_of_the_sorting_sum_to_one",),
    ),
    Bug(
        "padding is sorted beside a block",
        "mixers.sinkhorn",
        "x, k, v = (part.where(ok, 0.0) for part in (x, k, v))",
        "pass",
        ("sinkhorn-encoder-padding-content",),
    ),
]

REVERSIBLE = [
    Bug(
        "all sub-layers draw on from one snapshot",
        "layers.reversible",
        "passed.rewind(draws)",
        "passed.rewind(passed.draws[0])",
        ("reversible: gradients_are_those_of_the_plain_streams(full, float64)",),
    ),
    Bug(
        "the source gets no gradient",
        "models.blocks",
        "SubLayer(look, [self.cross, self.project, self.around_cross], memory)",
        "SubLayer(look, [self.cross, self.project, self.around_cross])",
        ("reversible: gradients_are_those_of_the_plain_streams(full, float64)", "transformer-reversible-loss"),
    ),
    Bug(
        "terms are left behind",
        "layers.reversible",
        "pairs = [(added.value, grad), *((term, dterms[name]) for name, term in added.terms.items())]",
        "pairs = [(added.value, grad)]",
        ("reversible: gradients_are_those_of_the_plain_streams(terms, float64)",),
    ),
    Bug(
        "keys and values of the source are made outside of the layers",
        "models.transformer",
        "if not (self.reversible and torch.is_grad_enabled()):",
        "if True:",
        ("reversible: gradients_are_those_of_the_plain_streams(full, float64)",),
    ),
    Bug(
        "layers are undone in full precision",
        "layers.reversible",
        "with torch.enable_grad(), passed.autocast():",
        "with torch.enable_grad():",
        ("reversible: sub_layers_are_undone_under_the_autocast_they_ran_under",),
    ),
]
