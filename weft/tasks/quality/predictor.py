"""The predictor of quality: a source and a translation to a score, and to the confidence in each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import TextInput, json_number
from weft.decoding.search_loop import Cancellation
from weft.explain.html_page import meter, notes
from weft.models.base import Network
from weft.tasks.classification.predictor import Label, TextPart
from weft.tasks.pairs.data import Numbers
from weft.tasks.pairs.predictor import PairPredictor, comparison_page
from weft.tasks.quality.calibration import Calibration
from weft.tasks.quality.data import INPUT, Output, QualityReader, join_label, pad_spans
from weft.tasks.quality.labels import BAD, OK
from weft.tasks.quality.model import QualityOutput
from weft.tasks.translation.attention_alignment import CharacterCounter, units
from weft.tasks.two_texts import split_texts


@dataclass(frozen=True)
class WordQuality:
    """A word of a translation, where it begins and ends in it, and whether it is right.

    probability: of OK, as the model has it · confidence: the same, calibrated · tag: OK or BAD.
    """

    text: str
    start: int
    end: int
    probability: float
    confidence: float
    tag: str

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        place = {"text": self.text, "start": self.start, "end": self.end}
        return {**place, "confidence": json_number(self.confidence, 4), "tag": self.tag}


@dataclass
class Quality(Label):
    """The quality of a translation: `score` is the estimated one, and `text` the label as data has it.

    confidence: from 0 to 1, the score that such translations have on calibration data, in hundredths · words: of the
    translation, if the model tags them.
    """

    confidence: float = 0.0
    words: list[WordQuality] = field(default_factory=list, repr=False)

    def document(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "text": self.text,
            "score": json_number(self.score, 4),
            "confidence": json_number(self.confidence, 4),
        }
        return plain | ({"words": [word.document() for word in self.words]} if self.words else {})


@dataclass(eq=False)
class QualityPart(TextPart):
    """spans: the tokens of each word of the translation."""

    spans: list[tuple[int, int]] = field(default_factory=list, kw_only=True)


class QualityPredictor(PairPredictor):
    """A model of the quality of translations. An input has a source and its translation with a tab between them.

    run: the folder with its calibration, if it has one.
    """

    columns = INPUT
    reader: QualityReader
    labels: Numbers

    def __init__(
        self,
        model: Network,
        reader: QualityReader,
        labels: Numbers,
        options: DecodingOptions,
        output: Output,
        *,
        run: Path,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(model, reader, labels, options, warn=warn)  # type: ignore[arg-type]
        self.output, self.calibration, self.counter = output, Calibration.load(run), CharacterCounter(reader.target)

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[TextPart]]:
        found: list[list[TextPart]] = []
        for given, parts in zip(inputs, super().encode_input(inputs, first_line), strict=True):
            translation = split_texts(given.text)[1]
            spans = [self.reader.spans(self.counter, self.reader.target.encode(translation), translation) for _ in parts]
            found.append([QualityPart(part.ids, sizes=part.sizes, spans=each) for part, each in zip(parts, spans, strict=True)])
        return found

    def lay_out(self, parts: Sequence[TextPart]) -> Sequence[Any]:
        spans = [part.spans for part in parts if isinstance(part, QualityPart)]
        return [*super().lay_out(parts), pad_spans([span for each in spans for span in each], [len(each) for each in spans])]

    def run(self, parts: list[TextPart], control: Cancellation | None = None) -> list[Any]:
        """The number that the model gives to each part, and the probabilities that its words are OK."""
        output: QualityOutput = self.classify(*self.lay_out(parts))  # type: ignore[assignment]
        words = [[]] * len(parts) if output.words is None else output.words.float().sigmoid().tolist()
        return list(zip(output.number.float().tolist(), words, strict=True))

    def join_outputs(self, given: TextInput, parts: list[TextPart], results: list[Any]) -> Quality:
        if not results:
            return Quality("", 0.0)
        number, likely = results[0]
        translation = split_texts(given.text)[1]
        score, spans = self.labels.value(number), units(translation)[: len(likely)]
        sure = self.calibration.of_words(likely[: len(spans)])
        words = [
            WordQuality(
                translation[start:end], start, end, share, confidence, OK if share >= self.calibration.threshold else BAD
            )
            for (start, end), share, confidence in zip(spans, likely, sure, strict=False)
        ]
        text = join_label("" if self.output == "tags" else f"{score:.2f}", [word.tag for word in words])
        quality = Quality(text, score, confidence=self.calibration.of_score(score), words=words)
        ids, first = parts[0].ids, parts[0].sizes[0]
        tokens = (each.tokens(side) for each, side in zip(self.reader.tokenizers, (ids[:first], ids[first:]), strict=True))
        quality.sentences = [*tokens]
        quality.source_tokens = [token for side in quality.sentences for token in side]
        if given.attention:
            self.add_attention(quality, parts[0])
        return quality


def quality_page(quality: Quality) -> str:
    """The confidence in a translation and in each of its words, and the attention between both texts."""
    summary = f"<p>estimated score {quality.score:.1f}, confidence {quality.confidence:.2f} {meter(quality.confidence)}</p>\n"
    if not quality.words:
        return summary + comparison_page(quality)
    rows = "".join(
        f"<tr><td>{escape(word.text)}</td><td>{word.tag}</td><td>{word.confidence:.2f}</td><td>{meter(word.confidence)}</td></tr>"
        for word in quality.words
    )
    between = comparison_page(quality) if quality.attention else notes(["this estimator has no attention between the texts"])
    return f"{summary}<table>{rows}</table>\n{between}"
