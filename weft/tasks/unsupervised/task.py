"""Translation without translated text (Lample et al. 2018): denoising and online back-translation in one model.

It is scored without references: by BLEU of round trips, and by the share of words of the right language.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from weft.config.corpus_entries import TrainingCorpus, ValidationCorpus, names
from weft.data.batch import EOS, PAD, Position, Source
from weft.data.batching import Batches
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters, make_pairs, random_pairs
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import BLANK, ExtendedTokenizer, add_tokens
from weft.data.word_noise import CorpusNoise, NoisyEncoder, WordNoise, text_of
from weft.data.word_vectors.vectors import split_words
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import make_metrics, score
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import LOSS, Loss, Measure, Share, TaskContext, TaskInfo, lower_setting, trainable
from weft.tasks.corpus_task import Direction, learn_tokenizer
from weft.tasks.seq2seq_task import Seq2SeqObjective
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.task import TranslationTask
from weft.tasks.unsupervised.data import (
    LANGUAGE_COLUMN,
    TOKENS,
    WORDS,
    Monolingual,
    Translate,
    UnpairedBatch,
    foreign_tokens,
    languages_of,
    lay_out_tokens,
    open_languages,
)
from weft.tasks.unsupervised.losses import LanguagePair, back_translations, denoising_loss, masked_word_loss, nothing
from weft.tasks.unsupervised.model import BilingualModel, DictionaryInitialization, LanguageDiscriminator, second_decoder

FOREIGN = 3.0
"""A word belongs to the other language if it is this many times as frequent there."""


class Purity:
    """Knows how frequent each word is in texts of two languages."""

    def __init__(self, texts: Sequence[Monolingual]) -> None:
        counts = [Counter(chain.from_iterable(map(split_words, text.lines()))) for text in texts]
        self.frequencies = [{word: count / each.total() for word, count in each.items()} for each in counts]

    def __call__(self, words: Sequence[str], language: int) -> float:
        """The percentage of words that are not much more frequent in the other language than in this one, 0 or 1."""
        own, foreign = self.frequencies[language], self.frequencies[1 - language]
        wrong = sum(foreign.get(word, 0.0) > FOREIGN * own.get(word, 0.0) for word in words)
        return 100 * (1 - wrong / max(1, len(words)))

    def of_texts(self, texts: Sequence[str], language: int) -> float:
        """The purity of all words of some texts."""
        return self([word for text in texts for word in split_words(text)], language)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return next(iter(score(hypotheses, references, make_metrics(["bleu"])).values())).value


pass


class UnsupervisedTask(TranslationTask):
    """Translation between two languages, of which only separate texts are known.

    One model reads and writes both languages; the first token of a target says which. It learns to restore texts from noise,
    and from their translations: word by word with a dictionary at first, then by the model itself (online back-translation).
    The best model is chosen by the way there and back and by the words of the right language, without translated text.

    drop, blank: the probability that noise drops a word or blanks it out
    shuffle: the most places by which noise moves a word
    denoising_steps: updates in which the weight of denoising falls from 1 to 0; 0: no denoising
    dictionary_steps: updates that begin with translations word by word; 0: no dictionary
    adversarial_dictionary: whether the dictionary begins with a map that is learnt against a discriminator, not with words
        that are spelt alike
    language_model_steps: updates before all others, in which the decoder learns to write texts without a source, and the
        encoder to fill in blanks; 0: none
    own_tokens: whether back-translations avoid tokens that are typical of the other language, so that the model cannot learn
        to leave words as they are
    vectors: whether the vectors of the dictionary are the first embeddings of words that are one token
    decoders: one decoder for both languages, or one for each (Artetxe et al. 2018)
    adversarial_weight: weight of the encoder's loss against a judge, with an optimiser of its own, that tells languages apart
        by the encoder's states (Lample et al. 2018); 0: no judge
    """

    example = "en=english.txt --data fr=french.txt"
    info = TaskInfo(
        commands=('weft translate {run} "a sentence"', "weft evaluate {run} --data SOURCE,TARGET --set decode.into=LANGUAGE")
    )
    supports_distillation = False
    texts: Sequence[Monolingual] = ()
    _avoided: Tensor | None = None

    def __init__(
        self,
        context: TaskContext,
        *,
        objective: Seq2SeqObjective,
        drop: Share = 0.1,
        blank: Share = 0.2,
        shuffle: NonNegativeInt = 3,
        denoising_steps: NonNegativeInt = 20_000,
        dictionary_steps: NonNegativeInt = 2_000,
        adversarial_dictionary: bool = False,
        language_model_steps: NonNegativeInt = 0,
        own_tokens: bool = False,
        vectors: bool = False,
        decoders: Literal[1, 2] = 1,
        adversarial_weight: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(context, objective=objective)
        if not self.config.data.shared_vocabulary:
            raise ConfigError("data.shared_vocabulary: one model reads and writes both languages; set it to true")
        self.info = replace(self.info, capturable=False)
        self.noise = drop, blank, shuffle
        self.denoising_steps, self.dictionary_steps = denoising_steps, dictionary_steps
        self.language_model_steps, self.own_tokens, self.vectors = language_model_steps, own_tokens, vectors
        self.decoders, self.adversarial_weight = decoders, adversarial_weight
        self.adversarial_dictionary = adversarial_dictionary
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
        both = open_languages(names(data.train), self.report)
        for text in both:
            if (count := sum(1 for _ in text.lines())) <= data.hold_out:
                raise ConfigError(
                    f"data.hold_out: {data.hold_out:,} lines of {text.name} are to be held out, which has {count:,}; lower it"
                )
        parts = [text.held_out(data.hold_out) for text in both]
        self.held, self.texts = [held for held, _ in parts], [rest for _, rest in parts]
        self.learn(list(self.texts))
        sizes = self.reopen()
        lower_setting(self, "data.vocabulary", self.target.size)
        corpus = TrainingCorpus(files=names(data.train))
        self.train = self._read(corpus, list(self.texts), "training")
        if data.hold_out:
            self.valid = self._read(corpus, list(self.held), "validation")
            self.directions = [Direction("held out", None, self.held, self.valid)]
        return sizes

    def tokenizers(self, train: list[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        own = learn_tokenizer(self.config, train, self.report)
        return add_tokens(own, own, [*languages_of(names(self.config.data.train)), BLANK], needs_tag=False)

    def reopen(self) -> Sizes:
        sizes = super().reopen()
        assert isinstance(self.source, ExtendedTokenizer)
        self.marked, self.languages = self.source, languages_of(names(self.config.data.train))
        if [mark for mark in self.marked.added if mark in self.languages] != self.languages:
            trained = " and ".join(mark for mark in self.marked.added if mark != BLANK)
            raise ConfigError(
                f"data.train: the run was trained with texts of {trained}, in this order, not with texts of "
                f"{' and '.join(self.languages)}; name the same languages in the same order"
            )
        return sizes

    @property
    def tags(self) -> Sequence[str]:
        """None: decode.into names the target language, not a tag of the source."""
        return ()

    @property
    def marks(self) -> list[int]:
        """The ids of the two languages and of the blank."""
        return [self.marked.added_id(name) for name in (*self.languages, BLANK)]

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        """The corpus of texts, pairs of a line and its language. Texts that are too long are left out.

        Columns: the tokens of each text, those of its translation word by word, both also as text, and its language's number.
        """
        tokenizer, max_length = self.marked, self.config.data.max_length
        translators, key = self.word_translations()
        filters, translate = PairFilters(max_length), cache(translators)

        def encode(pairs: Texts) -> tuple[Columns, dict[str, int]]:
            sides = [text for text, _ in pairs], [translate()(*pair) for pair in pairs]
            ids = [tokenizer.encode_batch(side) for side in sides]
            kept, reasons = filters(pairs, *ids)
            columns: Columns = {LANGUAGE_COLUMN: [[self.languages.index(pairs[row][1])] for row in kept]}
            for name, side, tokens in zip((TOKENS, WORDS), sides, ids, strict=True):
                columns[name] = [[*tokens[row], EOS] for row in kept]
                columns[text_of(name)] = [np.frombuffer(side[row].encode(), np.uint8) for row in kept]
            return columns, reasons

        kind = ids_below(tokenizer.size)
        columns = {TOKENS: kind, WORDS: kind, text_of(TOKENS): "uint8", text_of(WORDS): "uint8", LANGUAGE_COLUMN: "uint8"}
        whole = ["unpaired", tokenizer.digest(), list(self.languages), max_length, key]
        encoding = Encoding(whole, encode, columns, [TOKENS, WORDS], unit="texts")
        return encoding.prepare(pairs, folder=self.cache, progress=progress)

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> UnpairedBatch:
        """A batch for validation, always with the same noise."""
        return self._collate(corpus, rows, np.random.default_rng(0))

    def _collate(self, corpus: Corpus, rows: Rows, draw: np.random.Generator) -> UnpairedBatch:
        """The batch of some rows. draw: from which the noise follows."""
        plain, lengths = corpus.gather(TOKENS, rows)
        noisy, sources = self._noising(corpus, TOKENS, rows, plain, lengths, draw)
        words, counts = self._noising(corpus, WORDS, rows, *corpus.gather(WORDS, rows), draw)
        numbers, marks = corpus.gather(LANGUAGE_COLUMN, rows)[0].astype(np.int64), np.asarray(self.marks[:2])
        labels = np.insert(plain.astype(np.int64), lengths.cumsum() - lengths, marks[numbers])
        pairs = make_pairs(noisy.astype(np.int64), labels, np.stack([sources, lengths + 1], 1), rows)
        hidden = torch.isin(pairs.labels, torch.from_numpy(marks))
        pairs = replace(pairs, labels=pairs.labels.masked_fill(hidden, PAD))
        clean, word_by_word, other = lay_out_tokens(plain, lengths), lay_out_tokens(words, counts), marks[1 - numbers]
        return UnpairedBatch(**vars(pairs), clean=clean, words=word_by_word, other=torch.from_numpy(other))

    @cached_property
    def _noising(self) -> CorpusNoise:
        drop, blank, shuffle = self.noise
        both = WordNoise(drop, blank, shuffle), WordNoise(drop, 0.0, shuffle)
        first, second = (NoisyEncoder(self.marked, noise, blank=self.marks[2]) for noise in both)
        return CorpusNoise({TOKENS: first, WORDS: second}, self.config.data.max_length + 1)

    def batches(self, position: Position) -> Iterator[tuple[UnpairedBatch, Position]]:
        train, begin = self.config.train, position
        for rows, following in Batches(self.train.lengths, train.batch_tokens, seed=train.seed).stream(position):
            yield self._collate(self.train, rows, np.random.default_rng((train.seed, *begin))), following
            begin = following

    def describe(self) -> dict[str, Any]:
        return {"vocabulary": self.marked.size, "training texts": len(self.train)}

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> UnpairedBatch:
        pairs = random_pairs((sizes.source - 3, sizes.target - 3), (length, length), rows)
        other = torch.full((rows,), sizes.target - 2)
        clean, words = (Source(pairs.source.values.clone(), pairs.source.layout) for _ in range(2))
        return UnpairedBatch(**vars(pairs), clean=clean, words=words, other=other)

    @property
    def two(self) -> LanguagePair:
        """The ids of the two languages and of the blank."""
        first, second, blank = self.marks
        return LanguagePair(first, second, blank, self.marked.inner.size)

    @cached_property
    def words(self) -> DictionaryInitialization:
        return DictionaryInitialization(self.texts, self.languages, self.adversarial_dictionary, self.cache, self.report)

    def word_translations(self) -> tuple[Callable[[], Translate], Any]:
        """Makes what translates texts word by word, and plain data that identifies it; without a dictionary, texts stay."""
        return (self.words.translator, self.words.key) if self.dictionary_steps else (lambda: lambda text, language: text, None)

    @cached_property
    def purity(self) -> Purity:
        return Purity(self.texts)

    def losses(self, model: torch.nn.Module, batch: UnpairedBatch, update: int) -> Iterator[Loss]:  # type: ignore[override]
        """Restores texts from noise, with a weight, and from translations; only the latter are counted."""
        assert isinstance(model, BilingualModel)
        count, language = (batch.labels != PAD).sum(), self.two.of(batch)
        if update <= self.language_model_steps:
            total, nll = masked_word_loss(model, batch, self.two)
            yield Loss(total, torch.zeros_like(count), {"filled in": nll})
            total, nll = denoising_loss(model, model.encode(nothing(batch)), batch, self.two, self.smoothing)
            yield Loss(total, count, {"nll": nll})
            return
        update -= self.language_model_steps
        weight = max(0.0, 1 - (update - 1) / max(1, self.denoising_steps))
        if self.denoising_steps and weight > 0:
            yield from self._restored(model, batch, batch.source, language, "denoising", weight)
        source = batch.words
        if update > self.dictionary_steps:
            source = back_translations(self, model, batch, self.two, self._bias(model) if self.own_tokens else None)
        yield from self._restored(model, batch, source, 1 - language, "nll", count=count)

    def _bias(self, model: BilingualModel) -> Tensor:
        """[2, V]: −inf for the tokens that texts of each language avoid."""
        if self._avoided is None:
            foreign = torch.from_numpy(foreign_tokens(self.train, self.marked.size))
            self._avoided = torch.zeros(foreign.shape).masked_fill(foreign, -torch.inf).to(model.device)
        return self._avoided

    def _restored(
        self,
        model: BilingualModel,
        batch: UnpairedBatch,
        source: Source,
        language: Tensor,
        name: str,
        weight: float = 1.0,
        count: Tensor | None = None,
    ) -> Iterator[Loss]:
        """The loss of restoring the texts from sources in a language [B] and, if there is a judge of languages, its loss."""
        encoded = model.encode(source)
        total, nll = denoising_loss(model, encoded, batch, self.two, self.smoothing)
        loss = Loss(weight * total, torch.zeros_like(batch.rows.sum()) if count is None else count, {name: nll})
        if model.judge is None:
            yield loss
            return
        yield loss.plus("confused", model.confusion_loss(encoded, language), self.adversarial_weight)
        states = encoded.memory.new_tensor(encoded.memory.size(0) * encoded.memory.size(1))
        counted = states if encoded.layout is None else encoded.layout.mask.sum()
        yield Loss(model.discriminator_loss(encoded, language), counted, optimizer="judge")

    def parameters(self, model: torch.nn.Module) -> dict[str, list[torch.nn.Parameter]]:
        assert isinstance(model, BilingualModel)
        judges = [] if model.judge is None else list(model.judge.parameters())
        known = {id(parameter) for parameter in judges}
        groups = {"model": [each for each in trainable(model) if id(each) not in known], "judge": judges}
        return {name: group for name, group in groups.items() if group}

    def optimizers(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = super().build(spec, sizes)
        assert isinstance(model, Model)
        if model.copies:
            raise ConfigError(
                "model.kind: this model copies source words, but both languages have words of their own; use another"
            )
        if self.language_model_steps and not (model.encoder.aligned and model.encoder.width == model.decoder.hidden):
            raise ConfigError(
                "task.language_model_steps: the decoder's output layer cannot read the states of this encoder, which have "
                "another width; set it to 0, or choose an encoder as wide as the decoder"
            )
        if self.vectors and self.texts:
            self.words.place_vectors(model, self.marked)
        second = second_decoder(model, super().build(spec, sizes)) if self.decoders == 2 else None
        return BilingualModel(model, second, LanguageDiscriminator(model.encoder.width) if self.adversarial_weight else None)

    def ensemble(self, models: Sequence[Network]) -> Network:
        raise RunError("models of two languages cannot form an ensemble; name one run")

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Warn | None = None) -> TranslationPredictor:
        assert isinstance(model, BilingualModel)
        if resolved.config.tag:
            raise ConfigError(
                f"decode.tag: {resolved.config.tag}: the run has no tags; name the language to translate into with "
                f"--set decode.into={self.languages[0]} or {self.languages[1]}"
            )
        into = resolved.config.into or self.languages[1]
        if into not in self.languages:
            raise ConfigError(f"decode.into: {into}: the run translates between {' and '.join(self.languages)}")
        chosen = model.writes(self.languages.index(into))
        begin = [self.marked.added_id(into)]
        return TranslationPredictor(chosen, self.marked, self.marked, resolved, warn=warn, begin=begin)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The loss of denoising, BLEU of held-out texts after both directions, and how many words are of the right language."""
        if self.valid is None:
            return {}
        assert isinstance(model, Model)
        trips, pure = [], []
        for here, there in ((0, 1), (1, 0)):
            texts = list(self.held[here].lines())
            away = self.decode(model, texts, into=self.languages[there])
            back = self.decode(model, away, into=self.languages[here])
            trips.append(bleu(back, texts))
            pure.append(self.purity.of_texts(away, there))
        trip, purity = sum(trips) / 2, sum(pure) / 2
        product = sum(one * other / 100 for one, other in zip(trips, pure, strict=True)) / 2
        return {"pure_round_trip": product, "round_trip": trip, "purity": purity, "loss": self.mean_loss(model)[0]}
