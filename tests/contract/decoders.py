"""Every model of the table, and checks of its decoder beyond those of `contract.stepping`.

Every self slot and every cross slot is also filled with each kind that it accepts, so that a new entry in the table of
attentions is tested inside a model too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from contract.entries import same
from weft.attention import ATTENTIONS
from weft.batch import BOS, PAD, Layout, Source
from weft.config.registry import load
from weft.layers.readout import smoothed_loss
from weft.mixers import SELF
from weft.mixers.base import Mixer
from weft.models import MODELS
from weft.models.base import Encoded, Model, Sizes
from weft.models.composing import build_model
from weft.state import State, select

Laid = Literal["padded", "packed", "rounded"]

VOCABULARY = 19
SOURCE, TARGET = (27, 5, 22, 1), (21, 30, 1, 24)
"""Source and target lengths of a small batch."""

CHOOSING = ("hard", "monotonic")
"""Attentions that choose one key: if rounding changes the choice, a decoder that feeds contexts back diverges."""

PARTS: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 4, "feedforward": 24, "layers": 2},
    "convs2s": {"dim": 16, "channels": 20, "layers": 2},
    "bytenet": {"dim": 16, "dilations": [1, 2, 4], "sets": 1},
    "rnn": {"dim": 20, "embedding": 12},
}
DECODERS: dict[str, dict[str, Any]] = {
    **PARTS,
    "convs2s": {**PARTS["convs2s"], "cross": "full"},
    "rnn": {"dim": 16, "style": "luong", "attention": "general"},
}
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 4, "feedforward": 24, "encoder_layers": 2, "decoder_layers": 2},
    "convs2s": {"dim": 16, "channels": 20, "encoder_layers": 2, "decoder_layers": 2},
    "bytenet": {"dim": 16, "dilations": [1, 2, 4], "encoder_sets": 1, "decoder_sets": 1},
    "rnn": {"dim": 16, "embedding": 12, "encoder_dim": 20, "heads": 4},
    "composed": {part: {"kind": "transformer", **PARTS["transformer"]} for part in ("encoder", "decoder")},
    "pointer": {"base": {"kind": "rnn", "dim": 16, "embedding": 12, "encoder_dim": 20}},
}

SHORT: dict[str, dict[str, Any]] = {"lsh": {"buckets": 2}, "routing": {"clusters": 1}, "sinkhorn": {"block": 4, "noise": False}}
"""Options of mixers that group tokens: short rows are divided, neighbours see each other, and nothing is random."""

COMPOSED = [
    *(("transformer", decoder) for decoder in ("convs2s", "bytenet", "rnn")),
    *((encoder, "transformer") for encoder in ("convs2s", "bytenet", "rnn")),
    ("convs2s", "rnn"),
    ("rnn", "convs2s"),
]
"""Encoders and decoders of different families that are tested together."""

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "post-learned": {"norm": "post", "position": "learned", "activation": "gelu", "share_embeddings": "none"},
        "rotary": {
            "position": "none",
            "activation": "swiglu",
            "share_embeddings": "output",
            "encoder_self": {"kind": "full", "position": "rotary"},
            "decoder_self": {"kind": "full", "position": "rotary"},
        },
        "local-3": {"decoder_self": {"kind": "local", "window": 3}},
        "convolution-5": {"decoder_self": {"kind": "convolution", "width": 5}},
        "tagging": {"feedforward_width": 3},
        "wiring-same": {"wiring": "same"},
        "reversible": {"reversible": True},
        "reformer": {
            "reversible": True,
            "encoder_self": {"kind": "lsh", "buckets": 2, "window": 9},
            "decoder_self": {"kind": "lsh", "buckets": 2, "window": 9},
        },
        "wiring-mix": {"wiring": "mix", "encoder_layers": 3, "norm": "post"},
        "recurrent-two-layers": {"decoder_self": {"kind": "recurrent", "layers": 2}, "cross": {"kind": "additive"}},
        **{
            f"self-{kind}": {
                "decoder_self": {"kind": kind, **SHORT.get(kind, {})},
                **({"encoder_self": {"kind": kind, **SHORT.get(kind, {})}} if "encoder" in load(SELF, kind).uses else {}),
            }
            for kind in SELF
            if "causal" in load(SELF, kind).uses
        },
        **{
            f"encoder-{kind}": {"encoder_self": {"kind": kind}}
            for kind in SELF
            if "encoder" in load(SELF, kind).uses and "causal" not in load(SELF, kind).uses
        },
        **{f"cross-{kind}": {"cross": {"kind": kind}} for kind in ATTENTIONS if "cross" in load(ATTENTIONS, kind).uses},
    },
    "convs2s": {
        "width-5-two-heads": {"width": 5, "heads": 2, "share_embeddings": "none"},
        "cross-additive": {"cross": {"kind": "additive"}},
    },
    "bytenet": {
        "nothing-unfolded": {"unfold_ratio": 1.0, "share_embeddings": "output"},
        "ngrams": {"ngrams": 4, "ngram_buckets": 50},
        "ngrams-apart": {"ngrams": 2, "ngram_buckets": 9, "share_embeddings": "output"},
        "two-sets": {"encoder_sets": 2, "decoder_sets": 2, "dilations": [1, 3], "width": 5, "unfold_extra": 3},
    },
    "rnn": {
        "deep-maxout": {"cell": "lstm", "encoder_layers": 2, "decoder_layers": 3, "residual": True, "readout": "maxout"},
        "luong": {"style": "luong", "bridge": "zeros", "variational_dropout": True, "share_embeddings": "output"},
        "input-feeding": {"style": "luong", "input_feeding": True, "cell": "lstm", "decoder_layers": 2},
        "sutskever": {
            "style": "fixed",
            **{"cell": "lstm", "encoder_layers": 2, "decoder_layers": 2, "bidirectional": False, "reverse_source": True},
            **{"embedding": 0, "encoder_dim": 0, "bridge": "copy", "readout": "none", "share_embeddings": "none"},
        },
        "cho": {"style": "cho", "readout": "maxout", "decoder_layers": 2},
        **{
            f"cross-{kind}": {"attention": {"kind": kind}, "style": "luong" if kind in CHOOSING else "bahdanau"}
            for kind in ATTENTIONS
            if "cross" in load(ATTENTIONS, kind).uses
        },
    },
    "composed": {
        f"{encoder}-{decoder}": {
            "encoder": {**PARTS[encoder], "kind": encoder},
            "decoder": {**DECODERS[decoder], "kind": decoder},
        }
        for encoder, decoder in COMPOSED
    },
    "pointer": {
        "network": {"base": {"kind": "rnn", "style": "luong", **SMALL["rnn"]}, "generate": False},
        "transformer": {"base": {"kind": "transformer", **SMALL["transformer"]}, "layer": 0},
        "convs2s": {"base": {"kind": "convs2s", **SMALL["convs2s"]}, "generate": False},
    },
}
"""model → name → options besides the small sizes."""


@dataclass(frozen=True)
class DecoderEntry:
    """A model with its options."""

    kind: str
    variant: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(filter(None, [self.kind, self.variant]))

    def make(self, *, seed: int = 0, train: bool = False, dropout: float = 0.0) -> Model:
        torch.manual_seed(seed)
        spec = {"kind": self.kind, **SMALL.get(self.kind, {}), **self.options}
        parts = [part for part in ("base", "encoder", "decoder") if part in spec]
        for part in parts:
            spec[part] = {"dropout": dropout, **spec[part]}
        spec = spec if parts else {"dropout": dropout, **spec}
        # To a copying model, the last id is a word outside the vocabulary.
        size = VOCABULARY - load(MODELS, self.kind).copies
        model: Model = build_model(spec, Sizes(size, size, shared=True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return model.train(train)

    def steps(self) -> DecoderSteps:
        model, layout = self.make(), Layout.padded(SOURCE)
        with torch.no_grad():
            return DecoderSteps(model, model.encode(Source(ids(len(SOURCE), layout.longest, seed=2), layout)))


@dataclass
class DecoderSteps:
    """A decoder fed piece by piece, as `contract.stepping` expects; its outputs are logits."""

    model: Model
    encoded: Encoded
    extent: int = 29

    def draw(self, rows: int, count: int, seed: int) -> Tensor:
        return ids(rows, count, seed)

    @torch.no_grad()
    def start(self, sources: Tensor, room: int | None = None) -> State:
        assert self.encoded.layout is not None
        layers = [memory[sources] for memory in self.encoded.layers]
        final = select(self.encoded.final, sources)
        chosen = Encoded(self.encoded.memory[sources], self.encoded.layout.select(sources), layers=layers, final=final)
        return self.model.decoder.start(chosen, room=room)

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]:
        found = self.model.decoder(tokens, state, layout)
        return finite(found.logits), found.state


def decoders() -> Iterator[DecoderEntry]:
    for kind in (kind for kind in MODELS if kind != "language_model"):
        for variant, options in {"": {}, **VARIANTS.get(kind, {})}.items():
            yield DecoderEntry(kind, variant, options)


def ids(rows: int, extent: int, seed: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, extent), generator=torch.Generator().manual_seed(seed))


def forced(model: Model, source: Tensor, target: Tensor, above: Layout | None = None, below: Layout | None = None) -> Tensor:
    """Logits of a whole target, given the source."""
    return finite(model.decoder(target, model.decoder.start(model.encode(Source(source, above))), below).logits)


def finite(logits: Tensor) -> Tensor:
    """Logits with 0 in place of −inf, which a copying model gives to impossible words, so that they can be subtracted."""
    return logits.masked_fill(logits == float("-inf"), 0.0)


def check_padding(entry: DecoderEntry) -> None:
    """A pair has the same logits in a padded batch as alone, whatever the ids in the padding are."""
    model, above, below = entry.make(), Layout.padded(SOURCE, 31), Layout.padded(TARGET, 33)
    source, target = ids(4, 31, seed=2), ids(4, 33, seed=3)
    together = forced(model, source, target, above, below)
    clean = forced(model, source.where(above.ok, PAD), target.where(below.ok, PAD), above, below)
    same(together[below.ok], clean[below.ok], "ids in the padding")
    for row, (long, wide) in enumerate(zip(SOURCE, TARGET, strict=True)):
        alone = forced(model, source[row : row + 1, :long], target[row : row + 1, :wide])
        more = together.size(-1) - alone.size(-1)  # copying adds an id per source token
        same(together[row : row + 1, :wide], F.pad(alone, (0, more)), f"pair {row}")


def check_causality(entry: DecoderEntry) -> None:
    """Logits do not depend on future tokens, but on every source token and every earlier target token."""
    model = entry.make()
    count, length = 29, 27
    source, target = ids(1, length, seed=2), ids(1, count, seed=3)
    before = forced(model, source, target)
    past = torch.ones(count, count, dtype=torch.bool).tril()
    other = torch.where(past, target, ids(count, count, seed=4))
    after = forced(model, source.expand(count, -1), other)
    same(after[past], before.expand(count, -1, -1)[past], "the past after another future")
    changed = (target + 1 - 3) % (VOCABULARY - 3) + 3
    one = torch.eye(count, dtype=torch.bool)
    moved = (forced(model, source.expand(count, -1), torch.where(one, changed, target)) - before).abs().amax(-1) > 1e-6
    assert moved.diagonal().all(), f"{entry}: a token does not change its own logits"
    assert moved.diagonal(1)[_seen_by_next(model, count)].all(), f"{entry}: a token does not change the next one's logits"
    one, changed = torch.eye(length, dtype=torch.bool), (source + 1 - 3) % (VOCABULARY - 3) + 3
    moved = (forced(model, torch.where(one, changed, source), target.expand(length, -1)) - before).abs().amax(-1) > 1e-6
    assert moved.any(1).all(), f"{entry}: {int((~moved.any(1)).sum())} source tokens do not matter"


def _seen_by_next(model: Model, count: int) -> Tensor:
    """[count − 1] bool: whether any layer lets the next token see a token (compressed ones wait for the end of a window)."""
    seen = [part.sees(count).diagonal(-1) for part in model.decoder.modules() if isinstance(part, Mixer)]
    return torch.stack(seen).any(0) if seen else torch.ones(count - 1, dtype=torch.bool)


def check_packed(entry: DecoderEntry) -> None:
    """A packed batch has the loss and gradients of the padded one."""
    _same_training(entry, "packed")


def check_rounded(entry: DecoderEntry) -> None:
    """So does a batch whose lengths the host does not know, with extra padding and an empty row."""
    _same_training(entry, "rounded")


def _same_training(entry: DecoderEntry, laid: Laid) -> None:
    padded, found = _training(entry, "padded"), _training(entry, laid)
    for name, value in padded.items():
        same(found[name], value, name, atol=3e-4)


def _training(entry: DecoderEntry, laid: Laid) -> dict[str, Tensor]:
    """Loss and gradients of one small batch."""
    model = entry.make(train=True)
    above, below = Layout.padded(SOURCE), Layout.padded(TARGET)
    source, labels = ids(4, 27, seed=2), ids(4, 30, seed=3).where(below.ok, PAD)
    target = torch.cat([torch.full((4, 1), BOS), labels[:, :-1]], 1)
    if laid == "packed":
        rows = [(source, above, SOURCE, 61), (target, below, TARGET, 83), (labels, below, TARGET, 83)]
        source, target, labels = (_pack(*row) for row in rows)
        above, below = Layout.pack(SOURCE, 61), Layout.pack(TARGET, 83)
    elif laid == "rounded":
        source, target, labels = (F.pad(part, (0, 32 - part.size(1), 0, 1), value=PAD) for part in (source, target, labels))
        above, below = (replace(Layout.padded([*lengths, 0], 32), known=None) for lengths in (SOURCE, TARGET))
    found = model.decoder.features(target, model.decoder.start(model.encode(Source(source, above))), below)
    loss, likelihood = model.decoder.loss(found.hidden, labels, 0.1)
    loss.backward()
    grads = {f"gradient of {name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert len(grads) == len(list(model.parameters()))
    return {"loss": loss.detach(), "likelihood": likelihood, **grads}


def _pack(rows: Tensor, layout: Layout, lengths: tuple[int, ...], budget: int) -> Tensor:
    row = torch.full((1, budget), PAD)
    row[Layout.pack(lengths, budget).ok] = rows[layout.ok]
    return row


def check_loss(entry: DecoderEntry) -> None:
    """A decoder's own loss equals the plain loss over its logits, and so do all gradients, which are finite and not 0."""
    model, below = entry.make(train=True), Layout.padded(TARGET)
    source, labels = ids(4, 27, seed=2), ids(4, 30, seed=3).where(below.ok, PAD)
    results = []
    for own in (True, False):
        model.zero_grad()
        state = model.decoder.start(model.encode(Source(source, Layout.padded(SOURCE))))
        torch.manual_seed(0)  # what is drawn in training is drawn alike
        found = model.decoder.features(ids(4, 30, seed=4), state, below)
        hidden, terms = found.hidden, sum(term.sum() for term in found.terms.values())
        loss = model.decoder.loss(hidden, labels, 0.1) if own else smoothed_loss(model.decoder.logits(hidden), labels, 0.1)
        (loss[0] + terms).backward()
        results.append((loss, {name: value.grad for name, value in model.named_parameters()}))
    (mine, grads), (plain, others) = results
    same(mine[0], plain[0], "loss")
    same(mine[1], plain[1], "likelihood")
    for name, grad in grads.items():
        other = others[name]
        assert grad is not None and other is not None, f"{entry}: {name} gets no gradient"
        assert grad.isfinite().all() and grad.any(), f"{entry}: the gradient of {name} is 0 or not finite"
        same(grad, other, f"gradient of {name}", atol=1e-4)


def check_pure(entry: DecoderEntry) -> None:
    """Outside training nothing is random and nothing is written, at any dropout; and a checkpoint is complete."""
    model, other = entry.make(dropout=0.5), entry.make(seed=99)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    first = forced(model, ids(2, 27, seed=2), ids(2, 29, seed=3))
    assert torch.equal(first, forced(model, ids(2, 27, seed=2), ids(2, 29, seed=3))), f"{entry}: not the same twice"
    assert torch.equal(draws, torch.get_rng_state()), f"{entry}: draws random numbers outside training"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), f"{entry}: writes"
    other.load_state_dict(model.state_dict())
    assert torch.equal(first, forced(other, ids(2, 27, seed=2), ids(2, 29, seed=3))), f"{entry}: the checkpoint lacks something"


def check_half(entry: DecoderEntry) -> None:
    """Under bf16 autocast logits are close to those of float32, at once and step by step from a cache."""
    model, target = entry.make(), ids(2, 21, seed=3)
    source = ids(2, 27, seed=2)
    exact = forced(model, source, target)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole = forced(model, source, target)
        state, steps = model.decoder.start(model.encode(Source(source)), room=24), []
        for t in range(21):
            found = model.decoder(target[:, t : t + 1], state)
            state = found.state
            steps.append(finite(found.logits))
    for what, logits in (("whole", whole), ("steps", torch.cat(steps, 1))):
        error = ((logits.float() - exact).abs().mean() / exact.abs().mean()).item()
        assert error < 0.015, f"{entry}: {what} in bf16 is off by {error:.2%}"
