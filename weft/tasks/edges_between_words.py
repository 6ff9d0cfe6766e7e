"""Texts with a graph over their words: edges such as `0-1 1-2 1-4`, which count words from 0, in a column of their own.

An edge has no direction, and each word is its own neighbour. In a source the text and its edges have a tab between them, and
in a corpus the column `edges` has the places of both words of each edge. Words that are cut off lose their edges. EOS has none.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from weft.data.batch import EOS, Layout, Source
from weft.data.batching import spread
from weft.data.corpus import Rows
from weft.data.formats import Fields, MappedPairs, Pairs
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.word_character_byte import WordTokenizer
from weft.errors import ConfigError, DataError
from weft.tasks.classification.data import Document, TextReader
from weft.tasks.two_texts import split_texts, two_text_format

FIELDS: Fields = (("text", "sentence", "source"), ("edges", "graph"), ("label", "target"))
"""The names of the columns."""

FORMAT = two_text_format(FIELDS)

EDGE = re.compile(r"(\d{1,9})-(\d{1,9})")


def without_edges(pairs: Sequence[Pairs]) -> list[Pairs]:
    """The texts alone, to train a tokenizer on."""
    return [MappedPairs(some, lambda source, label: (split_texts(source)[0], label), "without edges") for some in pairs]


def read_edges(written: str, words: int) -> list[int]:
    """The places of both words of each edge, one after the other. Raises DataError for one that is not in the text."""
    places = list[int]()
    for edge in written.split():
        found = EDGE.fullmatch(edge)
        if found is None:
            raise DataError(f"{edge[:40]!r} is no edge; write two numbers of words with a hyphen, as in 0-1 1-2")
        ends = [int(place) for place in found.groups()]
        if max(ends) >= words:
            raise DataError(f"the edge {edge[:40]} leads out of a text of {words} words, which are counted from 0")
        places += ends
    return places


def check_model(model: nn.Module) -> None:
    """Raises ConfigError if no layer of a model reads a graph."""
    if not any(getattr(module, "reads_graph", False) for module in model.modules()):
        raise ConfigError(
            "task.graph: no layer of this model looks at the neighbours of a word; set model.encoder_self: gat, or "
            "model.encoder.mixer: gat in a composed model"
        )


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raises ConfigError if the tokens of a tokenizer are no words."""
    if not isinstance(tokenizer, WordTokenizer) or tokenizer.punctuation:
        raise ConfigError(
            "task.graph: edges are between words, so each token must be a word; set data.tokenizer: {kind: words, "
            "punctuation: false}"
        )


class GraphReader(TextReader):
    """Turns a text and its edges into token ids, with EOS at the end, and places."""

    kind: ClassVar[str] = "texts with edges"
    column: ClassVar[str | None] = "edges"  # type: ignore[misc]

    def encode(self, texts: Sequence[str]) -> list[Document]:
        sources = [split_texts(text) for text in texts]
        encoded = list[Document]()
        for (text, written), ids in zip(sources, self.tokenizer.encode_batch([text for text, _ in sources]), strict=True):
            words = len(text.split())
            if len(ids) != words:
                raise DataError(f"{text[:60]!r} has {words} words but {len(ids)} tokens, so edges name no tokens")
            try:
                encoded.append((ids, read_edges(written, words)))
            except DataError as error:
                raise DataError(f"{text[:60]!r}: {error}") from None
        return encoded

    def cut(self, document: Document) -> Document:
        ids, places = document
        edges = zip(places[::2], places[1::2], strict=True)
        kept = [place for edge in edges if max(edge) < self.longest for place in edge]
        return ([*ids[: self.longest], EOS] if ids else []), kept


def with_graph(source: Source, places: Rows | Sequence[int], counts: Rows | Sequence[int]) -> Source:
    """A source with the graph of each text, given the places of all edges, and how many places each text has."""
    layout = source.layout
    assert layout is not None
    rows, length = layout.segments.shape
    graph = torch.eye(length, dtype=torch.bool).repeat(rows, 1, 1)
    text = torch.from_numpy(np.repeat(np.arange(len(counts)), np.asarray(counts, np.int64) // 2))
    ends = torch.from_numpy(np.asarray(places, np.int64).reshape(-1, 2))
    graph[text, ends[:, 0], ends[:, 1]] = graph[text, ends[:, 1], ends[:, 0]] = True
    return replace(source, layout=replace(layout, graph=graph))


def graph_source(ids: Rows, places: Rows, lengths: Sequence[int], counts: Sequence[int]) -> Source:
    """Texts with their graphs as the source of a model; see `with_graph`."""
    layout = Layout.padded(lengths)
    return with_graph(Source(spread(ids, layout), layout), places, counts)
