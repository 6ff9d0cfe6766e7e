"""Translation without translated text (Lample et al. 2018): denoising and online back-translation in one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeInt
from torch import Tensor

from weft.batch import BOS, EOS, PAD, Layout, Position, Source
from weft.config.corpora import TrainingCorpus, ValidationCorpus, names
from weft.data.batching import Batches
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.marks import BLANK, MarkedTokenizer, add_marks, save_marked
from weft.data.monolingual import languages_of, open_languages
from weft.data.noise import Noiser, Noising, WordNoise
from weft.data.pairs import random_pairs
from weft.data.tokenizer import has_tokenizers, train_tokenizer
from weft.data.unpaired import TOKENS, WORDS, Translate, UnpairedBatch, collate_unpaired, prepare_unpaired
from weft.dictionaries.dictionary import Dictionary, learn_dictionary
from weft.dictionaries.vectors import split_words
from weft.errors import ConfigError
from weft.evaluation.metrics import make_metrics, score
from weft.inference.predictor import pad
from weft.inference.resolve import Resolved, changed, resolve
from weft.inference.two_languages import TwoLanguagePredictor
from weft.models.base import Model, Network, Sizes
from weft.search.choosers import Greedy, Limits
from weft.search.loop import generate
from weft.tasks.base import LOSS, Loss, Measure, Setting, Share
from weft.tasks.text import Direction
from weft.tasks.translation import TranslationTask
from weft.tasks.writing import Objective

LONGER = 1.5
"""A back-translation may have this many tokens per token of the text, plus 5."""
FOREIGN = 3.0
"""A word belongs to the other language if it is this many times as frequent there."""


class UnsupervisedTask(TranslationTask):
    """Translation between two languages, of which only separate texts are known.

    One model reads and writes both languages; the first token of a target says which. It learns to restore texts from noise,
    and from their translations: word by word with a dictionary at first, then by the model itself (online back-translation).
    The best model is chosen by the way there and back and by the words of the right language, without translated text.

    drop, blank: the probability that noise drops a word or blanks it out
    shuffle: the most places by which noise moves a word
    denoising_steps: updates in which the weight of denoising falls from 1 to 0; 0: no denoising
    dictionary_steps: updates that begin with translations word by word; 0: no dictionary
    """

    example = "en=english.txt --data fr=french.txt"
    commands = ('weft translate {run} "a sentence"', "weft evaluate {run} --data SOURCE,TARGET --set decode.into=LANGUAGE")
    distils = False

    def __init__(
        self,
        setting: Setting,
        *,
        objective: Objective,
        drop: Share = 0.1,
        blank: Share = 0.2,
        shuffle: NonNegativeInt = 3,
        denoising_steps: NonNegativeInt = 20_000,
        dictionary_steps: NonNegativeInt = 2_000,
    ) -> None:
        super().__init__(setting, objective=objective)
        if not self.config.data.shared_vocabulary:
            raise ConfigError("data.shared_vocabulary: one model reads and writes both languages; set it to true")
        self.steady = False
        self.noise = WordNoise(drop, blank, shuffle), WordNoise(drop, 0.0, shuffle)
        self.denoising_steps, self.dictionary_steps = denoising_steps, dictionary_steps
        self.measures = (
            Measure("pure_round_trip", "round trip × purity"),
            Measure("round_trip", "BLEU of the round trip"),
            Measure("purity", "words of the right language (%)"),
            LOSS,
        )

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError(f"there is no training data: give --data {self.example}, or set data.train")
        if data.valid:
            raise ConfigError("data.valid: this task validates without translated text, on data.hold_out lines; remove it")
        if not all(isinstance(spec, str) for spec in data.train):
            raise ConfigError("data.train: the task unsupervised reads en=FILE and fr=FILE; name files without braces")
        both = open_languages(names(data.train), self.tell)
        parts = [text.held_out(data.hold_out) for text in both]
        self.held, self.texts = [held for held, _ in parts], [rest for _, rest in parts]
        self.learn(list(self.texts))
        sizes = self.reopen()
        self.limit("data.vocabulary", self.target.size)
        corpus = TrainingCorpus(files=names(data.train))
        self.train = self._read(corpus, list(self.texts), "training")
        if data.hold_out:
            self.valid = self._read(corpus, list(self.held), "validation")
            self.directions = [Direction("held out", None, self.held, self.valid)]
        return sizes

    def learn(self, train: list[Pairs]) -> None:
        data = self.config.data
        if not has_tokenizers(self.run):
            self.tell_tokenizer()
            own = train_tokenizer(data.tokenizer, train, size=data.vocabulary, folder=self.cache, start=self.start)
            save_marked(self.run, *add_marks(own, own, [*languages_of(names(data.train)), BLANK], needs_tag=False))

    def reopen(self) -> Sizes:
        sizes = super().reopen()
        assert isinstance(self.source, MarkedTokenizer)
        self.marked, self.languages = self.source, languages_of(names(self.config.data.train))
        return sizes

    @property
    def tags(self) -> Sequence[str]:
        """None: decode.into names the target language, not a tag of the source."""
        return ()

    @property
    def marks(self) -> list[int]:
        """The ids of the two languages."""
        return [self.marked.mark(language) for language in self.languages]

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        most = self.config.data.max_length
        key = [text.digest() for text in self.texts] if self.dictionary_steps else None
        return prepare_unpaired(
            pairs,
            self.marked,
            self.languages,
            self._dictionaries,
            key=key,
            folder=self.cache,
            max_length=most,
            progress=progress,
        )

    def _dictionaries(self) -> Translate:
        """Translates word by word with dictionaries of the training texts; without dictionaries, texts stay as they are."""
        if not self.dictionary_steps:
            return lambda text, language: text
        known = dict(zip(self.languages, self._learnt, strict=True))
        return lambda text, language: known[language].translate(text)

    @cached_property
    def _learnt(self) -> tuple[Dictionary, Dictionary]:
        self.tell("learning dictionaries of both directions")
        first, second = self.texts
        return learn_dictionary(first.lines(), second.lines())

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> UnpairedBatch:
        """A batch for validation, always with the same noise."""
        return self._collate(corpus, rows, np.random.default_rng(0))

    def _collate(self, corpus: Corpus, rows: Rows, draw: np.random.Generator) -> UnpairedBatch:
        first, second = (Noiser(self.marked, noise, blank=self.marked.mark(BLANK)) for noise in self.noise)
        noising = Noising({TOKENS: first, WORDS: second}, self.config.data.max_length + 1)
        return collate_unpaired(corpus, rows, noising, self.marks, draw)

    def batches(self, position: Position) -> Iterator[tuple[UnpairedBatch, Position]]:
        train, begin = self.config.train, position
        for rows, following in Batches(self.train.lengths, train.batch_tokens, seed=train.seed).stream(position):
            yield self._collate(self.train, rows, np.random.default_rng((train.seed, *begin))), following
            begin = following

    def losses(self, model: torch.nn.Module, batch: UnpairedBatch, update: int) -> Iterator[Loss]:  # type: ignore[override]
        """Restores texts from noise, with a weight, and from translations; only the latter are counted."""
        assert isinstance(model, Model)
        count, weight = (batch.labels != PAD).sum(), max(0.0, 1 - (update - 1) / max(1, self.denoising_steps))
        if self.denoising_steps and weight > 0:
            total, nll = self._restored(model, batch.source, batch)
            yield Loss(weight * total, torch.zeros_like(count), {"denoising": nll})
        source = batch.words if update <= self.dictionary_steps else self.back_translations(model, batch)
        total, nll = self._restored(model, source, batch)
        yield Loss(total, count, {"nll": nll})

    def _restored(self, model: Model, source: Source, batch: UnpairedBatch) -> tuple[Tensor, Tensor]:
        found = model(source, batch.target, batch.target_layout)
        return model.decoder.loss(found.hidden, batch.labels, self.smoothing)

    @torch.no_grad()
    def back_translations(self, model: Model, batch: UnpairedBatch) -> Source:
        """Greedy translations of the texts into the other language, without dropout; no gradient passes through them."""
        training = model.training
        model.eval()
        layout, other = batch.clean.layout, batch.other
        assert layout is not None
        longest = (layout.lengths.to(other.device) * LONGER).long() + 5
        limits = Limits(longest.clamp_max(self.config.data.max_length), torch.ones_like(longest), batch.rows)
        first = torch.stack([torch.full_like(other, BOS), other], 1)
        found, _ = generate(model.decoder, model.encode(batch.clean), Greedy(), first=first, limits=limits, best=1)
        model.train(training)
        own = range(EOS + 1, self.marked.inner.size)
        texts = [[*(token for token in best.tokens if token in own), EOS] for best, *_ in found]
        return Source(pad(texts), Layout.padded([len(text) for text in texts])).to(other.device)

    def predictor(self, model: Network, resolved: Resolved, warn: Callable[[str], None] | None = None) -> TwoLanguagePredictor:
        assert isinstance(model, Model)
        into = resolved.section.into or self.languages[1]
        if into not in self.languages:
            raise ConfigError(f"decode.into: {into}: the run translates between {' and '.join(self.languages)}")
        return TwoLanguagePredictor(model, self.marked, resolved, self.marked.mark(into), warn)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The loss of denoising, BLEU of held-out texts after both directions, and how many words are of the right language."""
        if self.valid is None:
            return {}
        assert isinstance(model, Model)
        trips, pure = [], []
        for here, there in ((0, 1), (1, 0)):
            texts = list(self.held[here].lines())
            away = self._translated(model, texts, self.languages[there])
            back = self._translated(model, away, self.languages[here])
            trips.append(next(iter(score(back, texts, make_metrics(["bleu"])).values())).value)
            pure.append(self.purity(away, there))
        trip, purity = sum(trips) / 2, sum(pure) / 2
        product = sum(one * other / 100 for one, other in zip(trips, pure, strict=True)) / 2
        return {"pure_round_trip": product, "round_trip": trip, "purity": purity, "loss": self.mean_loss(model)[0]}

    def _translated(self, model: Model, texts: Sequence[str], into: str) -> list[str]:
        section = changed(self.config.decode, {**self.quick, "into": into})
        predictor = self.predictor(model, resolve(section, model.device))
        return [found.text for found in predictor.predict(map(predictor.parse, texts), together=True)]

    def purity(self, texts: Sequence[str], language: int) -> float:
        """The percentage of words that are not much more frequent in the other language than in this one."""
        own, foreign = self._frequencies[language], self._frequencies[1 - language]
        words = [word for text in texts for word in split_words(text)]
        wrong = sum(foreign.get(word, 0.0) > FOREIGN * own.get(word, 0.0) for word in words)
        return 100 * (1 - wrong / max(1, len(words)))

    @cached_property
    def _frequencies(self) -> list[dict[str, float]]:
        """How frequent each word is in the texts of each language."""
        counts = [Counter(word for line in text.lines() for word in split_words(line)) for text in self.texts]
        return [{word: count / each.total() for word, count in each.items()} for each in counts]

    def describe(self) -> dict[str, Any]:
        return {"vocabulary": self.marked.size, "training texts": len(self.train)}

    def made_up(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> UnpairedBatch:
        pairs = random_pairs((sizes.source - 3, sizes.target - 3), (length, length), rows)
        other = torch.full((rows,), sizes.target - 2)
        clean, words = (Source(pairs.source.values.clone(), pairs.source.layout) for _ in range(2))
        return UnpairedBatch(pairs.rows, pairs.source, pairs.target, pairs.target_layout, pairs.labels, clean, words, other)
