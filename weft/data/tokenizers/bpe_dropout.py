"""Random segmentations of words into subwords: BPE-dropout and samples of a unigram model.

The Hugging Face library cannot seed its own sampling, so that a resumed training would differ. Here the segmentation with a
given number follows from the word and the number alone. A word has `POOL` of them, which are kept once they are known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

POOL = 64
"""Random segmentations per word. They are independent samples, so frequent ones occur several times."""

REMEMBERED = 1_000_000
"""Maximum number of segmentations in the cache; a full cache is emptied."""

UNKNOWN = 10.0
"""Difference in log-probability between the least probable piece and an unknown character, as in SentencePiece."""

Segment = Callable[[str, Random], list[int]]
"""A random segmentation of a text without spaces, as ids."""


class SampledSegmentations:
    """Random segmentations of words, by number. parts: the texts that a word is divided into before it is segmented."""

    def __init__(self, parts: Callable[[str], Sequence[str]], segment: Segment) -> None:
        self.parts, self.segment = parts, segment
        self._known: dict[tuple[str, int], tuple[int, ...]] = {}

    def __call__(self, word: str, number: int) -> tuple[int, ...]:
        key = word, number
        tokens = self._known.get(key)
        if tokens is None:
            draw = Random(f"{number} {word}")
            tokens = tuple(token for part in self.parts(word) for token in self.segment(part, draw))
            if len(self._known) >= REMEMBERED:
                self._known = {}
            self._known[key] = tokens
        return tokens


def bpe_dropout(text: str, ranks: Mapping[tuple[str, str], int], skip: float, draw: Random) -> list[str]:
    """Byte pair encoding that skips each possible merge with probability `skip` in every step (Provilkov et al. 2020).

    ranks: the merges in the order in which they were learnt. Without skipping, the result is that of plain BPE.
    """
    pieces = list(text)
    while True:
        best = place = -1
        for at in range(len(pieces) - 1):
            rank = ranks.get((pieces[at], pieces[at + 1]), -1)
            if rank >= 0 and (best < 0 or rank < best) and not (skip and draw.random() < skip):
                best, place = rank, at
        if best < 0:
            return pieces
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


def unigram_sample(
    text: str, scores: Mapping[str, float], longest: int, unknown: float, power: float, draw: Random
) -> list[str]:
    """A segmentation drawn with probability ∝ P(segmentation)^power, by forward filtering, backward sampling (Kudo 2018).

    scores: the log-probability of each piece, of at most `longest` characters · unknown: that of a character that is no piece.
    """
    ahead, ways = [0.0], list[list[tuple[int, float]]]()
    for end in range(1, len(text) + 1):
        begins = range(max(0, end - longest), end)
        candidates = [(begin, scores[text[begin:end]]) for begin in begins if text[begin:end] in scores]
        if not any(begin == end - 1 for begin, _ in candidates):
            candidates.append((end - 1, unknown))
        here = [(begin, ahead[begin] + power * score) for begin, score in candidates]
        most = max(score for _, score in here)
        ahead.append(most + math.log(sum(math.exp(score - most) for _, score in here)))
        ways.append(here)
    pieces, end = list[str](), len(text)
    while end:
        here = ways[end - 1]
        weights = [math.exp(score - ahead[end]) for _, score in here]
        begin = draw.choices(here, weights)[0][0]
        pieces.append(text[begin:end])
        end = begin
    return pieces[::-1]
