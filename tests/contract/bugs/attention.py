"""Bugs of single attention mechanisms."""

from __future__ import annotations

from tests.contract.planting import Bug

ATTENTION = [
    Bug(
        "a recorded step is not the one that is computed",
        "attention.core.dot_product",
        "products, root = q @ k.transpose(-1, -2), math.sqrt(q.size(-1))",
        "products, root = q @ k.transpose(-1, -2), q.size(-1)",
        ("full-encoder-steps", "full-cross-steps"),
    ),
    Bug(
        "a recorded context reads other weights",
        "attention.core.rnn_attention",
        'operands = {"weights": (weights, "row query key")',
        'operands = {"weights": (weights**2, "row query key")',
        ("additive-cross-steps",),
    ),
    Bug(
        "dropout outside training",
        "attention.core.multihead",
        "dropout = self.site.dropout if self.training else 0.0",
        "dropout = self.site.dropout",
        ("full-encoder-pure",),
    ),
    Bug(
        "additive dropout outside training",
        "attention.core.rnn_attention",
        "self.dropout, self.training)",
        "self.dropout)",
        ("additive-cross-pure",),
    ),
    Bug(
        "an encoder with room becomes causal",
        "attention.core.multihead",
        'if room is not None and self.site.use == "causal":',
        "if room is not None:",
        ("full-encoder-shapes",),
    ),
    Bug(
        "the padding of an earlier segment counts as fed",
        "attention.core.multihead",
        "self._append(self.query_key_value(memory), state, layout)[1]",
        "self._append(self.query_key_value(memory), state, None)[1]",
        ("full-causal-earlier-segment",),
    ),
    Bug(
        "keys are cut off from the gradient",
        "attention.core.multihead",
        "return q, state.append(k, v, layout), positions",
        "return q, state.append(k.detach(), v, layout), positions",
        ("full-encoder-gradients", "mixer-local-causal-gradients"),
    ),
    Bug(
        "an initial random buffer is not saved",
        "attention.core.multihead",
        "self.look, self.past, self.rotary = scoring, past, rotary",
        "self.look, self.past, self.rotary = scoring, past, rotary and rotary * (1 + torch.randn(()).item() ** 2)",
        ("full-rotary-encoder-checkpoint",),
    ),
    Bug(
        "only the first key is used",
        "attention.core.rnn_attention",
        "weights = masked_softmax(self.scores(query, source), source.mask(query.size(0), layout))",
        "weights = 0 * self.scores(query, source) + torch.eye(source.keys.size(1))[0]",
        ("additive-cross-alive",),
    ),
    Bug(
        "a declared term is missing",
        "attention.core.rnn_attention",
        'weights_sum = "one"',
        'weights_sum = "one"\n    extras = frozenset({"entropy"})',
        ("additive-cross-extras",),
    ),
    Bug(
        "keys are not rotated",
        "attention.core.multihead",
        "q, k = both.chunk(2, 1)",
        "q, k = both.chunk(2, 1)[0], split_heads(joint, 3 * self.site.heads).chunk(3, 1)[1]",
        ("limits: rotary_attention_does_not_see_where_a_sequence_begins",),
    ),
    Bug(
        "heads are joined without a transpose",
        "attention.base",
        "return x.transpose(1, 2).flatten(2)",
        "return x.reshape(x.size(0), x.size(2), -1)",
        ("full-causal-future",),
    ),
    Bug(
        "rotary claims to ignore order",
        "attention.full",
        'self.ignores_key_order = position == "none"',
        "self.ignores_key_order = True",
        ("full-rotary-encoder-key-order",),
    ),
    Bug(
        "a window one token too wide",
        "attention.local",
        "(self.window - 1, 0)",
        "(self.window, 0)",
        ("limits: local_looks_at_its_window_alone(causal)",),
    ),
    Bug(
        "a declared pattern is wrong",
        "attention.core.sparsity_patterns",
        "seen = self.bound(length).allows(place[:, None], place[None])",
        "seen = self.bound(length).allows(place[:, None] + 1, place[None])",
        ("local-encoder-reach",),
    ),
    Bug(
        "additive ignores padding",
        "attention.core.rnn_attention",
        "return self.real(rows)[:, None]",
        "return None",
        ("additive-cross-padding-content",),
    ),
    Bug(
        "later blocks of queries are scored as the first",
        "attention.core.rnn_attention",
        "[self.energy(part, source.keys) for part in parts]",
        "[self.energy(parts[0][:, : part.size(1)], source.keys) for part in parts]",
        ("additive-cross-chunks", "limits: additive_is_the_formula_of_the_paper"),
    ),
    Bug(
        "packed additive queries see every sentence",
        "attention.core.rnn_attention",
        "(self.segments[:, None] == layout.segments[:, :, None])",
        "(self.segments[:, None] > 0)",
        ("additive-cross-packed",),
    ),
]
