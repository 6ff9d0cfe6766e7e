"""The predictor of pairs: two texts to a label or a number, and the explanation of the choice."""

from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import Source
from weft.data.formats import Fields
from weft.decoding.predictor import TextInput
from weft.explain.html_page import notes, weight_table
from weft.tasks.classification.data import Labels
from weft.tasks.classification.predictor import (
    ClassificationPredictor,
    Label,
    TextPart,
    joined,
    probability_table,
    weighted_sentences,
)
from weft.tasks.pairs.data import FIELDS, Numbers
from weft.tasks.pairs.model import BETWEEN
from weft.tasks.two_texts import TwoTextReader, read_two_texts, two_sources


class PairPredictor(ClassificationPredictor):
    """A model of two texts. An input has both with a tab between them; a blank line has no output.

    For a number, `Label.text` and `Label.score` are the number. columns: the names of both texts in JSON.
    """

    columns: ClassVar[Fields] = FIELDS
    several_texts = True
    reader: TwoTextReader
    labels: Labels | Numbers  # type: ignore[assignment]

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> TextInput:
        return super().parse_input(read_two_texts(line, self.columns), attention=attention, **fields)

    def lay_out(self, parts: Sequence[TextPart]) -> Sequence[Source]:
        return two_sources(*joined(parts))

    def give(self, logits: Tensor, tokens: list[str]) -> Label:
        if isinstance(self.labels, Labels):
            return super().give(logits, tokens)
        value = self.labels.value(logits[0].item())
        return Label(self.labels.join([value]), value, source_tokens=tokens)

    def add_attention(self, label: Label, part: TextPart) -> None:
        """Adds the weights between the texts, as "first" and "second"; those of poolings; and those of attentions inside."""
        with record(self.model) as recorded:
            output = self.classify(*self.lay_out([part]))
        if self.reads_stream:  # otherwise an attention is recorded once for each text
            label.attention, label.uses = first_row(self.model, recorded)
        for name, weights in output.between.items():
            each = np.asarray(weights[:1].float().cpu())
            label.attention[name] = each if name in BETWEEN else each[0]

    @property
    def reads_stream(self) -> bool:
        """Whether the model reads both texts in one stream. An ensemble shows no attention."""
        comparison = getattr(self.model, "comparison", None)
        return comparison is not None and comparison.streams == 1


def comparison_page(label: Label) -> str:
    """The probabilities of labels, and what the words of each text look at: those of the other, or all of one stream."""
    shown = [] if not label.probabilities else [probability_table(label)]
    first, second = [*label.sentences, [], []][:2]
    titles = ("the first text looks at the second", "the second text looks at the first")
    for name, rows, columns, title in zip(BETWEEN, (first, second), (second, first), titles, strict=True):
        if name in label.attention:
            shown.append(weight_table(rows, columns, label.attention[name][0], title))
    stream = [*first, *second]
    layers = [name for name, weights in label.attention.items() if weights.shape[-2:] == (len(stream),) * 2]
    for number, name in enumerate(layers, start=1):
        shown.append(weight_table(stream, stream, label.attention[name].mean(0), f"layer {number}, the mean of all heads"))
    for name, text in zip(BETWEEN, (first, second), strict=True):
        if (weights := label.attention.get(f"pooling.{name}")) is not None:
            pooled = Label("", 0.0, source_tokens=text, attention={"pooling": weights[None]})
            shown.append(weighted_sentences(pooled))
    if len(shown) <= bool(label.probabilities):
        shown.append(notes(["this comparison has no attention weights"]))
        shown += [f"<p>{escape(' '.join(text))}</p>\n" for text in (first, second)]
    return "".join(shown)
