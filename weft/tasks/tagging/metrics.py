"""Metrics of tags and entities, and the tagging schemes IOB1, IOB2 and BIOES.

A tag is O or a prefix, a hyphen and a type: B-LOC. B begins an entity, I continues it, E ends it, S is an entity of one word.
Tags are read as the script `conlleval` of CoNLL-2000 reads them, so every sequence of tags has a meaning: an I that continues
nothing begins an entity. The texts that metrics compare have a word, a tab and its tag on each line.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal

import numpy as np

from weft.errors import DataError
from weft.evaluation.metrics import Counts, Metric

Scheme = Literal["iob2", "bioes"]

OUTSIDE = "O"
PREFIXES: dict[str, str] = {"iob2": "BI", "bioes": "BIES"}
FIRST, LAST = frozenset("BS"), frozenset("ES")
"""Prefixes that always begin, and that always end, an entity."""


@dataclass(frozen=True)
class Entity:
    """The words from `begin` to before `end`."""

    begin: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """The prefix and the type of a tag; both are empty for O. Raises DataError for a tag of no scheme."""
    if tag == OUTSIDE:
        return "", ""
    prefix, mark, kind = tag.partition("-")
    if prefix not in {"B", "I", "E", "S"} or not mark or not kind:
        raise DataError(
            f"the tag {tag!r} is not one of an entity, such as B-LOC, I-LOC or O; if tags are not entities, set "
            "task.entities: none"
        )
    return prefix, kind


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities in the tags of a sentence, of any scheme."""
    entities: list[Entity] = []
    parts = [("", ""), *map(split_tag, tags), ("", "")]
    begin = 0
    for place, ((before, old), (here, new)) in enumerate(pairwise(parts)):
        if old == new and before not in LAST and here not in FIRST:
            continue  # inside an entity, or outside of all
        if old:
            entities.append(Entity(begin, place, old))
        begin = place
    return entities


def write_entities(entities: Iterable[Entity], words: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence with these entities; `words` is the number of its words."""
    tags = [OUTSIDE] * words
    for entity in entities:
        length = entity.end - entity.begin
        prefixes = "B" + "I" * (length - 1)
        if scheme == "bioes":
            prefixes = "S" if length == 1 else f"B{'I' * (length - 2)}E"
        tags[entity.begin : entity.end] = [f"{prefix}-{entity.type}" for prefix in prefixes]
    return tags


def convert(tags: Sequence[str], scheme: Scheme | None) -> list[str]:
    """The same entities in another scheme; None: the tags as they are."""
    return list(tags) if scheme is None else write_entities(find_entities(tags), len(tags), scheme)


def types_of(tags: Iterable[str]) -> set[str]:
    """The types of the entities in tags."""
    return {split_tag(tag)[1] for tag in tags} - {""}


def tags_of(types: Iterable[str], scheme: Scheme) -> list[str]:
    """All tags that entities of these types can have, O included."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(set(types)) for prefix in PREFIXES[scheme])]


def may_start(tag: str) -> bool:
    """Whether a sentence may begin with this tag, in IOB2 or BIOES."""
    return split_tag(tag)[0] in {"", "B", "S"}


def may_follow(before: str, after: str, scheme: Scheme) -> bool:
    """Whether one tag may follow the other."""
    (left, old), (right, new) = split_tag(before), split_tag(after)
    inside = left in {"B", "I"}
    if right in {"I", "E"}:
        return inside and old == new
    return scheme == "iob2" or not inside


def may_end(tag: str, scheme: Scheme) -> bool:
    """Whether a sentence may end with this tag."""
    return scheme == "iob2" or split_tag(tag)[0] in {"", "E", "S"}


def split_tags(text: str) -> tuple[list[str], list[str]]:
    """The words and the tags of a sentence as in a file."""
    rows = [line.rpartition("\t") for line in text.split("\n")] if text else []
    return [word for word, _, _ in rows], [tag for _, _, tag in rows]


def entities_in(text: str) -> set[Entity]:
    """The entities of a sentence as in a file."""
    return set(find_entities(split_tags(text)[1]))


class TagAccuracy(Metric):
    """The share of words with the right tag."""

    name = "accuracy"
    signature = "words with the right tag"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return np.array([self._sentence(ours, theirs) for ours, theirs in zip(hypotheses, references)], np.float64)

    def _sentence(self, ours: str, theirs: str) -> tuple[int, int]:
        words, true = split_tags(theirs)
        counted = [self.counts(word) for word in words]
        right = [said == tag for said, tag in zip_longest(split_tags(ours)[1][: len(true)], true)]
        return sum(good for good, counts in zip(right, counted, strict=True) if counts), sum(counted)

    def counts(self, word: str) -> bool:
        """Whether a word counts: all do."""
        return True


class UnknownAccuracy(TagAccuracy):
    """The share of words with the right tag among those that do not occur in the training data; 0 if there are none."""

    name = "unknown accuracy"
    signature = "words with the right tag|of:words that are not in the training data"

    def __init__(self, known: Container[str]) -> None:
        self.known = known

    def counts(self, word: str) -> bool:
        return word not in self.known


class EntityF1(Metric):
    """F₁ = right / (½ predicted + ½ true) of whole entities, which are right if their words and their type are.

    shares: of the predicted and of the true entities in the denominator.
    """

    name = "F1"
    signature = "F1 of whole entities|as:conlleval"
    shares = (0.5, 0.5)

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 3]: entities that are right, predicted, true."""
        pairs = [(entities_in(ours), entities_in(theirs)) for ours, theirs in zip(hypotheses, references)]
        return np.array([(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in pairs], np.float64)

    def value(self, sums: Counts) -> Counts:
        predicted, true = self.shares
        return np.asarray(100 * sums[..., 0] / np.maximum(predicted * sums[..., 1] + true * sums[..., 2], 1e-9))


class EntityPrecision(EntityF1):
    """Right / predicted."""

    name = "precision"
    signature = "precision of whole entities|as:conlleval"
    shares = (1.0, 0.0)


class EntityRecall(EntityF1):
    """Right / true."""

    name = "recall"
    signature = "recall of whole entities|as:conlleval"
    shares = (0.0, 1.0)
