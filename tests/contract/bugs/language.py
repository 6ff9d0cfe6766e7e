"""Bugs of language models."""

from __future__ import annotations

from tests.contract.planting import Bug

LANGUAGE = [
    Bug(
        "every piece of a text starts at position 0",
        "models.language_model",
        "token_positions(tokens, layout) + state.fed[:, None]",
        "token_positions(tokens, layout)",
        ("language_model-chunks", "language_model-post-learned-chunks"),
    ),
    Bug(
        "padding counts as read text",
        "models.language_model",
        "fed = tokens.size(1) if layout is None else layout.lengths",
        "fed = tokens.size(1)",
        ("language_model-ragged",),
    ),
    Bug(
        "a language model sees the future",
        "models.language_model",
        'block.site("causal")',
        'block.site("encoder")',
        ("language_model-causality", "language_model-rotary-causality"),
    ),
    Bug(
        "hidden states are centred over the row",
        "models.language_model",
        "HiddenStates(self.norm(x)",
        "HiddenStates(self.norm(x - x.mean(1, keepdim=True))",
        ("language_model-padding", "language_model-causality"),
    ),
    Bug(
        "a recalled segment skips the norm",
        "models.language_model",
        "layer.mixer.recall(layer.around_mixer.prenorm(each))",
        "layer.mixer.recall(each)",
        ("language_model-rotary-recall", "language_model-recurrent-recall"),
    ),
    Bug(
        "an earlier segment is forgotten",
        "attention.base",
        "return self.attention.init_state(memory, rows=memory.size(0))",
        "return self.attention.init_state(rows=memory.size(0))",
        ("language_model-xl_relative-recall", "language_model-local-recall"),
    ),
    Bug(
        "padding is a label",
        "losses.cross_entropy",
        "nll -= torch.where(ok, likelihood, 0.0).sum()",
        "nll -= likelihood.sum()",
        ("language_model-loss",),
    ),
    Bug(
        "selected rows are sorted",
        "layers.decoder_state",
        "return state.index_select(0, rows)",
        "return state.index_select(0, rows.sort().values)",
        ("language_model-recurrent-rows", "language_model-linear-rows", "language_model-convolution-beams"),
    ),
    Bug(
        "beams swap their ancestors",
        "attention.core.kv_cache",
        "return CacheIndex(self.ancestry.gather(1, parent), self.length)",
        "return CacheIndex(self.ancestry.gather(1, parent.flip(1)), self.length)",
        ("language_model-beams", "language_model-xl_relative-beams"),
    ),
]
