"""The peer of the speed benchmarks: transformers' Marian, from scratch, in the shape of the model it stands beside."""

from __future__ import annotations

from typing import Any

import transformers

from weft.batch import BOS, EOS, PAD


def marian(vocabulary: int, dim: int, hidden: int, heads: int, layers: int, **more: Any) -> Any:
    """A model with as many layers on both sides, dropout 0.1, ReLU and one table of embeddings."""
    sides = {"layers": layers, "ffn_dim": hidden, "attention_heads": heads}
    options = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    config = transformers.MarianConfig(
        vocab_size=vocabulary,
        d_model=dim,
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        scale_embedding=True,
        activation_function="relu",
        **{"dropout": 0.1, **options, **more},
    )
    return transformers.MarianMTModel(config)
