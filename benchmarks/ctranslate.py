"""A peer of the CPU speed benchmark: CTranslate2, with a Transformer of random weights in a given shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

POSITIONS = 512
"""Number of position encodings."""


def write_model(folder: Path, vocabulary: int, dim: int, hidden: int, heads: int, layers: int) -> None:
    """Writes a model with post-norm, ReLU and one table for source, target and output. Its tokens are t0, t1, …"""
    draw = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return (draw.standard_normal(shape) * 0.02).astype(np.float32)

    def linear(spec: Any, outputs: int, inputs: int) -> None:
        spec.weight, spec.bias = random(outputs, inputs), np.zeros(outputs, np.float32)

    def norm(spec: Any) -> None:
        spec.gamma, spec.beta = np.ones(dim, np.float32), np.zeros(dim, np.float32)

    def attention(spec: Any, *widths: int) -> None:
        for part, width in zip(spec.linear, widths, strict=True):
            linear(part, width, dim)
        norm(spec.layer_norm)

    spec = transformer_spec.TransformerSpec.from_config(layers, heads, pre_norm=False, activation=common_spec.Activation.RELU)
    table, positions = random(vocabulary, dim), random(POSITIONS, dim)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = table
    spec.decoder.projection.bias = np.zeros(vocabulary, np.float32)
    for side in (spec.encoder, spec.decoder):
        side.position_encodings.encodings, side.scale_embeddings = positions, True
        for layer in side.layer:
            attention(layer.self_attention, 3 * dim, dim)
            if side is spec.decoder:
                attention(layer.attention, dim, 2 * dim, dim)
            linear(layer.ffn.linear_0, hidden, dim)
            linear(layer.ffn.linear_1, dim, hidden)
            norm(layer.ffn.layer_norm)
    tokens = ["<blank>", "<s>", "</s>", "<unk>", *(f"t{number}" for number in range(vocabulary - 4))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = "<unk>", "<s>", "</s>"
    spec.validate()
    spec.save(str(folder))
