"""Translation without translated text (Lample et al. 2018): denoising and online back-translation in one model.

It is scored without references: by BLEU of round trips, and by the share of words of the right language.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from weft.data.batch import PAD, Source
from weft.data.word_vectors.vectors import split_words
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import make_metrics
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import (
    LOSS,
    SAMPLES,
    Loss,
    Measure,
    Sample,
    Share,
    TaskContext,
    TaskInfo,
    decoded_texts,
    text_scores,
    trainable,
)
from weft.tasks.seq2seq_task import Seq2SeqObjective
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.task import TranslationTask
from weft.tasks.unsupervised.data import Monolingual, Translate, UnpairedBatch, UnpairedTexts, foreign_tokens
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


class UnsupervisedTask(UnpairedTexts, TranslationTask):
    """Translation between two languages, of which only separate texts are known.

    One model reads and writes both languages; the first token of a target says which. It learns to restore texts from noise,
    and from their translations: word by word with a dictionary at first, then by the model itself (online back-translation).
    The best model is chosen by the way there and back and by the words of the right language, without translated text.

    drop, blank: the probability that noise drops a word or blanks it out
    shuffle: the most places by which noise moves a word
    denoising_steps: updates in which the weight of denoising falls from 1 to 0; 0: no denoising
    dictionary_steps: updates that begin with translations word by word; 0: no dictionary
    phrase_rounds: rounds of back-translation by phrases, whose translations take the place of those word by word (Lample et
        al. 2018b); 0: no phrases
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
        phrase_rounds: NonNegativeInt = 0,
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
        self.adversarial_dictionary, self.phrase_rounds = adversarial_dictionary, phrase_rounds
        if phrase_rounds and not dictionary_steps:
            raise ConfigError("task.phrase_rounds: no update reads translations by phrases; set task.dictionary_steps above 0")
        self.measures = (
            Measure("pure_round_trip", "round trip × purity"),
            Measure("round_trip", "BLEU of the round trip"),
            Measure("purity", "words of the right language (%)"),
            LOSS,
        )

    @property
    def two(self) -> LanguagePair:
        """The ids of the two languages and of the blank."""
        first, second, blank = self.marks
        return LanguagePair(first, second, blank, self.marked.inner.size)

    @cached_property
    def words(self) -> DictionaryInitialization:
        return DictionaryInitialization(
            self.texts, self.languages, self.adversarial_dictionary, self.cache, self.report, self.phrase_rounds
        )

    def first_translations(self) -> tuple[Callable[[], Translate], Any]:
        """Those of phrases or of the dictionary, if there is one."""
        return (self.words.translator, self.words.translator_key) if self.dictionary_steps else super().first_translations()

    @cached_property
    def purity(self) -> Purity:
        return Purity(self.texts)

    def losses(self, model: BilingualModel, batch: UnpairedBatch, update: int) -> Iterator[Loss]:  # type: ignore[override]
        """Restores texts from noise, with a weight, and from translations; only the latter are counted."""
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

    def parameters(self, model: BilingualModel) -> dict[str, list[torch.nn.Parameter]]:
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

    def predictor(self, model: Model, resolved: DecodingOptions, warn: Warn | None = None) -> TranslationPredictor:
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

    def evaluate(self, model: Model) -> dict[str, float]:
        """The loss of denoising, BLEU of held-out texts after both directions, and how many words are of the right language."""
        if self.valid is None:
            return {}
        trips, pure, self._samples = [], [], []
        for here, there in ((0, 1), (1, 0)):
            texts = list(self.held[here].lines())
            away = self.translated(model, texts, there)
            back = self.translated(model, away, here)
            self._samples += [Sample(text, "", written) for text, written in list(zip(texts, away))[: SAMPLES // 2]]
            trips.append(text_scores(back, texts, make_metrics(["bleu"]))["bleu"])
            pure.append(self.purity.of_texts(away, there))
        trip, purity = sum(trips) / 2, sum(pure) / 2
        product = sum(one * other / 100 for one, other in zip(trips, pure, strict=True)) / 2
        return {"pure_round_trip": product, "round_trip": trip, "purity": purity, "loss": self.mean_loss(model)[0]}

    def translated(self, model: Model, texts: Sequence[str], language: int) -> list[str]:
        """The translations of some texts into one of the languages, 0 or 1."""
        return decoded_texts(self, model, texts, {**self.quick, "into": self.languages[language]})
