"""Byte pair encoding of words that are already split into pieces: how a trained vocabulary grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise


def frequent_pairs(words: list[tuple[list[str], int]], never: Container[str]) -> Iterator[tuple[str, str]]:
    """The most frequent pair of neighbours, merged everywhere, then the next, as long as one occurs twice.

    words: the pieces of each word, which are merged in place, and its count · never: pieces that are not merged
    """
    counts: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], set[int]] = {}

    def count(number: int, sign: int) -> set[tuple[str, str]]:
        pieces, times = words[number]
        pairs = [pair for pair in pairwise(pieces) if pair[0] not in never and pair[1] not in never]
        for pair in pairs:
            counts[pair] += sign * times
            places.setdefault(pair, set()).add(number)
        return set(pairs)

    for number in range(len(words)):
        count(number, 1)
    queue = [(-times, pair) for pair, times in counts.items()]
    heapify(queue)
    while queue:
        times, pair = heappop(queue)
        if -times != counts[pair]:
            continue  # it has changed since, and is in the queue again
        if counts[pair] < 2:
            return
        changed: set[tuple[str, str]] = set()
        for number in sorted(places.pop(pair)):
            changed |= count(number, -1)
            words[number] = (_merged(words[number][0], pair), words[number][1])
            changed |= count(number, 1)
        for other in changed:
            heappush(queue, (-counts[other], other))
        yield pair


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
