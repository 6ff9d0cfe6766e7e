"""Tokenizers of runs as the files of other programs: SentencePiece models, tables of pieces, and tokenizer.json."""

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.data.batch import BOS, PAD, SPECIALS
from weft.data.tokenizers import RESERVED, SPACE, Tokenizer
from weft.data.tokenizers.added_tokens import ExtendedTokenizer
from weft.data.tokenizers.bpe_and_unigram import BpeTokenizer, UnigramTokenizer
from weft.data.tokenizers.sentencepiece_model import MappedSentencePieceTokenizer, SentencePieceTokenizer
from weft.errors import ConfigError
from weft.interop.transformer_weights import PORTABLE

Ids = Sequence[int]
"""weft's id for each id of another program."""


@dataclass(frozen=True)
class Vocabulary:
    """One side of a run's vocabulary. pieces: of all ids, the special ones first · model: its SentencePiece model, if it has
    one · tags: the pieces of added tokens, `>>name<<`."""

    tokenizer: Tokenizer
    pieces: list[str]
    model: bytes | None
    tags: Sequence[str]


def vocabulary(tokenizer: Tokenizer, program: str) -> Vocabulary:
    """The pieces of a tokenizer. Raises ConfigError if another program could not use them."""
    tags = [f">>{name}<<" for name in tokenizer.added]
    inner = tokenizer.inner if isinstance(tokenizer, ExtendedTokenizer) else tokenizer
    if isinstance(tokenizer, ExtendedTokenizer) and tokenizer.directed:
        raise ConfigError(f"data.tokenizer: {program} has no tags of two languages, as this run has")
    if not isinstance(inner, BpeTokenizer | UnigramTokenizer | SentencePieceTokenizer | MappedSentencePieceTokenizer):
        kind = type(inner).__name__
        raise ConfigError(f"data.tokenizer: {program} has no tokenizer like {kind}; {PORTABLE}")
    pieces = [*SPECIALS, *(inner.piece(number) for number in range(RESERVED, inner.size)), *tags]
    if len(set(pieces)) < len(pieces):
        double = next(piece for number, piece in enumerate(pieces) if piece in pieces[:number])
        raise ConfigError(f"data.tokenizer: the piece {double!r} has two ids, which {program} cannot tell apart; {PORTABLE}")
    return Vocabulary(inner, pieces, sentencepiece_bytes(inner), tags)


def sentencepiece_bytes(tokenizer: Tokenizer) -> bytes | None:
    """The SentencePiece model of a tokenizer, if it has one."""
    inner = tokenizer.inner if isinstance(tokenizer, ExtendedTokenizer) else tokenizer
    if isinstance(inner, SentencePieceTokenizer):
        return inner.dump()
    return inner.model if isinstance(inner, MappedSentencePieceTokenizer) else None


NORMAL, UNKNOWN, BYTE = 1, 2, 6
"""Types of pieces in a SentencePiece model."""


def tokenizer_json(side: Vocabulary, ids: Sequence[int]) -> str:
    """The content of tokenizer.json. ids: weft's id for each id of the other program."""
    names = table(side, ids)
    tokenizer = side.tokenizer
    if isinstance(tokenizer, SentencePieceTokenizer):
        content = _sentencepiece(read_model(tokenizer.dump()), names)
    elif side.model is not None:
        raise ConfigError(
            "data.tokenizer: a tokenizer with a table of its own has no tokenizer.json; use its SentencePiece models"
        )
    else:
        content = json.loads(tokenizer.dump())
        content["model"] = _renumbered(content["model"], names)
    special = [*(piece for piece in SPECIALS if piece in names), *side.tags]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    end = {"id": "</s>", "type_id": 0}
    content |= {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": piece, **flags} for number, piece in sorted((names[piece], piece) for piece in special)
        ],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": end}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": end}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [names["</s>"]], "tokens": ["</s>"]}},
        },
    }
    return json.dumps(content, ensure_ascii=False)


def table(side: Vocabulary, ids: Sequence[int]) -> dict[str, int]:
    """Pieces and their ids in the other program. If PAD has none, the start of a translation is its padding."""
    names = {side.pieces[own]: number for number, own in enumerate(ids)}
    if PAD not in ids:
        names[SPECIALS[PAD]] = names.pop(SPECIALS[BOS])
    return names


def _renumbered(model: Mapping[str, Any], names: Mapping[str, int]) -> dict[str, Any]:
    """The model of a tokenizer.json with other ids."""
    if model["type"] == "BPE":
        inner = {piece: names[piece] for piece in model["vocab"] if piece in names}
        return {**model, "vocab": inner | {piece: number for piece, number in names.items() if piece in SPECIALS}}
    scores: dict[str, float] = dict(model["vocab"])
    lowest = min(scores.values())
    ordered = sorted(names, key=names.__getitem__)
    kept = [[piece, scores.get(piece, lowest)] for piece in ordered if piece in scores or piece in SPECIALS]
    return {**model, "vocab": kept, "unk_id": names["<unk>"]}


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a SentencePiece model file: pieces with scores and types, whether it is BPE, and its normalisation."""

    pieces: Sequence[tuple[str, float, int]]
    bpe: bool
    charsmap: bytes
    squeeze: bool


def read_model(content: bytes) -> SentencePieceModel:
    """Parses a model file (sentencepiece_model.proto)."""
    pieces, bpe, charsmap, squeeze = [], False, b"", True
    for field, value in _fields(content):
        if field == 1:
            piece = dict(_fields(value))
            pieces.append(
                (piece[1].decode(), struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0, int(piece.get(3, NORMAL)))
            )
        elif field == 2:
            bpe = dict(_fields(value)).get(3, 1) == 2
        elif field == 3:
            inner = dict(_fields(value))
            charsmap, squeeze = inner.get(2, b""), bool(inner.get(4, 1))
    return SentencePieceModel(pieces, bpe, charsmap, squeeze)


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a message: numbers, and bytes for everything else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield key >> 3, content[at : at + size]
        at += size


def _sentencepiece(model: SentencePieceModel, names: Mapping[str, int]) -> dict[str, Any]:
    """The parts of a tokenizer.json that split and join texts like a SentencePiece model."""
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.squeeze:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    scores = {piece: score for piece, score, kind in model.pieces if kind in (NORMAL, BYTE)}
    byte_fallback = any(kind == BYTE for *_, kind in model.pieces)
    ordered = sorted(names, key=names.__getitem__)
    inner: dict[str, Any]
    if model.bpe:
        merges = _merges({piece: score for piece, score, kind in model.pieces if kind == NORMAL})
        vocabulary = {piece: names[piece] for piece in ordered}
        inner = {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": "<unk>", "fuse_unk": True}
        inner |= {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False}
    else:
        inner = {"type": "Unigram", "vocab": [[piece, scores.get(piece, 0.0)] for piece in ordered], "unk_id": names["<unk>"]}
    spaces: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if byte_fallback:
        spaces += [{"type": "ByteFallback"}]
    spaces += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": not model.bpe},
        "decoder": {"type": "Sequence", "decoders": spaces},
        "model": {**inner, "byte_fallback": byte_fallback},
    }


def _merges(scores: Mapping[str, float]) -> list[list[str]]:
    """Every pair of pieces whose joint is a piece, the best joint first, as SentencePiece merges them."""
    pairs = []
    for piece, score in scores.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs += [(-score, left, right) for left, right in halves if left in scores and right in scores]
    pairs.sort(key=lambda pair: pair[0])
    return [[left, right] for _, left, right in pairs]
