"""Tokenizers of runs as the files of other programs: SentencePiece models, tables of pieces, and tokenizer.json."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.data.batch import SPECIALS
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.data.tokenizers.added_tokens import ExtendedTokenizer
from weft.data.tokenizers.sentencepiece_model import MappedSentencePieceTokenizer, SentencePieceTokenizer
from weft.data.tokenizers.subword import BpeTokenizer, UnigramTokenizer
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
