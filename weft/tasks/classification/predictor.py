"""Predictors that choose labels, one for each input or any number of them, and the explanation of their choice."""

import math
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import accumulate, chain, pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import Layout, Source, pad
from weft.data.corpus import Rows
from weft.data.tokenizers import RESERVED
from weft.decoding.decoding_options import DecodingOptions
from weft.decoding.predictor import BatchItem, Prediction, TextInput, TextPredictor
from weft.decoding.search_loop import Cancellation
from weft.explain.explanation import Weights, right_to_left
from weft.explain.html_page import head_images, meter, notes, shaded_words
from weft.models.base import Network
from weft.models.pooling import Pooled, Pooling
from weft.tasks.classification.data import Labels, TextReader, document_source
from weft.tasks.classification.model import ClassifierOutput, record_probabilities
from weft.tasks.edges_between_words import GraphReader, graph_source


@dataclass
class Label(Prediction):
    """A label: `text` is its name and `score` its log-probability. A blank line has none.

    If an input may have any number of labels, `text` joins their names by commas and `score` is the log-probability of this
    choice. probabilities: of all labels, the likeliest first · sentences: the tokens of each sentence, if the model reads
    them · facts: the sentences of a story that the model could look at · hops: for each look, the weight of each fact.
    """

    probabilities: dict[str, float] = field(default_factory=dict)
    sentences: list[list[str]] = field(default_factory=list, repr=False)
    facts: list[str] = field(default_factory=list, repr=False)
    hops: list[list[float]] = field(default_factory=list, repr=False)

    def document(self) -> dict[str, Any]:
        plain = super().document()
        if self.probabilities:
            plain["probabilities"] = {name: round(value, 6) for name, value in self.probabilities.items()}
        if self.hops:
            looks = zip(self.facts, *self.hops, strict=True)
            plain["facts"] = [{"fact": fact, "hops": [round(weight, 4) for weight in weights]} for fact, *weights in looks]
        return plain


class LabelPredictor(TextPredictor[Label], ABC):
    """A model with the labels that it chooses from; those of several that are more probable than `threshold` are given.

    Of the decoding options it uses batch_tokens, precision, compile and n_best, the number of labels given.
    """

    no_fields = "a label is not written word by word, so it has no prefix and no terms; leave them out"

    def __init__(
        self,
        model: Network,
        reader: Any,
        labels: Labels,
        options: DecodingOptions,
        *,
        threshold: float = 0.5,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, reader, options, warn)
        self.labels, self.threshold = labels, threshold

    def classify(self, *sources: Source) -> ClassifierOutput:
        output: ClassifierOutput = self.forward(*(source.to(self.model.device) for source in sources))
        if isinstance(self.labels, Labels):  # not a number
            record_probabilities(output.logits, several=self.labels.several)
        return output

    def give(self, logits: Tensor, tokens: list[str]) -> Label:
        """The labels of an input, from its logits [C] and its tokens: all that exceed the threshold, if there may be several.

        Otherwise the likeliest one, and as alternatives the next ones, `n_best` in all.
        """
        names, several = self.labels.names, self.labels.several
        values, places = (logits.sigmoid() if several else logits.log_softmax(-1)).sort(descending=True, stable=True)
        ranked = list(zip(values.tolist(), places.tolist(), strict=True))
        if several:
            predicted = logits.sigmoid() > self.threshold
            score = torch.where(predicted, logsigmoid(logits), logsigmoid(-logits)).sum().item()
            choices = [(score, predicted.nonzero()[:, 0].tolist())]
        else:
            choices = [(value, [at]) for value, at in ranked[: self.options.config.n_best]]
        best, *rest = (
            Label(self.labels.join(ids), score, [at + RESERVED for at in ids], [names[at] for at in ids], tokens)
            for score, ids in choices
        )
        best.alternatives = rest
        best.probabilities = {names[at]: value if several else math.exp(value) for value, at in ranked}
        return best


POOLINGS = {"pooling": "pooling", "words": "encoder.front.pooling"}
"""The name of the weights of a pooling → the module of a classifier."""


@dataclass(eq=False)
class TextPart(BatchItem):
    """sizes: the number of ids of each sentence, if the model reads sentences; the places of edges, if it reads a graph."""

    sizes: list[int] = field(default_factory=list, kw_only=True)


class ClassificationPredictor(LabelPredictor):
    """A classifier of texts."""

    reader: TextReader
    several_texts: ClassVar[bool] = False
    """Whether an input has several texts, with a tab between them."""
    _told = False
    """Whether it has been said that there are tabs."""

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[TextPart]]:
        encoded = self.reader.encode(["" if given.text.isspace() else given.text for given in inputs])
        self._check_tabs(inputs, first_line)
        longest = self.reader.longest
        for line, document in enumerate(encoded, start=first_line):
            if (length := self.reader.length(document)) > longest:
                self.warn(f"line {line} has {length:,} tokens; only the first {longest:,} are read")
        cut = [self.reader.cut(each) for each in encoded]
        return [[TextPart(ids, sizes=sizes)] if ids else [] for ids, sizes in cut]

    def _check_tabs(self, inputs: Sequence[TextInput], first_line: int) -> None:
        """Edges between words follow a tab; elsewhere a tab is likely to be that of a table, whose columns are all read."""
        edges = isinstance(self.reader, GraphReader)
        for line, given in enumerate(inputs, start=first_line):
            if edges and given.text.strip() and "\t" not in given.text:
                self.warn(f"line {line} has no edges; write them after a tab, as in 0-1 1-2")
            elif not (edges or self.several_texts or self._told) and "\t" in given.text:
                self._told = True
                self.warn(f"line {line} has a tab, and the whole line is read as the text; for its first column give cut -f1")

    def run(self, parts: list[TextPart], control: Cancellation | None = None) -> list[Label]:
        logits = self.classify(*self.lay_out(parts)).logits.float().cpu()
        results = [self.give(row, self.reader.tokenizer.tokens(part.ids)) for row, part in zip(logits, parts, strict=True)]
        for label, part in zip(results, parts, strict=True):
            ends = accumulate(part.sizes if self.reader.by_sentence else [], initial=0)
            label.sentences = [label.source_tokens[start:end] for start, end in pairwise(ends)]
        return results

    def join_outputs(self, given: TextInput, parts: list[TextPart], results: list[Label]) -> Label:
        if not results:
            return Label("", 0.0)
        if given.attention:
            self.add_attention(results[0], parts[0])
        return results[0]

    def add_attention(self, label: Label, part: TextPart) -> None:
        """Adds the weights of every layer that has any.

        Those of the pooling are under "pooling", and those of words in sentences [sentences, rows, words] under "words".
        """
        with record(self.model) as recorded, record_poolings(self.model) as pooled:
            self.classify(*self.lay_out([part]))
        label.attention, label.uses = first_row(self.model, recorded)
        for key, name in POOLINGS.items():
            if name in pooled:
                label.attention[key] = np.asarray(pooled[name].float().cpu())

    def lay_out(self, parts: Sequence[TextPart]) -> Sequence[Source]:
        """The sources that the model reads."""
        if self.reader.by_sentence:
            return [document_source(*joined(parts), [len(part.sizes) for part in parts])]
        lengths = [part.size for part in parts]
        if isinstance(self.reader, GraphReader):
            return [graph_source(*joined(parts), lengths, [len(part.sizes) for part in parts])]
        return [Source(pad([part.ids for part in parts]), None if len(set(lengths)) == 1 else Layout.padded(lengths))]


def joined(parts: Sequence[TextPart]) -> tuple[Rows, Rows]:
    """The ids of all parts, and the sizes of all their sentences, one after the other."""
    ids, sizes = (np.array([*chain.from_iterable(each)]) for each in zip(*((p.ids, p.sizes) for p in parts)))
    return ids, sizes


@contextmanager
def record_poolings(model: Network) -> Iterator[dict[str, Tensor]]:
    """Inside this context the weights of every pooling of `model` are collected under its name, if it has any."""
    recorded: dict[str, Tensor] = {}

    def note(name: str, _: nn.Module, __: Any, pooled: Pooled) -> None:
        if pooled.weights is not None:
            recorded[name] = pooled.weights

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Pooling):
                stack.callback(module.register_forward_hook(partial(note, name)).remove)
        yield recorded


SHOWN = 10
"""The most labels whose probabilities are listed."""


def label_page(label: Label) -> str:
    """The probabilities of labels, the weights of sentences and words, and the heads of the encoder."""
    return probability_table(label) + weighted_sentences(label) + head_images(label.attention, label.uses)


def probability_table(label: Label) -> str:
    """The likeliest labels with their probabilities."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{share:.3f}</td><td>{meter(share)}</td></tr>"
        for name, share in list(label.probabilities.items())[:SHOWN]
    )
    return f"<table>{rows}</table>\n"


def weighted_sentences(label: Label) -> str:
    """A bar shows the weight of a sentence, the shade of a word its own weight. Several pooled vectors are averaged."""
    # [rows, pooled vectors, positions] → [rows, positions]
    pooling, words = (label.attention[name].mean(1) if name in label.attention else None for name in ("pooling", "words"))
    if label.sentences:
        upper = [None] * len(label.sentences) if pooling is None else pooling[0].tolist()
        lower = [None] * len(label.sentences) if words is None else list(words)
        lines = [_sentence(*each) for each in zip(label.sentences, lower, upper)]
    else:
        lines = [_sentence(label.source_tokens, None if pooling is None else pooling[0], None)]
    missing = ["sentences"] * (bool(label.sentences) and pooling is None)
    missing += ["words"] * ((words if label.sentences else pooling) is None)
    remarks = notes([f"the pooling over {what} has no weights, so all {what} look alike" for what in missing])
    return f"{remarks}<ol>{''.join(lines)}</ol>\n"


def _sentence(words: Sequence[str], weights: Weights | None, weight: float | None) -> str:
    """A sentence; the words of one without weight stay pale, as √(sentence · word) does in Yang et al. 2016.

    weights: of its words, which sum to 1.
    """
    share = 1.0 if weight is None else weight
    own = None if weights is None else weights[: len(words)].tolist()
    spans = shaded_words(words, None if own is None else [math.sqrt(share) * each for each in own], own)
    bar = "" if weight is None else f"{meter(share)}<small>{share:.3f}</small>"
    direction = ' dir="rtl"' if right_to_left(" ".join(words)) else ""
    return f"<li>{bar}<p{direction}>{spans}</p></li>\n"
