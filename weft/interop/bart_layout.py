"""Names of weights, settings and special ids shared by the models of transformers that follow BART.

These are Marian, Pegasus, M2M100 and NLLB.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.data.batch import BOS, EOS, PAD, UNK
from weft.data.json_text import read_json
from weft.errors import RunError
from weft.interop.foreign_files import find, number
from weft.interop.transformer_weights import LARGEST, LONGEST, Architecture, NameTable, Rows
from weft.runs.open_run import TrainedRun

NAMES = {
    "self": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_out": ("self_attn.out_proj",),
    "self_norm": ("self_attn_layer_norm",),
    "cross": ("encoder_attn.q_proj",),
    "memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_out": ("encoder_attn.out_proj",),
    "cross_norm": ("encoder_attn_layer_norm",),
    "up": ("fc1",),
    "down": ("fc2",),
    "network_norm": ("final_layer_norm",),
}
TABLE = NameTable(
    "model.{side}.layers.{layer}.",
    {role: [(f"{name}.weight", f"{name}.bias") for name in names] for role, names in NAMES.items()},
    ("model.{side}.layer_norm.weight", "model.{side}.layer_norm.bias"),
)
CLASSES = {"marian": ("post", "MarianMTModel"), "pegasus": ("pre", "PegasusForConditionalGeneration")}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
MEANT = {
    "scale_embedding": True,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
"""Settings that must have these values, if a folder has them."""


def read_architecture(settings: Mapping[str, Any], file: Path, norm: str) -> Architecture:
    """The architecture that a config.json describes. Raises RunError with the setting that does not fit."""
    for key, meant in MEANT.items():
        if settings.get(key, meant) != meant:
            raise RunError(f"{file}: {key}: {settings[key]}: weft has no such model")
    for key in ("layers", "attention_heads", "ffn_dim"):
        pair = number(settings, f"encoder_{key}", file), number(settings, f"decoder_{key}", file)
        if key != "layers" and pair[0] != pair[1]:
            raise RunError(f"{file}: encoder_{key} and decoder_{key} differ ({pair[0]} and {pair[1]}); weft has one for both")
    activation = settings.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise RunError(f"{file}: activation_function: {activation}: weft has {', '.join(ACTIVATIONS)}")
    tied, shared = settings.get("tie_word_embeddings", True), settings.get("share_encoder_decoder_embeddings", True)
    return Architecture(
        dim=number(settings, "d_model", file),
        heads=number(settings, "encoder_attention_heads", file),
        feedforward=number(settings, "encoder_ffn_dim", file),
        encoder_layers=number(settings, "encoder_layers", file),
        decoder_layers=number(settings, "decoder_layers", file),
        norm=norm,
        activation=ACTIVATIONS[activation],
        share="none" if not tied else "all" if shared else "output",
    )


def decoding(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The section `decode`: the beam, its length penalty and its rule to stop, as in the folder."""
    path = find(folder, "generation_config.json")
    chosen = {**settings, **(read_json(path) if path else {})}
    beams, penalty, most = chosen.get("num_beams"), chosen.get("length_penalty"), chosen.get("max_length")
    search: dict[str, Any] = {"kind": "beam", "width": beams if type(beams) is int and 0 < beams <= 100 else 4}
    search["stop"] = {True: "first", "never": "exact"}.get(chosen.get("early_stopping", False), "length")
    if isinstance(penalty, int | float):
        search["length_penalty"] = float(penalty)
    return {"search": search, "max_length": most if type(most) is int and 0 < most <= 4096 else 512}


def special_rows(
    settings: Mapping[str, Any], table: Mapping[str, int], size: int, file: Path, code: re.Pattern[str]
) -> tuple[Rows, list[str], list[str]]:
    """The rows of a table for weft's ids, the pieces from RESERVED on, and the codes of languages, which follow them.

    Where translations begin with the id of padding, its row is that of BOS, and PAD is new; where they begin with the end of a
    sentence, BOS has a copy of its row.
    """
    if not 0 < size < LARGEST or any(row >= size for row in table.values()):
        raise RunError(f"{file}: vocab_size is {size}, but the vocabulary has ids up to {max(table.values(), default=0)}")
    for piece in ("</s>", "<unk>"):
        if piece not in table:
            raise RunError(f"{file}: the vocabulary has no {piece}")
    pad, eos, unk = number(settings, "pad_token_id", file), table["</s>"], table["<unk>"]
    start = number(settings, "decoder_start_token_id", file, pad)
    if max(pad, start) >= size or len({eos, unk, pad}) < 3 or start == unk:
        raise RunError(f"{file}: the special ids (pad {pad}, end {eos}, unknown {unk}, start {start}) do not fit together")
    first: list[int | None] = [None if start == pad else pad, start, eos, unk]
    names = {row: piece for piece, row in table.items()}
    rest = [row for row in range(size) if row not in first]
    codes = [row for row in rest if code.fullmatch(names.get(row, ""))]
    plain = sorted(set(rest) - set(codes))
    never = frozenset({PAD} if start == pad else ()) | frozenset({BOS} if start == eos else ())
    pieces = [names.get(row, f"<row {row}>") for row in plain]
    return Rows([*first, *plain, *codes], never), pieces, [names[row] for row in codes]


def exported_ids(shape: Architecture, size: int) -> list[int]:
    """weft's id for each id of the folder. With a zero BOS in one table, as in Marian, PAD is left out, and BOS comes last."""
    return [*range(EOS, size), BOS] if shape.zero_bos and shape.share == "all" else list(range(size))


def exported_settings(run: TrainedRun, shape: Architecture, kind: str, ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The content of config.json."""
    special = {"pad_token_id": ids[1].index(PAD if PAD in ids[1] else BOS), "eos_token_id": ids[1].index(EOS)}
    both = {"layers": (shape.encoder_layers, shape.decoder_layers)}
    both |= {"attention_heads": (shape.heads,) * 2, "ffn_dim": (shape.feedforward,) * 2}
    return {
        "model_type": kind,
        "architectures": [CLASSES[kind][1]],
        "is_encoder_decoder": True,
        "vocab_size": len(ids[0]),
        "decoder_vocab_size": len(ids[1]),
        "d_model": shape.dim,
        **{f"{side}_{key}": value[at] for key, value in both.items() for at, side in enumerate(("encoder", "decoder"))},
        "num_hidden_layers": shape.encoder_layers,
        "activation_function": {"silu": "swish"}.get(shape.activation, shape.activation),
        "dropout": run.config.model["dropout"],
        "attention_dropout": run.config.model["attention_dropout"],
        "activation_dropout": run.config.model["feedforward_dropout"],
        "max_position_embeddings": LONGEST,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_embedding": False,
        "normalize_before": shape.norm == "pre",
        "share_encoder_decoder_embeddings": shape.share == "all",
        "tie_word_embeddings": shape.share != "none",
        **special,
        "bos_token_id": None,
        "decoder_start_token_id": ids[1].index(BOS),
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def exported_generation(run: TrainedRun, ids: Sequence[int]) -> dict[str, Any]:
    """The content of generation_config.json."""
    search = run.config.decode.search
    return {
        "bad_words_ids": [[ids.index(each)] for each in (PAD, BOS, UNK) if each in ids],
        "decoder_start_token_id": ids.index(BOS),
        "eos_token_id": ids.index(EOS),
        "pad_token_id": ids.index(PAD if PAD in ids else BOS),
        "max_length": run.config.decode.max_length,
        "num_beams": search.get("width", 1),
        "length_penalty": search.get("length_penalty", 1.0),
    }


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file as transformers does."""
    file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
