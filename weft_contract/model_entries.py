"""Every model of the table as an entry. `weft_contract.decoder_checks` has the checks.

Every self slot and every cross slot is also filled with each kind that it accepts, so that a new entry in the table of
attentions is tested inside a model too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.attention import ATTENTIONS
from weft.attention.mixers import SELF
from weft.config.registry import load, options_of
from weft.data.batch import Layout, Source
from weft.layers.decoder_state import State, select
from weft.models import MODELS
from weft.models.base import Decoder, Encoded, Model, Sizes
from weft.models.encoder_decoder import build_model
from weft_contract.mechanism_entries import Variant, facts_of, perturbed

VOCABULARY = 19
SOURCE, TARGET = (27, 5, 22, 1), (21, 30, 1, 24)
"""Source and target lengths of a small batch."""

ONE_SIDED = {"language_model", "rnn_language_model", "bytenet_language_model"}
"""Models that have no encoder."""

TABLES = {"base": "weft.models:MODELS", "encoder": "weft.models:ENCODERS", "decoder": "weft.models:DECODERS"}
"""Option of a model → the table of its parts."""

CHOOSING = ("hard", "monotonic")
"""Attentions that choose one key: if rounding changes the choice, a decoder that feeds contexts back diverges."""

PARTS: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 4, "feedforward": 24, "layers": 2},
    "convs2s": {"dim": 16, "channels": 20, "layers": 2},
    "bytenet": {"dim": 16, "dilations": [1, 2, 4], "sets": 1},
    "rnn": {"dim": 20, "embedding": 12},
    "text_cnn": {"dim": 12, "channels": 5},
    "sliced_rnn": {"dim": 16, "slices": 2, "memory": "all"},
    "funnel": {"dim": 16, "heads": 4, "feedforward": 24, "blocks": [1, 2]},
}
DECODERS: dict[str, dict[str, Any]] = {
    **PARTS,
    "convs2s": {**PARTS["convs2s"], "cross": "full"},
    "rnn": {"dim": 16, "style": "luong", "attention": "general"},
    "bytenet_rnn": {"dim": 16, "embedding": 12},
}
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 4, "feedforward": 24, "encoder_layers": 2, "decoder_layers": 2},
    "convs2s": {"dim": 16, "channels": 20, "encoder_layers": 2, "decoder_layers": 2},
    "bytenet": {"dim": 16, "dilations": [1, 2, 4], "encoder_sets": 1, "decoder_sets": 1},
    "rnn": {"dim": 16, "embedding": 12, "encoder_dim": 20, "heads": 4},
    "composed": {part: {"kind": "transformer", **PARTS["transformer"]} for part in ("encoder", "decoder")},
    "pointer": {"base": {"kind": "rnn", "dim": 16, "embedding": 12, "encoder_dim": 20}},
    "prefix_language_model": {"dim": 16, "heads": 4, "feedforward": 24, "layers": 2},
}

SHORT: dict[str, dict[str, Any]] = {"lsh": {"buckets": 2}, "routing": {"clusters": 1}, "sinkhorn": {"block": 4, "noise": False}}
"""Options of mixers that group tokens: short rows are divided, neighbours see each other, and nothing is random."""


def self_slots(kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options of Transformers with each kind in the decoder's self slot, the encoder's, or both: wherever it can be used."""
    slots: dict[str, dict[str, Any]] = {}
    for kind in sorted(kinds, key=lambda kind: "causal" not in facts_of(kind).uses):
        spec, uses = {"kind": kind, **SHORT.get(kind, {})}, facts_of(kind).uses
        options = {f"{side}_self": spec for side, use in (("decoder", "causal"), ("encoder", "encoder")) if use in uses}
        if options:
            slots[f"self-{kind}" if "causal" in uses else f"encoder-{kind}"] = options
    return slots


def cross_slots(kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options of Transformers with each kind of cross-attention."""
    return {f"cross-{kind}": {"cross": {"kind": kind}} for kind in kinds if "cross" in facts_of(kind).uses}


COMPOSED = [
    *(("transformer", decoder) for decoder in ("convs2s", "bytenet", "rnn")),
    *((encoder, "transformer") for encoder in ("convs2s", "bytenet", "rnn")),
    ("convs2s", "rnn"),
    ("text_cnn", "rnn"),
    ("sliced_rnn", "rnn"),
    ("funnel", "transformer"),
    ("bytenet", "bytenet_rnn"),
    ("rnn", "bytenet_rnn"),
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
        "concatenated": {"position_join": "concatenate", "position": "learned", "encoder_layers": 1},
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
        "in-turn": {
            "decoder_layers": 3,
            "encoder_self": [{"kind": "local", "window": 4}, "convolution"],
            "decoder_self": ["full", {"kind": "compressed", "stride": 2}],
            "cross": ["full", "additive", "linear"],
        },
        "bare": {"norm": "none", "feedforward": 0, "cross_layers": "last", "decoder_layers": 3},
        "no-norm": {"norm": "none", "decoder_self": "recurrent", "encoder_self": "recurrent"},
        "no-feedforward": {"feedforward": 0, "encoder_self": "convolution", "decoder_self": "convolution"},
        "wiring-mix": {"wiring": "mix", "encoder_layers": 3, "norm": "post"},
        "recurrent-two-layers": {"decoder_self": {"kind": "recurrent", "layers": 2}, "cross": {"kind": "additive"}},
        **self_slots(SELF),
        **cross_slots(ATTENTIONS),
    },
    "convs2s": {
        "width-5-two-heads": {"width": 5, "heads": 2, "share_embeddings": "none"},
        "cross-additive": {"cross": {"kind": "additive"}},
    },
    "bytenet": {
        "nothing-unfolded": {"unfold_ratio": 1.0, "share_embeddings": "output"},
        "ngrams": {"ngrams": 4, "ngram_buckets": 50},
        "sub-batch": {"block_norm": "sub_batch"},
        "ngrams-apart": {"ngrams": 2, "ngram_buckets": 9, "share_embeddings": "output"},
        "two-sets": {"encoder_sets": 2, "decoder_sets": 2, "dilations": [1, 3], "width": 5, "unfold_extra": 3},
    },
    "rnn": {
        "deep-maxout": {"cell": "lstm", "encoder_layers": 2, "decoder_layers": 3, "residual": True, "readout": "maxout"},
        "plain": {"cell": "rnn", "encoder_layers": 2, "style": "luong", "attention": "general"},
        "sru": {"cell": "sru", "decoder_layers": 2, "bidirectional": False},
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
            if "cross" in facts_of(kind).uses
        },
    },
    "composed": {
        f"{encoder}-{decoder}": {
            "encoder": {**PARTS[encoder], "kind": encoder},
            "decoder": {**DECODERS[decoder], "kind": decoder},
        }
        for encoder, decoder in COMPOSED
    },
    "prefix_language_model": {
        "rotary": {"position": "none", "attention": {"kind": "full", "position": "rotary"}, "norm": "post"},
        "linear": {"attention": "linear", "position": "learned"},
    },
    "pointer": {
        "network": {"base": {"kind": "rnn", "style": "luong", **SMALL["rnn"]}, "generate": False},
        "transformer": {"base": {"kind": "transformer", **SMALL["transformer"]}, "layer": 0},
        "convs2s": {"base": {"kind": "convs2s", **SMALL["convs2s"]}, "generate": False},
    },
}
"""model → name → options besides the small sizes."""


class DecoderEntry(Variant):
    """A model with its options."""

    def make(self, *, seed: int = 0, train: bool = False, dropout: float = 0.0) -> Model:
        torch.manual_seed(seed)
        spec = {"kind": self.kind, **SMALL.get(self.kind, {}), **self.options}
        parts = [part for part in TABLES if part in spec]
        for part in parts:
            if "dropout" in options_of(TABLES[part], spec[part]["kind"]).model_fields:
                spec[part] = {"dropout": dropout, **spec[part]}
        spec = spec if parts else {"dropout": dropout, **spec}
        # To a copying model, the last id is a word outside the vocabulary.
        size = VOCABULARY - load(MODELS, self.kind).copies
        model: Model = build_model(spec, Sizes(size, size, shared=True))
        return perturbed(model, 0.1).train(train)

    def steps(self) -> DecoderSteps:
        model, layout = self.make(), Layout.padded(SOURCE)
        with torch.no_grad():
            encoded = model.encode(Source(ids(len(SOURCE), layout.longest, seed=2), layout))

        def choose(sources: Tensor) -> Encoded:
            layers, final = [memory[sources] for memory in encoded.layers], select(encoded.final, sources)
            assert encoded.layout is not None
            return Encoded(encoded.memory[sources], encoded.layout.select(sources), layers=layers, final=final)

        return DecoderSteps(model.decoder, choose)


@dataclass
class DecoderSteps:
    """A decoder fed step by step, as `decoding_state_checks` expects; its outputs are logits. encoded: of some sources."""

    decoder: Decoder
    encoded: Callable[[Tensor], Encoded]
    extent: int = 29

    def draw(self, rows: int, count: int, seed: int) -> Tensor:
        return ids(rows, count, seed)

    @torch.no_grad()
    def init_state(self, sources: Tensor, room: int | None = None) -> State:
        return self.decoder.init_state(self.encoded(sources), room=room)

    @torch.no_grad()
    def feed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Tensor, State]:
        step = self.decoder(tokens, state, layout)
        return finite(step.logits), step.state


def decoders() -> Iterator[DecoderEntry]:
    for kind in (kind for kind in MODELS if kind not in ONE_SIDED):
        for variant, options in {"": {}, **VARIANTS.get(kind, {})}.items():
            yield DecoderEntry(kind, variant, options)


CROSS_CHECKS = ("ragged", "rows", "padding", "loss")
"""Checks of `cross_variants`: they show that decoder and attention fit together."""


def cross_variants(kinds: Iterable[str] = ATTENTIONS) -> Iterator[DecoderEntry]:
    """ConvS2S with each kind of cross-attention that the entries of `decoders` do not combine it with."""
    for kind in kinds:
        if "cross" in facts_of(kind).uses and f"cross-{kind}" not in VARIANTS["convs2s"]:
            yield DecoderEntry("convs2s", f"cross-{kind}", {"cross": {"kind": kind}, "heads": 2})


def ids(rows: int, extent: int, seed: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, extent), generator=torch.Generator().manual_seed(seed))


def finite(logits: Tensor) -> Tensor:
    """Logits with 0 in place of −inf, which a copying model gives to impossible words, so that they can be subtracted."""
    return logits.masked_fill(logits == float("-inf"), 0.0)
