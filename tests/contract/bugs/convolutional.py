"""Bugs of the convolutional families."""

from __future__ import annotations

from tests.contract.planting import Bug

CONVOLUTIONAL = [
    Bug(
        "every piece of ConvS2S starts at position 0",
        "models.convs2s",
        "token_positions(tokens, layout) + state.fed[:, None]",
        "token_positions(tokens, layout)",
        ("convs2s-chunks",),
    ),
    Bug(
        "ConvS2S counts padding as source tokens",
        "attention.multistep",
        "tokens = spread(state.counts[:, 1:2], query.size(0))",
        "tokens = spread(state.counts.sum(1, keepdim=True), query.size(0))",
        ("convs2s-padding",),
    ),
    Bug(
        "ConvS2S counts the tokens of all packed sources",
        "attention.multistep",
        "tokens = state.counts.gather(1, layout.segments.long())",
        "tokens = state.counts.sum(1, keepdim=True).expand(-1, query.size(1))",
        ("convs2s-packed",),
    ),
    Bug(
        "the decoder of ConvS2S sees the future",
        "models.convs2s",
        "convolutions.layer(causal=True)",
        "convolutions.layer(causal=False)",
        ("convs2s-causality",),
    ),
    Bug(
        "ConvS2S loses the state of its attention",
        "models.convs2s",
        "x, tail, cross = layer(x, embedded, tail, cross, layout, extras)",
        "x, tail, _ = layer(x, embedded, tail, cross, layout, extras)",
        ("convs2s-cross-location_aware-ragged", "convs2s-cross-local_m-ragged"),
    ),
    Bug(
        "ConvS2S loses the extras of its attention",
        "models.convs2s",
        "HiddenStates(hidden, StackState(tails, crosses, state.fed + fed), extras)",
        "HiddenStates(hidden, StackState(tails, crosses, state.fed + fed))",
        ("convs2s-cross-hard-loss",),
    ),
    Bug(
        "padding counts as fed in ByteNet",
        "models.bytenet",
        "self.fed + (tokens.size(1) if layout is None else layout.lengths)",
        "self.fed + tokens.size(1)",
        ("bytenet-ragged", "composed-bytenet-bytenet_rnn-ragged"),
    ),
    Bug(
        "ByteNet reads columns of the padding",
        "models.bytenet",
        "inside = place < self.ends.gather(1, sentence)",
        "inside = place < most",
        ("bytenet-padding",),
    ),
    Bug(
        "ByteNet unfolds every source as far as the longest",
        "models.bytenet",
        "inside = place < self._columns(lengths)[:, None]",
        "inside = place < self._most(extent)",
        ("bytenet-padding",),
    ),
    Bug(
        "padding is unfolded",
        "models.bytenet",
        "x = x if layout is None else torch.where(layout.mask[..., None], x, 0.0)",
        "pass",
        ("bytenet-padding",),
    ),
    Bug(
        "packed targets all read the first source",
        "models.bytenet",
        "sentence = (layout.segments.long() - 1).clamp_min(0)",
        "pass",
        ("bytenet-packed",),
    ),
    Bug(
        "pairs of a funnel count padding",
        "models.funnel",
        "torch.where(real > 0, x, 0.0)",
        "x",
        ("composed-funnel-transformer-padding",),
    ),
    Bug(
        "a prefix language model restarts its positions in every piece",
        "models.prefix_language_model",
        "token_positions(tokens, layout) + state.fed[:, None]",
        "token_positions(tokens, layout)",
        ("prefix_language_model-chunks",),
    ),
    Bug(
        "an SRU forgets on padding",
        "layers.recurrent",
        "forget = torch.where(layout.mask[..., None], forget, 1.0)",
        "pass",
        ("recurrent-sru-causal-ragged",),
    ),
    Bug(
        "n-grams restart in every piece",
        "models.bytenet",
        "ByteNetState(tails, grams, source)",
        "ByteNetState(tails, state.grams, source)",
        ("bytenet-ngrams-chunks", "bytenet-ngrams-ragged"),
    ),
    Bug(
        "the n-grams of padding and of other sentences",
        "models.bytenet",
        "embedded, grams = self.embedding(tokens, state.grams, layout)",
        "embedded, grams = self.embedding(tokens, state.grams, None)",
        ("bytenet-ngrams-ragged", "bytenet-ngrams-packed"),
    ),
    Bug(
        "n-grams that begin before their sentence",
        "layers.embeddings_and_rotary_positions",
        "torch.where(token == PAD, 0, code % (rows - 1) + 1)",
        "code % (rows - 1) + 1",
        ("bytenet: a_bag_of_ngrams_is_its_loop(packed)",),
    ),
    Bug(
        "n-grams forget the order of their tokens",
        "layers.embeddings_and_rotary_positions",
        "code = (code * HASH_BASE + token) % HASH_PRIME",
        "code = (code + token) % HASH_PRIME",
        ("bytenet: ngrams_of_text_seldom_share_a_row",),
    ),
]
