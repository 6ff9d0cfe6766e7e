"""Language models: recurrent ones, and stacks with a few kinds in the self slot; models with a source try them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import PAD, Layout
from weft.layers.decoder_state import State, detach
from weft.losses.cross_entropy import label_smoothed_cross_entropy
from weft.models.base import Sizes
from weft.models.composition import build_model
from weft.models.language_model import LanguageModel
from weft_contract.entries import same
from weft_contract.models import TARGET, VOCABULARY, ids

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


@dataclass(frozen=True)
class LanguageEntry:
    """A language model with its options."""

    variant: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = "language_model"

    def __str__(self) -> str:
        return "-".join(filter(None, [self.kind, self.variant]))

    def make(self, *, train: bool = False) -> LanguageModel:
        torch.manual_seed(0)
        spec = {"kind": self.kind, **self.options}
        model: LanguageModel = build_model(spec, Sizes(VOCABULARY, VOCABULARY, shared=True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return model.train(train)

    def steps(self) -> LanguageSteps:
        return LanguageSteps(self.make())


@dataclass
class LanguageSteps:
    """A language model fed piece by piece, as `weft_contract.stepping` expects; its outputs are logits."""

    model: LanguageModel
    extent: int = 29

    def draw(self, rows: int, count: int, seed: int) -> Tensor:
        return ids(rows, count, seed)

    @torch.no_grad()
    def start(self, sources: Tensor, room: int | None = None) -> State:
        return self.model.decoder.start(self.model.nothing(len(sources)), room=room)

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]:
        found = self.model.decoder(tokens, state, layout)
        return found.logits, found.state


def language_models() -> Iterator[LanguageEntry]:
    for variant, options in VARIANTS.items():
        yield LanguageEntry(variant, {**SMALL, **options})
    for variant, options in RECURRENT.items():
        yield LanguageEntry(variant, {"dim": 16, "dropout": 0.0, **options}, "rnn_language_model")


def forced(model: LanguageModel, tokens: Tensor, layout: Layout | None = None) -> Tensor:
    return model.decoder.logits(model(tokens, layout).hidden)


def check_padding(entry: LanguageEntry) -> None:
    """A row has the same logits in a padded batch as alone, whatever the ids in the padding are."""
    model, layout, tokens = entry.make(), Layout.padded(TARGET, 33), ids(4, 33, seed=3)
    together = forced(model, tokens, layout)
    same(forced(model, tokens.where(layout.ok, PAD), layout)[layout.ok], together[layout.ok], "ids in the padding")
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
    found, inputs = decoder.read(tokens[:, :17], decoder.start(model.nothing(3)))
    after = decoder.features(tokens[:, 17:], decoder.recall(detach(inputs))).hidden
    same(after, model(tokens).hidden[:, 17:], "after an earlier segment")
    after.sin().sum().backward()
    missing = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert missing == [], f"{entry}: no gradient reaches {missing}"
    assert found.hidden.shape == (3, 17, 16)


def check_loss(entry: LanguageEntry) -> None:
    """The model's own loss equals the plain loss over its logits, and so do all gradients."""
    model, labels = entry.make(train=True), ids(3, 29, seed=6)
    labels[1, :5] = PAD
    results = []
    for own in (True, False):
        model.zero_grad()
        hidden = model(ids(3, 29, seed=7)).hidden
        loss = (
            model.decoder.loss(hidden, labels)
            if own
            else label_smoothed_cross_entropy(model.decoder.logits(hidden), labels, 0.0)
        )
        loss[0].backward()
        results.append((loss[0], {name: value.grad for name, value in model.named_parameters()}))
    (mine, grads), (plain, others) = results
    same(mine, plain, "loss")
    for name, grad in grads.items():
        assert grad is not None and grad.isfinite().all() and grad.any(), f"{entry}: the gradient of {name} is 0 or not finite"
        same(grad, others[name], f"gradient of {name}", atol=1e-4)
