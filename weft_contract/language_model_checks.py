"""Language models as entries, and their checks: recurrent ones, and stacks with a few kinds in the self slot; models with a
source try them all."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import PAD, Layout
from weft.layers.decoder_state import detach
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.models.language_model import LanguageModel
from weft_contract.decoder_checks import compare_losses
from weft_contract.mechanism_entries import Variant, perturbed, same
from weft_contract.model_entries import TARGET, VOCABULARY, DecoderSteps, ids

SMALL: dict[str, Any] = {"dim": 16, "heads": 4, "feedforward": 24, "decoder_layers": 2, "dropout": 0.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "post-learned": {"norm": "post", "position": "learned", "share_embeddings": False},
    "rotary": {"position": "none", "decoder_self": {"kind": "full", "position": "rotary"}},
    "in-turn": {"position": "none", "decoder_layers": 3, "decoder_self": ["xl_relative", {"kind": "local", "window": 4}]},
    **{
        kind: {"position": "none", "decoder_self": {"kind": kind, **options}}
        for kind, options in {
            "xl_relative": {},
            "local": {"window": 4},
            "linear": {},
            "aft": {},
            "recurrent": {"cell": "lstm"},
            "convolution": {},
        }.items()
    },
}

RECURRENT: dict[str, dict[str, Any]] = {
    "plain": {"style": "plain"},
    "ngram": {"style": "ngram", "ngram": 5, "layers": 2},
    "one-part": {"attention": {"kind": "key_value", "parts": 1, "span": 0}},
    "key-value": {"attention": {"kind": "key_value", "parts": 2, "span": 4}, "cell": "lstm"},
    "predict": {"attention": {"kind": "key_value", "parts": 3, "span": 3}, "dim": 17, "embedding": 16},
}

BYTENET: dict[str, dict[str, Any]] = {
    "": {"dilations": [1, 2], "sets": 1},
    "wide": {"width": 5, "dilations": [1, 3]},
}


class LanguageEntry(Variant):
    """A language model with its options."""

    def make(self, *, train: bool = False) -> LanguageModel:
        torch.manual_seed(0)
        spec = {"kind": self.kind, **self.options}
        model: LanguageModel = build_model(spec, Sizes(VOCABULARY, VOCABULARY, shared=True))
        return perturbed(model, 0.1).train(train)

    def steps(self) -> DecoderSteps:
        model = self.make()
        return DecoderSteps(model.decoder, lambda sources: model.nothing(len(sources)))


def language_models() -> Iterator[LanguageEntry]:
    for variant, options in VARIANTS.items():
        yield LanguageEntry("language_model", variant, {**SMALL, **options})
    for variant, options in RECURRENT.items():
        yield LanguageEntry("rnn_language_model", variant, {"dim": 16, "dropout": 0.0, **options})
    for variant, options in BYTENET.items():
        yield LanguageEntry("bytenet_language_model", variant, {"dim": 16, "dropout": 0.0, **options})


def forced(model: LanguageModel, tokens: Tensor, layout: Layout | None = None) -> Tensor:
    return model.decoder.logits(model(tokens, layout).hidden)


def check_padding(entry: LanguageEntry) -> None:
    """A row has the same logits in a padded batch as alone, whatever the ids in the padding are."""
    model, layout, tokens = entry.make(), Layout.padded(TARGET, 33), ids(4, 33, seed=3)
    together = forced(model, tokens, layout)
    same(forced(model, tokens.where(layout.mask, PAD), layout)[layout.mask], together[layout.mask], "ids in the padding")
    for row, length in enumerate(TARGET):
        same(together[row : row + 1, :length], forced(model, tokens[row : row + 1, :length]), f"row {row}")


def check_causality(entry: LanguageEntry) -> None:
    """Logits do not depend on future tokens; a token changes its own and the next one's."""
    model, count = entry.make(), 29
    tokens = ids(1, count, seed=3)
    before = forced(model, tokens)
    past = torch.ones(count, count, dtype=torch.bool).tril()
    after = forced(model, torch.where(past, tokens, ids(count, count, seed=4)))
    same(after[past], before.expand(count, -1, -1)[past], "the past after another future")
    changed = (tokens + 1 - 3) % (VOCABULARY - 3) + 3
    moved = (forced(model, torch.where(torch.eye(count, dtype=torch.bool), changed, tokens)) - before).abs().amax(-1) > 1e-6
    assert moved.diagonal().all() and moved.diagonal(1).all(), f"{entry}: a token does not matter"


def check_recall(entry: LanguageEntry) -> None:
    """After recalling an earlier segment, a segment is read as if both were one, and gradients reach all weights."""
    if entry.make().position != "none":
        return  # positions would restart
    model, tokens = entry.make(train=True), ids(3, 29, seed=5)
    decoder = model.decoder
    found, inputs = decoder.read(tokens[:, :17], decoder.init_state(model.nothing(3)))
    after = decoder.hidden_states(tokens[:, 17:], decoder.recall(detach(inputs))).hidden
    same(after, model(tokens).hidden[:, 17:], "after an earlier segment")
    after.sin().sum().backward()
    missing = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert missing == [], f"{entry}: no gradient reaches {missing}"
    assert found.hidden.shape == (3, 17, 16)


def check_loss(entry: LanguageEntry) -> None:
    """The model's own loss equals the plain loss over its logits, and so do all gradients."""
    model, labels = entry.make(train=True), ids(3, 29, seed=6)
    labels[1, :5] = PAD
    compare_losses(model, lambda: (model(ids(3, 29, seed=7)).hidden, torch.zeros(())), labels, 0.0)
