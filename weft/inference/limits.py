"""The limits of a search for some pieces of text: lengths, and the rules of `decode.rules`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.config.sections import DecodeSection
from weft.data.copying import Numbering
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError
from weft.inference.reading import Piece
from weft.inference.resolve import Resolved
from weft.models.base import Model
from weft.search.choosers import Limits
from weft.search.rules import Rules


def most_source(section: DecodeSection, model: Model) -> int:
    """The most tokens of a piece, EOS included: decode.max_source, or what the model has positions for."""
    most = min(section.max_source, model.max_source or section.max_source)
    if "same_length" in section.rules and model.max_target is not None:
        most = min(most, model.max_target - 1)  # so that BOS, a text of the same length and EOS have positions too
    return most


def length_limits(resolved: Resolved, model: Model, pieces: Sequence[Piece], real: int, bias: Tensor | None = None) -> Limits:
    """Length limits per piece; pieces from number `real` on only pad the batch and end at once. bias: see `Limits`."""
    section = resolved.section
    if "same_length" in section.rules:
        longest = [len(piece.ids) - len(piece.prefix) for piece in pieces]
    else:
        longest = [min(section.max_length, int(section.max_ratio * len(piece.ids)) + 10) for piece in pieces]
    if model.max_target is not None:
        longest = [min(each, model.max_target - len(piece.prefix) - 1) for each, piece in zip(longest, pieces, strict=True)]
    longest = [max(1, each) if k < real else 1 for k, each in enumerate(longest)]
    shortest = [min(section.min_length, each - 1) for each in longest]
    columns = torch.tensor([longest, shortest, [piece.seed for piece in pieces]], device=resolved.device)  # one copy
    return Limits(columns[0], columns[1], columns[2], bias)


def check_rules(resolved: Resolved, source: Tokenizer, target: Tokenizer) -> None:
    """Raises ConfigError if the search cannot follow decode.rules, or if the tokens of both sides cannot be compared."""
    rules = resolved.section.rules
    resolved.search.check(["rules"] if rules else [])
    if "no_shared" in rules and source is not target:
        raise ConfigError(
            "decode.rules: no_shared compares the tokens of both sides, so they need one vocabulary; "
            "leave it out, or train with data.shared_vocabulary: true"
        )


def make_rules(section: DecodeSection, tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[Rules]:
    """The constraint of decode.rules on these pieces; none without rules.

    Different unknown words are different tokens. Punctuation may be shared: only tokens with a letter or a digit are barred.
    """
    if not section.rules:
        return []
    sources = [Numbering(tokenizer).number(piece.text, piece.ids[:-1]) for piece in pieces]
    barred = []
    for piece in pieces:
        names = tokenizer.named(piece.words).tokens(piece.ids[:-1])
        barred.append([token for token, name in zip(piece.ids, names) if any(map(str.isalnum, name))])
    return [Rules(section.rules, sources, barred)]
