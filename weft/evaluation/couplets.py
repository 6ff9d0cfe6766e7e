"""Scores of couplets: how well second lines go with first lines, character by character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.evaluation.metrics import check_texts


@dataclass(frozen=True)
class CoupletScores:
    """Scores of second lines, in percent.

    length: as long as the first line · mirrored: of those whose first line repeats a character, how many have equal characters
    at the same places · shared: with a character of the first line, punctuation aside · bleu2: BLEU with single characters and
    pairs of them, against references.
    """

    length: float
    mirrored: float
    shared: float
    bleu2: float


def score_couplets(firsts: Sequence[str], seconds: Sequence[str], references: Sequence[str]) -> CoupletScores:
    """The scores of second lines. Without any repeat in the first lines, `mirrored` is 100."""
    from sacrebleu.metrics.bleu import BLEU

    check_texts(seconds, firsts, ("second lines", "first lines"))
    check_texts(seconds, references, ("second lines", "references"))
    pairs = list(zip(firsts, seconds, strict=True))
    repeating = [pair for pair in pairs if repeats(pair[0])]
    return CoupletScores(
        length=_percent([len(first) == len(second) for first, second in pairs]),
        mirrored=_percent([mirrors(*pair) for pair in repeating]) if repeating else 100.0,
        shared=_percent([shares(*pair) for pair in pairs]),
        bleu2=BLEU(max_ngram_order=2, tokenize="char").corpus_score(list(seconds), [list(references)]).score,
    )


def repeats(line: str) -> bool:
    """Whether a line repeats a character, punctuation aside."""
    characters = [character for character in line if character.isalnum()]
    return len(set(characters)) < len(characters)


def mirrors(first: str, second: str) -> bool:
    """Whether the second line has equal characters wherever the first line has."""
    places = [(first.index(character), place) for place, character in enumerate(first)]
    return len(second) >= len(first) and all(second[earlier] == second[place] for earlier, place in places)


def shares(first: str, second: str) -> bool:
    """Whether the lines have a character in common, punctuation aside."""
    return any(character.isalnum() for character in set(first) & set(second))


def _percent(found: Sequence[bool]) -> float:
    return 100 * sum(found) / len(found)
