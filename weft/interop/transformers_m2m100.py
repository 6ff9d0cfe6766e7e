"""M2M100 and the dense models of NLLB, as transformers stores them: many languages in one model.

A source begins with the token of its language, a translation with that of its own; both are tags of the run: `--tag "eng_Latn
fra_Latn"`. The sinusoids have frequencies of their own, so they become learned positions, which training leaves as they are.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.data.json_text import read_json
from weft.data.tokenizers.added_tokens import ExtendedTokenizer
from weft.data.tokenizers.sentencepiece_model import MappedSentencePieceTokenizer, load_processor
from weft.errors import RunError
from weft.interop.bart_layout import TABLE, decoding, read_architecture, special_rows
from weft.interop.foreign_files import find, licence_of, need, number, read_bytes, read_vocabulary, read_weights
from weft.interop.importing import ImportedModel
from weft.interop.transformer_weights import BIAS, POSITIONS, TABLES, Architecture, Tensors

LANGUAGE = re.compile(r"__([\w-]+)__|([a-z]{3}_[A-Z][a-z]{3})")
"""Tokens of languages: those of M2M100 and those of NLLB."""

LANGUAGES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig ilo is it
ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw
ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
"""The languages of M2M100, in the order of their ids, for folders that do not list them."""

NLLB_LICENCE = "cc-by-nc-4.0"


def read(folder: Path) -> ImportedModel:
    """The model of a folder of M2M100 or NLLB."""
    file = need(folder, "config.json")
    settings = read_json(file)
    shape = Architecture(
        **{**vars(read_architecture(settings, file, "pre")), "share": "all", "position": "learned"}
        | {"max_length": number(settings, "max_position_embeddings", file, 1024)}
    )
    if not settings.get("tie_word_embeddings", True):
        raise RunError(f"{file}: tie_word_embeddings: false: weft knows M2M100 with one table")
    model, table = _table(folder)
    size = number(settings, "vocab_size", file)
    rows, pieces, codes = special_rows(
        {"decoder_start_token_id": 2, "pad_token_id": 1, **settings}, table, size, file, LANGUAGE
    )
    if not codes:
        raise RunError(f"{folder}: its tokenizer has no languages, such as __en__ or eng_Latn")
    tensors, weights = read_weights(folder)
    theirs = Tensors(tensors, str(weights))
    name = next((each for each in ("model.shared.weight", "lm_head.weight") if each in theirs), "model.shared.weight")
    places = positions(shape.max_length, shape.dim)
    mapped = {
        TABLES["source"]: rows.table(theirs.take(name, size, shape.dim), None),
        BIAS: rows.bias(torch.zeros(size)),
        **dict.fromkeys(POSITIONS.values(), places),
        **TABLE.read(theirs, shape, None),
    }
    theirs.check_rest(
        ("shared.weight", "embed_tokens.weight", "lm_head.weight", "embed_positions.weights", "final_logits_bias")
    )
    inner = MappedSentencePieceTokenizer.make(model, pieces)
    tags = ["".join(part or "" for part in LANGUAGE.fullmatch(code).groups()) for code in codes]  # type: ignore[union-attr]
    tokenizer = ExtendedTokenizer(inner, tags, needs_tag=True, directed=True)
    decode = decoding(folder, settings)
    decode["search"]["length_offset"] = 1.0  # the language counts as a token of the translation
    nllb = "nllb" in folder.resolve().name.lower() or "_" in tags[0]
    return ImportedModel(
        shape,
        mapped,
        tokenizer,
        tokenizer,
        program="transformers, NLLB" if nllb else "transformers, M2M100",
        name=folder.resolve().name,
        decode={**decode, "max_length": min(decode["max_length"], shape.max_length - 2)},
        freeze=["*position.table.weight"],
        licence=licence_of(folder) or (f"{NLLB_LICENCE}, as Meta publishes NLLB" if nllb else None),
    )


def positions(count: int, dim: int) -> Tensor:
    """[count, D]: sines, then cosines, of the positions from 2 on, as fairseq computes them."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.int64).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(count + 2, dtype=torch.int64).float()[2:, None] * rates[None]
    return torch.nn.functional.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, dim % 2))


def _table(folder: Path) -> tuple[bytes, dict[str, int]]:
    """The SentencePiece model, and the table from pieces, special tokens and languages to ids."""
    file = need(folder, "sentencepiece.bpe.model")
    model = read_bytes(file)
    try:
        inner = load_processor(model)
    except ValueError as error:
        raise RunError(f"{file}: not a SentencePiece model: {error}") from None
    if (own := find(folder, "vocab.json")) is not None:  # M2M100
        table = read_vocabulary(own)
        languages = [piece for piece in _listed(folder) if LANGUAGE.fullmatch(piece)] or [
            f"__{code}__" for code in LANGUAGES.split()
        ]
        return model, table | {piece: len(table) + place for place, piece in enumerate(languages)}
    saved = find(folder, "tokenizer.json")
    if saved is not None:
        return model, _saved_table(saved)
    pieces = [inner.id_to_piece(number) for number in range(3, inner.get_piece_size())]
    every = ["<s>", "<pad>", "</s>", "<unk>", *pieces, *_listed(folder)]
    if not any(LANGUAGE.fullmatch(piece) for piece in every[4 + len(pieces) :]):
        raise RunError(f"{folder}: tokenizer.json is missing, and special_tokens_map.json lists no languages")
    return model, {piece: number for number, piece in enumerate(every)}


def _listed(folder: Path) -> list[str]:
    """The special tokens that a folder lists, such as its languages, in the order of their ids."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = find(folder, name)
        content: Mapping[str, Any] = read_json(path) if path else {}
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = content.get(key)
            if isinstance(listed, list) and listed:
                return [each if isinstance(each, str) else str(each.get("content")) for each in listed]
    return []


def _saved_table(file: Path) -> dict[str, int]:
    """The table of a tokenizer.json."""
    content = read_json(file)
    try:
        inner = content["model"]["vocab"]
        table = dict(inner) if isinstance(inner, dict) else {piece: number for number, (piece, _) in enumerate(inner)}
        table |= {each["content"]: each["id"] for each in content["added_tokens"]}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: it has no table of pieces ({error})") from None
    if not all(isinstance(piece, str) and type(number) is int and number >= 0 for piece, number in table.items()):
        raise RunError(f"{file}: its table of pieces is damaged")
    return table
