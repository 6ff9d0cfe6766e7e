"""The peer of the speed benchmarks: transformers' Marian with random weights, in the shape of the model it is compared with."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from weft.data.batch import BOS, EOS, PAD


def marian(vocabulary: int, dim: int, hidden: int, heads: int, layers: int, **more: Any) -> Any:
    """A model with equally many layers on both sides, dropout 0.1, ReLU and shared embeddings."""
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


def decode(model: Any, source: torch.Tensor, beam: int, steps: int) -> None:
    """Generates exactly `steps` tokens for each row of source [B, S]."""
    options = {"num_beams": beam, "do_sample": False, "max_new_tokens": steps, "min_new_tokens": steps}
    with torch.inference_mode():
        model.generate(input_ids=source, attention_mask=torch.ones_like(source), **options)
