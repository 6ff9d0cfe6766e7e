"""Folders of CTranslate2, written through its own specification, which also quantises them.

Its Marian and transformers converters would be wrong for weft: both force an embedding of zeros at the start, and one leaves
out a row of the table.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import BOS, EOS, SPECIALS, UNK
from weft.errors import ConfigError
from weft.interop.tokenizer_files import tokenizer_json, vocabulary
from weft.interop.transformer_weights import BIAS, NEVER, PARTS, TABLES, Architecture, architecture
from weft.runs.open_run import TrainedRun
from weft.runs.weight_files import named_weights
from weft.version import install

PROGRAM = "CTranslate2"
LAYERS = {
    "self": "self_attention.linear.0",
    "self_out": "self_attention.linear.1",
    "self_norm": "self_attention.layer_norm",
    "cross": "attention.linear.0",
    "memory": "attention.linear.1",
    "cross_out": "attention.linear.2",
    "cross_norm": "attention.layer_norm",
    "up": "ffn.linear_0",
    "down": "ffn.linear_1",
    "network_norm": "ffn.layer_norm",
}
"""The place of each part in a layer of the specification."""

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")


def export(run: TrainedRun, out: Path, quantization: str | None = None, never: Sequence[int] = ()) -> list[str]:
    """Writes a folder for ctranslate2.Translator, and returns what to say about it. never: tokens that it must not write."""
    package = _package()
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ConfigError(f"--quantization {quantization}: CTranslate2 has {', '.join(QUANTIZATIONS)}")
    shape = architecture(run.config, PROGRAM)
    task: Any = run.task
    source, target = vocabulary(task.source, PROGRAM), vocabulary(task.target, PROGRAM)
    spec = _specification(package, shape, named_weights(run.model), never)
    spec.register_source_vocabulary(source.pieces)
    spec.register_target_vocabulary(target.pieces)
    config = spec.config
    config.add_source_eos, config.layer_norm_epsilon = True, 1e-5
    config.bos_token, config.eos_token, config.unk_token = SPECIALS[BOS], SPECIALS[EOS], SPECIALS[UNK]
    config.decoder_start_token = SPECIALS[BOS]
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(out))
    for name, side in (("source.spm", source), ("target.spm", target)):
        if side.model is not None:
            (out / name).write_bytes(side.model)
        elif side is source or source.pieces != target.pieces:
            file = "tokenizer.json" if source.pieces == target.pieces else f"tokenizer.{name[:6]}.json"
            (out / file).write_text(tokenizer_json(side, range(len(side.pieces))), "utf-8")
    return [f"ctranslate2.Translator({str(out)!r}) translates lists of pieces; split texts with the tokenizer beside the model"]


def _package() -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError(f"the package `ctranslate2` is missing: {install('interop')}") from None
    logging.getLogger("ctranslate2").setLevel(logging.ERROR)
    return ctranslate2


def _specification(package: Any, shape: Architecture, weights: Mapping[str, Tensor], never: Sequence[int]) -> Any:
    """The specification of a model, filled with weights."""
    kinds, transformer = package.specs.common_spec.Activation, package.specs.transformer_spec
    options: dict[str, Any] = {
        "pre_norm": shape.norm == "pre",
        "activation": getattr(kinds, ACTIVATIONS[shape.activation]),
        "ffn_glu": shape.activation == "swiglu",
    }
    if shape.rotary is not None:
        options |= {"rotary_dim": 0, "rotary_interleave": True, "rotary_base": shape.rotary}
    encoder = transformer.TransformerEncoderSpec(shape.encoder_layers, shape.heads, **options)
    decoder = transformer.TransformerDecoderSpec(shape.decoder_layers, shape.heads, **options)
    stacks = {"encoder": encoder, "decoder": decoder}
    for side, layer in shape.sides():
        for role, place in LAYERS.items():
            name = f"{side}.layers.{layer}.{PARTS[role].name}"
            if f"{name}.weight" in weights:
                _fill(stacks[side].layer[layer], role, place, name, weights, shape)
    for side, stack in stacks.items():
        if shape.norm == "pre":
            stack.layer_norm.gamma, stack.layer_norm.beta = _vectors(f"{side}.norm", weights)
        if shape.position == "none":
            raise ConfigError(
                "model.position: none: CTranslate2 would add sinusoids; train with position: sinusoidal, or rotary"
            )
        if (places := shape.positions(side, weights)) is not None:
            stack.position_encodings.encodings = places.numpy()
    tables = {name: weights[_saved(name, shape)].numpy() for name in TABLES}
    encoder.embeddings[0].weight, decoder.embeddings.weight = tables["source"], tables["target"]
    decoder.projection.weight = tables["output"]
    if shape.output_bias or never:
        bias = weights.get(BIAS, torch.zeros(len(tables["output"])))
        decoder.projection.bias = bias.index_fill(0, torch.tensor(never, dtype=torch.long), NEVER).numpy()
    return transformer.TransformerSpec(encoder, decoder)


def _fill(layer: Any, role: str, place: str, name: str, weights: Mapping[str, Tensor], shape: Architecture) -> None:
    """Sets the weights of one part of a layer."""
    part = layer
    for step in place.split("."):
        part = part[int(step)] if step.isdigit() else getattr(part, step)
    if PARTS[role].norm:
        part.gamma, part.beta = _vectors(name, weights)
        return
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if role == "up" and shape.activation == "swiglu":  # the gate, then the value
        gate, value = weight.chunk(2)
        part.weight, layer.ffn.linear_0_noact.weight = gate.numpy(), value.numpy()
        if bias is not None:
            part.bias, layer.ffn.linear_0_noact.bias = (half.numpy() for half in bias.chunk(2))
        return
    part.weight = weight.numpy()
    if bias is not None:
        part.bias = bias.numpy()


def _vectors(name: str, weights: Mapping[str, Tensor]) -> tuple[Any, Any]:
    return weights[f"{name}.weight"].numpy(), weights[f"{name}.bias"].numpy()


def _saved(table: str, shape: Architecture) -> str:
    """The name under which a table is saved; shared ones are saved once."""
    if shape.share == "all":
        return TABLES["source"]
    return TABLES["target"] if table == "output" and shape.share == "output" else TABLES[table]
