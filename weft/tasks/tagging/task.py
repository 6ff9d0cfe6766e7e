"""Tagging: a tag for each word, by a softmax or a CRF; scored by accuracy, or for entities by F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn

from weft.data.batch import NO_LABEL, TagBatch
from weft.data.corpus import Corpus, Rows
from weft.data.data_format import DataFormat
from weft.data.formats import MappedPairs, Pairs
from weft.data.tokenizers import RESERVED, has_tokenizers
from weft.data.tokenizers.added_tokens import load_extended, save_extended
from weft.errors import DataError
from weft.evaluation.metrics import Metric, score
from weft.explain.html_parts import meter, notes
from weft.inference.decoding_options import DecodingOptions, resolve_options
from weft.models.base import Network, Sizes
from weft.models.composition import build_encoder
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext
from weft.tasks.classification.data import SHOWN, Labels
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.tagging.crf import AllowedTransitions, LinearChainCrf
from weft.tasks.tagging.data import (
    Change,
    Lexicon,
    TaggedEncoding,
    Vocabulary,
    collate_tagged,
    join_tags,
    make_tagged,
    open_tagged,
    prepare_tagged,
    split_tags,
    split_words,
    tagged_inputs,
)
from weft.tasks.tagging.metrics import (
    EntityF1,
    EntityPrecision,
    EntityRecall,
    Scheme,
    TagAccuracy,
    UnknownAccuracy,
    convert,
    may_end,
    may_follow,
    may_start,
    split_tag,
    tags_of,
)
from weft.tasks.tagging.model import PerWord, Tagger
from weft.tasks.tagging.predictor import Tagged, TaggingPredictor
from weft.tasks.tokenizer_setup import learn_tokenizer

TAGS, WORDS = "tags.json", "words.json"
ACCURACIES = (Measure("accuracy", "accuracy"), Measure("unknown_accuracy", "accuracy on unknown words"))
FLOORS = {"accuracy", "unknown_accuracy", "f1"}
"""The scores of a simple baseline that are shown."""
SHARES = (Measure("f1", "F1 of entities"), Measure("precision", "precision"), Measure("recall", "recall"))


class TaggingTask(CorpusTask):
    """A tag for each word: an encoder and a linear layer. Data has a word, a tab and a tag per line, and a blank line between
    sentences.

    per_word: front: a front makes a vector of each word, and the encoder reads words; first, mean: the encoder reads the pieces
        of all words, and a word is its first piece, or the mean of its pieces
    output: softmax, or crf, which also scores which tags follow each other (Lafferty et al. 2001)
    entities: none: tags are plain; iob2, bioes: they mark entities, which the model tags in this scheme. Data may be in IOB1,
        IOB2 or BIOES, and predictions are in IOB2. A crf never gives tags that the scheme forbids
    least_count: words that occur less often have no embedding of their own
    lowercase: words have one embedding for all their capitalisations
    label_smoothing: share of the probability that is spread evenly over the tags; softmax only
    dropout: share of a word's vector that is dropped
    """

    example = "sentences.tsv (a word, a tab and a tag per line, a blank line between sentences)"
    commands = ("weft predict {run} sentences.txt", "weft evaluate {run} --data FILE.tsv")
    sentences = (0,)
    count_unit = "words"
    inference_kind = "forward"

    def __init__(
        self,
        context: TaskContext,
        *,
        per_word: PerWord = "front",
        output: Literal["softmax", "crf"] = "softmax",
        entities: Literal["none", "iob2", "bioes"] = "none",
        least_count: PositiveInt = 2,
        lowercase: bool = True,
        label_smoothing: Share = 0.0,
        dropout: Share = 0.3,
    ) -> None:
        super().__init__(context)
        self.per_word, self.output, self.smoothing, self.dropout = per_word, output, label_smoothing, dropout
        self.scheme: Scheme | None = None if entities == "none" else entities
        most = self.config.data.vocabulary if per_word == "front" else 0  # otherwise words have no embeddings
        self.vocabulary = Vocabulary(least_count, lowercase, most)
        self.measures = (*ACCURACIES, LOSS) if self.scheme is None else (*SHARES, *ACCURACIES, LOSS)
        self.labels = Labels()
        self.data_format = DataFormat(partial(open_tagged, change=self._change("iob2")), tagged_inputs)

    def _change(self, scheme: Scheme | None) -> Change:
        """How tags are rewritten in a scheme; not at all if they mark no entities."""
        return list if self.scheme is None or scheme is None else partial(convert, scheme=scheme)

    def learn(self, train: list[Pairs]) -> None:
        """Collects the tags and counts the words as well."""
        if has_tokenizers(self.run) and all((self.run / name).exists() for name in (TAGS, WORDS)):
            return
        tags = Counter(tag for _, text in chain.from_iterable(train) for tag in split_tags(text)[1])
        names = ", ".join(some.name for some in train)
        if len(tags) < 2:
            raise DataError(f"{names}: there is only the tag {next(iter(tags), '')!r}, and a tagger needs at least two.")
        if self.scheme is None and all(tag == "O" or tag[:2] in ("B-", "I-", "E-", "S-") for tag in tags):
            self.report(
                "warning: the tags look like entities; set task.entities: bioes (or iob2) to train and score them as such"
            )
        labels = Labels(tags_of(_types(tags), self.scheme) if self.scheme else tags)
        self.report(f"{len(labels):,} tags")
        spaced = [MappedPairs(some, lambda words, tags: (" ".join(split_words(words)), tags), "spaced") for some in train]
        tokenizer = learn_tokenizer(self.config, spaced, self.report)
        save_extended(self.run, tokenizer, tokenizer)
        Lexicon.count((text for _, text in chain.from_iterable(train)), self.vocabulary).save(self.run / WORDS)
        labels.save(self.run / TAGS)

    def reopen(self) -> Sizes:
        self.source, _ = load_extended(self.run, self.config.data.tokenizer)
        self.labels = Labels.load(self.run / TAGS)
        self.lexicon = Lexicon.load(self.run / WORDS, self.vocabulary)
        self.reading = TaggedEncoding(self.source, self.lexicon, self.per_word == "front")
        return self._sizes(self.lexicon.size, self.source.size)

    def placeholder_sizes(self) -> Sizes:
        return self._sizes(8, 8)

    def _sizes(self, words: int, pieces: int) -> Sizes:
        return Sizes(words, reads="words", pieces=pieces) if self.per_word == "front" else Sizes(pieces)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        count = max(1, len(self.labels))
        allowed = allowed_moves(self.labels.names, self.scheme) if self.scheme and len(self.labels) else None
        transitions = LinearChainCrf(count, allowed) if self.output == "crf" else None
        return Tagger(build_encoder(spec, sizes), count, self.per_word, transitions, self.dropout)

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), *self.labels.names, *self.lexicon.ids]

    def check(self, valid: list[Pairs]) -> None:
        for pairs in valid:
            self._remark(pairs, self.report)

    def examples(self, data: Sequence[str], report: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        for pairs in map(self.data_format.open, data):
            self._remark(pairs, report)
        return super().examples(data, report)

    def _remark(self, pairs: Pairs, report: Callable[[str], None]) -> None:
        """Tells which tags training does not have, and how good the most frequent tag of each word is."""
        texts = [text for _, text in pairs]
        tags = Counter(tag for text in texts for tag in split_tags(text)[1])
        known = set(tags_of(_types(self.labels.names), "iob2") if self.scheme else self.labels.names)
        unseen = {tag: count for tag, count in tags.items() if tag not in known}
        if unseen:
            shown = ", ".join(map(repr, islice(sorted(unseen), SHOWN))) + (", …" if len(unseen) > SHOWN else "")
            report(
                f"warning: {pairs.name}: {sum(unseen.values()):,} words have a tag that does not occur in training, so they "
                f"count as wrong: {shown}"
            )
        scores = ", ".join(f"{name} {value:.1f}" for name, value in self.floor(texts).items())
        report(f"{pairs.name}: the most frequent tag of each word would have: {scores}")

    def floor(self, texts: Sequence[str]) -> dict[str, float]:
        """Scores of a baseline on tagged sentences, the most frequent tag of each word, by the names of metrics."""
        guesses = [join_tags(words, map(self.lexicon.guess, words)) for words, _ in map(split_tags, texts)]
        found = score(guesses, texts, self.metrics()).values()
        return {each.name: each.value for each in found if each.key in FLOORS}

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        data = self.config.data
        return prepare_tagged(
            pairs,
            self.reading,
            self.labels,
            self._change(self.scheme),
            key=self.scheme or "none",
            folder=folder,
            max_length=data.max_length,
            drop_duplicates=data.drop_duplicates and training,
            progress=progress,
        )

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> TagBatch:
        return collate_tagged(corpus, rows, whole=self.reading.whole, budget=budget, rounded=rounded)

    def losses(self, model: nn.Module, batch: TagBatch, update: int) -> Iterator[Loss]:
        assert isinstance(model, Tagger)
        scores, real = model(batch.source, batch.words, batch.starts), batch.labels != NO_LABEL
        yield Loss(model.loss(scores, batch.labels, self.smoothing), real.sum())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The loss per word, without sentences that are too long or have unknown tags; the other scores are those of all."""
        if self.valid is None:
            return {}
        assert isinstance(model, Tagger)
        total, count = 0.0, 0
        for batch in self.validation(model):
            total += float(model.loss(model(batch.source, batch.words, batch.starts), batch.labels))
            count += int(batch.words.ok.sum())
        predictor = self.predictor(model, resolve_options(self.config.decode, model.device))
        pairs = list(chain.from_iterable(self.references))
        texts = [
            found.text for found in predictor.predict((predictor.parse_input(source) for source, _ in pairs), together=True)
        ]
        found = score(texts, [target for _, target in pairs], self.metrics())
        return {"loss": total / max(1, count), **{each.key: each.value for each in found.values()}}

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        plain: list[Metric] = [TagAccuracy(), UnknownAccuracy(self.lexicon.counts)]
        return plain if self.scheme is None else [EntityF1(), EntityPrecision(), EntityRecall(), *plain]

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> TaggingPredictor:
        assert isinstance(model, Tagger)
        change = self._change("iob2" if self.scheme == "bioes" else None)
        longest = self.config.data.max_length
        return TaggingPredictor(model, self.reading, self.labels, resolved, change=change, longest=longest, warn=warn)

    def explanation(self, predictor: TaggingPredictor, prediction: Tagged, text: str) -> str:
        """Each word with its tag and the probability that its own scores give to this tag."""
        rows = "".join(
            f"<tr><td>{escape(word)}</td><td>{escape(tag)}</td><td>{share:.3f}</td><td>{meter(share)}</td></tr>"
            for word, tag, share in zip(prediction.words, prediction.tags, prediction.probabilities, strict=True)
        )
        note = "Probabilities are those of a word by itself; the tags are the best sequence."
        return f"<table>{rows}</table>\n{notes([note] if predictor.model.chain else [])}"

    def describe(self) -> dict[str, Any]:
        facts = {"words": len(self.lexicon.counts), "tags": len(self.labels), "training sentences": len(self.train)}
        return facts | ({} if self.valid is None else {"validation sentences": len(self.valid)})

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> TagBatch:
        """Random words of one piece with the first tag."""
        count, draw = rows * length, np.random.default_rng(length)
        words = draw.integers(RESERVED, max(RESERVED + 1, sizes.source), count)
        pieces = draw.integers(RESERVED, max(RESERVED + 1, sizes.pieces), count) if sizes.pieces else words
        ones, tags, lengths = np.ones(count, np.int64), np.zeros(count, np.int64), np.full(rows, length)
        return make_tagged(words, pieces, ones, tags, lengths, whole=self.per_word == "front", budget=count, rounded=rounded)


def _types(tags: Iterable[str]) -> set[str]:
    """The types of entities in tags."""
    return {split_tag(tag)[1] for tag in tags} - {""}


def allowed_moves(names: Sequence[str], scheme: Scheme) -> AllowedTransitions:
    """Which of these tags may begin, follow and end in a scheme."""
    moves = [[may_follow(before, after, scheme) for after in names] for before in names]
    return AllowedTransitions(
        torch.tensor([may_start(name) for name in names]),
        torch.tensor(moves),
        torch.tensor([may_end(name, scheme) for name in names]),
    )
