"""Which source word each target word comes from: links read off weights, as Pharaoh text, and scored by AER.

A word is what spaces part, counted from 0. Every target word is linked to the source word it looks at most; the end of the
sentence is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.data.tokenizer import RESERVED, Tokenizer
from weft.errors import DataError
from weft.explain.explain import given_ids, read, read_target
from weft.explain.explanation import Look
from weft.explain.looks import look_closely
from weft.explain.text import Span, Weights, find_words, join_words, token_texts
from weft.inference.translation import TranslationPredictor

Link = tuple[int, int]
LINK = re.compile(r"(\d+)([-p?])(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Gold:
    """Links that people made: sure ones, and possible ones, which include the sure."""

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass(frozen=True)
class Agreement:
    """How well links agree with gold ones (Och & Ney 2003). aer is the alignment error rate, 0 at best."""

    aer: float
    precision: float
    recall: float


def align(predictor: TranslationPredictor, source: str, target: str) -> list[tuple[Look, set[Link]]]:
    """The links (source word, target word) that each layer's look at the source gives, on the mean over its heads.

    The target is given, not searched for. A model that shows no weights is asked what each token depends on.
    """
    piece = read(predictor, source)
    ids = read_target(predictor, target, piece)
    _, looks = look_closely(predictor.model, piece.ids, ids, uses=("cross",))
    read_words = _words(*given_ids(predictor.source, source))
    written = _words(*given_ids(predictor.target, target, piece.words))
    return [(look, word_links(look.weights.mean(0), read_words, written)) for look in looks if look.aligned]


def usual_layer(count: int) -> int:
    """Which of `count` layers to take when none is named, counted from 0: the last but one, or the only one.

    In trained Transformers the layer below the last is the one whose mean over heads aligns best (Garg et al. 2019).
    """
    return max(0, count - 2)


def word_links(weights: Weights, source: Sequence[Span], target: Sequence[Span]) -> set[Link]:
    """The links of weights [T, S] between tokens, given the words of both sides."""
    if not source or not target:
        return set()
    joined = join_words(weights[None], target, source)[0]
    return {(int(row.argmax()), place) for place, row in enumerate(joined)}


def pharaoh(links: Iterable[Link]) -> str:
    """`0-0 1-2`: source and target word of every link, in the order of the source."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_gold(line: str, where: str) -> Gold:
    """Gold links from a line: `0-0` is sure, `0p0` or `0?0` possible."""
    sure, possible = set(), set()
    for word in line.split():
        found = LINK.fullmatch(word)
        if found is None:
            raise DataError(f"{where}: {word!r} is no link; write 3-5 for a sure one, 3p5 for a possible one")
        link = (int(found[1]), int(found[3]))
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def agreement(found: Iterable[set[Link]], gold: Iterable[Gold]) -> Agreement:
    """Over all sentences: AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), precision |A ∩ P| / |A|, recall |A ∩ S| / |S|."""
    links = sure = hit_sure = hit_possible = 0
    for mine, theirs in zip(found, gold, strict=True):
        links, sure = links + len(mine), sure + len(theirs.sure)
        hit_sure, hit_possible = hit_sure + len(mine & theirs.sure), hit_possible + len(mine & theirs.possible)
    return Agreement(
        1 - (hit_sure + hit_possible) / max(1, links + sure), hit_possible / max(1, links), hit_sure / max(1, sure)
    )


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The words of a side, without special tokens."""
    words = find_words(ids, token_texts(tokenizer, ids), apart=False)
    return [span for span in words if ids[span[0]] >= RESERVED]
