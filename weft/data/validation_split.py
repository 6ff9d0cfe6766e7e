"""Holds pairs out of the training data, so that there is validation data without a file of its own.

The choice follows from the seed and the texts alone: pairs are ranked by a hash, and of the first ones those are taken whose
sentences occur in no other pair. Data is read twice, in constant memory. The chosen pairs are saved in the run as
`held-out.jsonl`, and this file decides from then on: a pair is left out of training if one of its sentences, on either
side, is a sentence of the file. Sentences are equal if they differ only in case or white space.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from weft.data.formats import JsonPairs, Pairs, Texts, combine
from weft.errors import DataError
from weft.file_access import replace_file

HELD_OUT = "held-out.jsonl"
"""The held-out pairs in the folder of a run; a file for `--data` like any other."""

CANDIDATES = 4
"""Pairs to choose from, for each one that is held out."""

MOST = 0.2
"""The largest share of the training pairs that may be lost, the held-out ones included."""

BOTH = (0, 1)
"""Sources and targets."""


class TrainingPairs(Pairs):
    """The pairs of `pairs` that share no sentence with the held-out pairs. sides: which of their texts count as sentences."""

    def __init__(self, pairs: Pairs, held: Pairs, sides: Sequence[int] = BOTH) -> None:
        super().__init__(pairs.name)
        self.pairs, self.sides, self.held = pairs, sides, held
        self.left_out, self.line_files = pairs.left_out, pairs.line_files
        self.sentences = {normal_form(pair[side]) for pair in held for side in sides}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        sentences, sides = self.sentences, self.sides
        return (pair for pair in self.pairs if not any(normal_form(pair[side]) in sentences for side in sides))

    def digest(self) -> str:
        return combine("remaining", self.pairs.digest(), self.held.digest(), *map(str, self.sides))


def split(pairs: Sequence[Pairs], run: Path, count: int, seed: int, sides: Sequence[int] = BOTH) -> tuple[list[Pairs], Pairs]:
    """The remaining training pairs and the held-out ones: those of the file in `run`, or `count` chosen now and saved there."""
    file = run / HELD_OUT
    if not file.exists():
        chosen = choose(pairs, count, seed, sides)
        lines = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in chosen)
        replace_file(file, "".join(f"{line}\n" for line in lines))
    held = JsonPairs(str(file), str(file), None)
    return [TrainingPairs(some, held, sides) for some in pairs], held


def choose(pairs: Sequence[Pairs], count: int, seed: int, sides: Sequence[int] = BOTH) -> Texts:
    """At most `count` pairs, in the order of their ranks. Raises DataError if nearly all pairs share their sentences."""
    candidates = _first(pairs, CANDIDATES * count, seed)
    shared, total = _occurrences(pairs, candidates.values(), sides)

    def lost(pair: tuple[str, str]) -> int:
        """At most this many other pairs have a sentence of this one."""
        return sum(shared[sentence] - 1 for sentence in {normal_form(pair[side]) for side in sides})

    chosen: dict[int, tuple[str, str]] = {}
    sources: set[str] = set()
    room = int(MOST * total)
    for rank, pair in sorted(candidates.items(), key=lambda item: (lost(item[1]), item[0])):
        cost = 1 + lost(pair)
        if len(chosen) == count or cost > room:
            break
        if normal_form(pair[0]) not in sources:
            chosen[rank], room = pair, room - cost
            sources.add(normal_form(pair[0]))
    if not chosen:
        names = ", ".join(some.name for some in pairs)
        if room < 1:
            few = "there is only one pair" if total == 1 else f"there are only {total:,} pairs"
            raise DataError(f"{names}: {few}, too few to hold any out for validation. Give more, or --valid FILES.")
        raise DataError(
            f"{names}: no pairs can be held out for validation, because nearly all of the {total:,} pairs share a sentence "
            "with others. Give --valid FILES. If the targets are labels, train a classifier: `weft list recipes` shows them"
        )
    return [chosen[rank] for rank in sorted(chosen)]


def _first(pairs: Sequence[Pairs], most: int, seed: int) -> dict[int, tuple[str, str]]:
    """The `most` different pairs with the lowest ranks, by rank. Pairs with an empty side have none."""
    candidates: dict[int, tuple[str, str]] = {}
    heap: list[int] = []
    for source, target in chain.from_iterable(pairs):
        text = f"{seed}\0{normal_form(source)}\0{normal_form(target)}"
        rank = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        if rank in candidates or (len(heap) == most and rank > -heap[0]) or not (source.strip() and target.strip()):
            continue
        candidates[rank] = source, target
        heapq.heappush(heap, -rank)
        if len(heap) > most:
            del candidates[-heapq.heappop(heap)]
    return candidates


def _occurrences(
    pairs: Sequence[Pairs], candidates: Iterable[tuple[str, str]], sides: Sequence[int]
) -> tuple[Counter[str], int]:
    """For each sentence of the candidates the number of pairs that have it, and the number of all pairs."""
    wanted = {normal_form(pair[side]) for pair in candidates for side in sides}
    counts: Counter[str] = Counter()
    total = 0
    for pair in chain.from_iterable(pairs):
        total += 1
        for sentence in {normal_form(pair[side]) for side in sides} & wanted:
            counts[sentence] += 1
    return counts, total


def normal_form(text: str) -> str:
    """The form in which equal sentences are equal."""
    return " ".join(text.casefold().split())
