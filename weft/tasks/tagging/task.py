"""Tagging: a tag for each word, by a softmax or a CRF; scored by accuracy, or for entities by F1."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt
from torch import Tensor

from weft.data.batch import NO_LABEL, TagBatch
from weft.data.corpus import Corpus, Encoding, Rows
from weft.data.formats import Pairs
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import Metric, score
from weft.models.base import Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext, TaskInfo
from weft.tasks.classification.data import Labels
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.tagging.data import (
    TAGS,
    WORDS,
    Lexicon,
    TaggedEncoding,
    Vocabulary,
    join_tags,
    make_tagged,
    random_tagged,
    spaced_words,
    tagged_format,
    with_edges,
)
from weft.tasks.tagging.metrics import (
    EntityF1,
    EntityPrecision,
    EntityRecall,
    Scheme,
    TagAccuracy,
    UnknownAccuracy,
    split_tags,
    tags_of,
    types_of,
)
from weft.tasks.tagging.model import Output, PerWord, Tagger, build_tagger
from weft.tasks.tagging.predictor import Tagged, TaggingPredictor, tagging_page

SHOWN = 10
"""The most tags that a message lists."""
ACCURACIES = (Measure("accuracy", "accuracy"), Measure("unknown_accuracy", "accuracy on unknown words"))
FLOORS = {"accuracy", "unknown_accuracy", "f1"}
"""The scores of a simple baseline that are shown."""
SHARES = (Measure("f1", "F1 of entities"), Measure("precision", "precision"), Measure("recall", "recall"))


class TaggingTask(CorpusTask):
    """A tag for each word: an encoder and a linear layer. Data has a word, a tab and a tag per line, and a blank line between
    sentences.

    per_word: front: a front makes a vector of each word, and the encoder reads words; first, mean: the encoder reads the
        subwords of all words, and a word is its first subword, or the mean of its subwords
    output: softmax, or crf, which also scores which tags follow each other (Lafferty et al. 2001)
    entities: none: tags are plain; iob2, bioes: they mark entities, which the model tags in this scheme. Data may be in IOB1,
        IOB2 or BIOES, and predictions are in IOB2. A crf never gives tags that the scheme forbids
    least_count: words that occur less often have no embedding of their own
    lowercase: words have one embedding for all their capitalisations
    label_smoothing: share of the probability that is spread evenly over the tags; softmax only
    dropout: share of a word's vector that is dropped
    graph: the data has a third column with the numbers of each word's neighbours, which graph attention (gat) follows
    """

    example = "sentences.tsv (a word, a tab and a tag per line, a blank line between sentences)"
    info = TaskInfo(
        commands=("weft predict {run} sentences.txt", "weft evaluate {run} --data FILE.tsv"),
        count_unit="words",
        inference_kind="forward",
    )
    sentences = (0,)
    tokenized = 0

    def __init__(
        self,
        context: TaskContext,
        *,
        per_word: PerWord = "front",
        output: Output = "softmax",
        entities: Literal["none", "iob2", "bioes"] = "none",
        least_count: PositiveInt = 2,
        lowercase: bool = True,
        label_smoothing: Share = 0.0,
        dropout: Share = 0.3,
        graph: bool = False,
    ) -> None:
        super().__init__(context)
        self.per_word, self.output, self.smoothing, self.dropout = per_word, output, label_smoothing, dropout
        self.scheme: Scheme | None = None if entities == "none" else entities
        most = self.config.data.vocabulary if per_word == "front" else 0  # otherwise words have no embeddings
        self.vocabulary = Vocabulary(least_count, lowercase, most)
        self.measures = (*ACCURACIES, LOSS) if self.scheme is None else (*SHARES, *ACCURACIES, LOSS)
        self.tags: list[str] = []
        self.data_format = tagged_format("iob2" if self.scheme else None, graph)
        self.graph = graph
        if graph and per_word != "front":
            raise ConfigError("task.graph: edges are between words, and this model reads subwords; set task.per_word: front")

    def learn(self, train: list[Pairs]) -> None:
        """Collects the tags and counts the words as well."""
        if self.new:
            self._collect(train)
        super().learn(spaced_words(train))

    @property
    def output_names(self) -> Sequence[str]:
        return self.tags

    def _collect(self, train: list[Pairs]) -> None:
        """Saves the tags and the words of the training data with their counts."""
        tags = Counter(tag for _, text in chain.from_iterable(train) for tag in split_tags(text)[1])
        if len(tags) < 2:
            names = ", ".join(some.name for some in train)
            raise DataError(f"{names}: there is only the tag {next(iter(tags), '')!r}, and a tagger needs at least two.")
        if self.scheme is None and all(tag == "O" or tag[:2] in ("B-", "I-", "E-", "S-") for tag in tags):
            self.report(
                "warning: the tags look like entities; set task.entities: bioes (or iob2) to train and score them as such"
            )
        labels = Labels(tags_of(types_of(tags), self.scheme) if self.scheme else tags)
        self.report(f"{len(labels):,} tags")
        Lexicon.count((text for _, text in chain.from_iterable(train)), self.vocabulary).save(self.run / WORDS)
        labels.save(self.run / TAGS)

    def reopen(self) -> Sizes:
        super().reopen()
        self.lexicon, labels = Lexicon.load(self.run / WORDS, self.vocabulary), Labels.load(self.run / TAGS)
        longest, self.tags = self.config.data.max_length, labels.names
        self.reader = TaggedEncoding(
            self.source, self.lexicon, labels, self.per_word == "front", longest, self.scheme, self.graph
        )
        return self._sizes(self.lexicon.size, self.source.size)

    def placeholder_sizes(self) -> Sizes:
        return self._sizes(8, 8)

    def _sizes(self, words: int, subwords: int) -> Sizes:
        return Sizes(words, reads="words", pieces=subwords) if self.per_word == "front" else Sizes(subwords)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return build_tagger(spec, sizes, self.tags, self.per_word, self.output, self.scheme, self.dropout, graph=self.graph)

    def remarks(self, pairs: Pairs) -> Iterator[str]:
        """The tags that training does not have, and the scores of the most frequent tag of each word."""
        texts = [text for _, text in pairs]
        tags = Counter(tag for text in texts for tag in split_tags(text)[1])
        known = set(tags_of(types_of(self.tags), "iob2") if self.scheme else self.tags)
        unseen = {tag: count for tag, count in tags.items() if tag not in known}
        if unseen:
            shown = ", ".join(map(repr, islice(sorted(unseen), SHOWN))) + (", …" if len(unseen) > SHOWN else "")
            yield (
                f"warning: {pairs.name}: {sum(unseen.values()):,} words have a tag that does not occur in training, so they "
                f"count as wrong: {shown}"
            )
        scores = ", ".join(f"{name} {value:.1f}" for name, value in self.floor(texts).items())
        yield f"{pairs.name}: the most frequent tag of each word would have: {scores}"

    def floor(self, texts: Sequence[str]) -> dict[str, float]:
        """Scores of a baseline on tagged sentences, the most frequent tag of each word, by the names of metrics."""
        guesses = [join_tags(words, map(self.lexicon.guess, words)) for words, _ in map(split_tags, texts)]
        results = score(guesses, texts, self.metrics()).values()
        return {each.name: each.value for each in results if each.key in FLOORS}

    def encoding(self, *, training: bool) -> Encoding:
        return self.reader.encoding(drop_duplicates=self.config.data.drop_duplicates and training)

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> TagBatch:
        rows = np.asarray(rows, dtype=np.int64)
        words, lengths = corpus.gather("word", rows)
        subwords, sizes, tags = (corpus.gather(name, rows)[0] for name in ("piece", "size", "tag"))
        sizes, whole = sizes.astype(np.int64), self.reader.whole
        batch = make_tagged(words, subwords, sizes, tags, lengths, rows, whole=whole, budget=budget, rounded=rounded)
        return with_edges(batch, *corpus.gather("edges", rows)) if self.graph else batch

    def losses(self, model: Tagger, batch: TagBatch, update: int) -> Iterator[Loss]:
        scores, real = model(batch.source, batch.words, batch.starts), batch.labels != NO_LABEL
        yield Loss(model.loss(scores, batch.labels, self.smoothing), real.sum())

    def validation_loss(self, model: Tagger, batch: TagBatch) -> tuple[Tensor, Tensor]:
        """The loss of words, without those of sentences that are too long or have unknown tags."""
        return model.loss(model(batch.source, batch.words, batch.starts), batch.labels), batch.words.mask.sum()

    @cached_property
    def decoded_examples(self) -> list[tuple[str, str]]:
        """All sentences."""
        return list(chain.from_iterable(self.references))

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        plain: list[Metric] = [TagAccuracy(), UnknownAccuracy(self.lexicon.counts)]
        return plain if self.scheme is None else [EntityF1(), EntityPrecision(), EntityRecall(), *plain]

    def predictor(self, model: Tagger, resolved: DecodingOptions, warn: Warn | None = None) -> TaggingPredictor:
        return TaggingPredictor(model, self.reader, resolved, warn)

    def explanation(self, predictor: TaggingPredictor, prediction: Tagged, text: str) -> str:
        return tagging_page(prediction, sequence=predictor.model.chain is not None)

    def describe(self) -> dict[str, Any]:
        return {"words": len(self.lexicon.counts), "tags": len(self.tags), **super().describe()}

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> TagBatch:
        batch = random_tagged(length, rows, sizes.source, sizes.pieces, whole=self.per_word == "front", rounded=rounded)
        return with_edges(batch, [], [0] * rows) if self.graph else batch
