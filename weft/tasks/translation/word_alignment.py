"""Word alignment from attention weights, in Pharaoh format, evaluated by the alignment error rate (AER).

Words are separated by spaces and counted from 0. Every target word is linked to the source word that it attends to most; the
end of the sentence is not a word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.data.copy_vocabulary import encode_named
from weft.data.term_automata import token_texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError
from weft.explain.attention_maps import find_maps
from weft.explain.explanation import AttentionMap, Span, Weights, find_words, join_words
from weft.tasks.translation.given_translation import encode_source, encode_target
from weft.tasks.translation.predictor import TranslationPredictor

Link = tuple[int, int]
LINK = re.compile(r"(\d{1,9})([-p?])(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class Gold:
    """Links annotated by people. The possible links include the sure ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass(frozen=True)
class Agreement:
    """Agreement of links with gold links (Och & Ney 2003). aer: the alignment error rate, where 0 is best."""

    aer: float
    precision: float
    recall: float


def align(predictor: TranslationPredictor, source: str, target: str) -> list[tuple[AttentionMap, set[Link]]]:
    """Returns the links (source word, target word) of each cross-attention layer, from the mean over its heads.

    The target is given, not searched for. For a model without attention weights, links come from influence. If both texts have
    equally many sentences, these are aligned one by one, as they would be translated.
    """
    sentences = [_sentences(predictor, source), _sentences(predictor, target)]
    if len(sentences[0]) != len(sentences[1]) or len(sentences[0]) == 1:
        return _align(predictor, source, target)
    whole: list[tuple[AttentionMap, set[Link]]] = []
    before = (0, 0)
    for pair in zip(*sentences, strict=True):
        aligned = _align(predictor, *pair)
        moved = [(each, {(i + before[0], j + before[1]) for i, j in links}) for each, links in aligned]
        whole = [(each, links | more) for (each, links), (_, more) in zip(whole, moved, strict=True)] if whole else moved
        before = before[0] + len(pair[0].split()), before[1] + len(pair[1].split())
    return whole


def _sentences(predictor: TranslationPredictor, text: str) -> list[str]:
    """The sentences of a text, if white space separates them."""
    sentences = predictor.reader.sentences(text)
    return [each.text for each in sentences] if all(each.gap for each in sentences[1:]) else [text]


def _align(predictor: TranslationPredictor, source: str, target: str) -> list[tuple[AttentionMap, set[Link]]]:
    """The links of one sentence, or of a text that is aligned as a whole."""
    segment = encode_source(predictor, source)
    ids = encode_target(predictor, target, segment)
    _, maps = find_maps(predictor.model, segment.ids, ids, uses=("cross",))
    source_words = _words(*encode_named(predictor.source, source))
    target_words = _words(*encode_named(predictor.target, target, segment.words))
    return [(each, word_links(each.mean, source_words, target_words)) for each in maps if each.aligned]


def word_links(weights: Weights, source: Sequence[Span], target: Sequence[Span]) -> set[Link]:
    """Returns the links between words, from weights [T, S] between tokens and the token spans of the words."""
    if not source or not target:
        return set()
    joined = join_words(weights[None], target, source)[0]
    return {(int(row.argmax()), word) for word, row in enumerate(joined)}


def pharaoh(links: Iterable[Link]) -> str:
    """Formats links as `0-0 1-2` (source word, target word), in source order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_gold(line: str, where: str) -> Gold:
    """Parses a line of gold links: `0-0` is sure, `0p0` or `0?0` possible."""
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        if match is None:
            raise DataError(f"{where}: {word[:40]!r} is not a link; write 3-5 for a sure link, 3p5 for a possible one")
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def agreement(predicted: Iterable[set[Link]], gold: Iterable[Gold]) -> Agreement:
    """Over all sentences: AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), precision |A ∩ P| / |A|, recall |A ∩ S| / |S|."""
    links = sure = hit_sure = hit_possible = 0
    for mine, theirs in zip(predicted, gold, strict=True):
        links, sure = links + len(mine), sure + len(theirs.sure)
        hit_sure, hit_possible = hit_sure + len(mine & theirs.sure), hit_possible + len(mine & theirs.possible)
    return Agreement(
        1 - (hit_sure + hit_possible) / max(1, links + sure), hit_possible / max(1, links), hit_sure / max(1, sure)
    )


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """Returns the token spans of words, without special tokens."""
    words = find_words(ids, token_texts(tokenizer, ids), apart=False)
    return [span for span in words if ids[span[0]] >= RESERVED]
