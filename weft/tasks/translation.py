"""Translation: pairs of texts, cross-entropy with teacher forcing, scored by the loss and by metrics of decoded text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from weft.access import why_unwritable
from weft.batch import PairBatch
from weft.config.corpora import TrainingCorpus, ValidationCorpus
from weft.config.registry import load
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.marks import load_marked, save_marked
from weft.data.noise import Noising
from weft.data.pairs import collate_pairs, prepare_pairs
from weft.data.sentences import Counted, Splitter, count_sentences, language_of
from weft.data.tokenizer import has_tokenizers, train_tokenizers
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import METRICS, Chrf, Metric, make_metrics, score
from weft.evaluation.tokenization import USUAL, choose_tokenization
from weft.inference.resolve import Resolved, changed, resolve
from weft.inference.shortlist import FILE, Shortlist, cached_file
from weft.inference.translation import TranslationPredictor
from weft.models import MODELS
from weft.models.base import Model, Network, Sizes
from weft.models.composing import build_encoder_decoder
from weft.models.ensemble import Ensemble
from weft.tasks.base import LOSS, Measure, Setting
from weft.tasks.corpora import make_noising, part_options, with_marks
from weft.tasks.text import Direction
from weft.tasks.tokenizers import tokenizers_of
from weft.tasks.writing import Objective, WritingTask

CHRF = Chrf.key()
"""`train.best_by` may call it chrf, as `weft evaluate` does."""


class TranslationTask(WritingTask):
    """Text to text: cross-entropy of the next target token given the true ones before it, with label smoothing."""

    example = "source.txt,target.txt"
    distils = True
    rewards = True

    def __init__(self, setting: Setting, *, objective: Objective) -> None:
        super().__init__(setting, objective=objective)
        texts = [Measure(metric.key(), metric.name, metric.higher_is_better) for metric in METRICS.values()]
        self.measures = (*texts, LOSS) if self.config.train.validate_bleu else (LOSS, *texts)
        self.quick: dict[str, Any] = {"search": "greedy", "rerank": "none", "n_best": 1, "fusion": "none"}
        self.valid_pairs: dict[str, list[tuple[str, str]]] = {}
        self.tokenizes: dict[str, str] = {}
        self.tokenize = USUAL

    def prepare(self) -> Sizes:
        options = self.config.train
        if self.config.data.validates and options.best_by != "loss" and not options.validate_bleu:
            raise ConfigError(
                f"train.best_by: {options.best_by} is not measured with train.validate_bleu: false; "
                "set best_by: loss, or validate_bleu: true"
            )
        if options.tokenize != "auto":
            self._check_tokenize(options.tokenize)
        sizes = super().prepare()
        for direction in self.directions:
            pairs = list(islice(chain.from_iterable(direction.pairs), options.validate_sentences or None))
            self.valid_pairs[direction.label] = pairs
            if options.validate_bleu and pairs:
                references = [target for _, target in pairs]
                chosen = choose_tokenization(options.tokenize, self.config.data.target_language, references)
                self.tokenizes[direction.label] = chosen.name
                if chosen.note:
                    self.tell(chosen.note)
        self.tokenize = next(iter(self.tokenizes.values()), USUAL)
        return sizes

    def _check_tokenize(self, name: str) -> None:
        try:
            make_metrics(["bleu"], tokenize=name)
        except ConfigError as error:
            raise ConfigError(f"train.tokenize: {error}") from None

    def measure(self, key: str) -> Measure:
        return super().measure(CHRF if key == "chrf" else key)

    def reopen(self) -> Sizes:
        self.source, self.target = load_marked(self.run, self.config.data.tokenizer)
        return Sizes(self.source.size, self.target.size, self.source is self.target)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = build_encoder_decoder(spec, sizes)
        if model.decoder.parallel:
            raise ConfigError("task: this model writes all tokens at once; set task: parallel_translation")
        if self.unlikelihood and model.copies:
            raise ConfigError("task.unlikelihood: this model copies words of the source, which it would forbid; set it to 0")
        return model

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), self.target.digest()]

    def join(self, models: Sequence[Network]) -> Network:
        parts = [model for model in models if isinstance(model, Model)]
        if len({model.copies for model in parts}) > 1:
            raise RunError(
                "an ensemble needs runs that all copy source words (model.kind: pointer), or runs of which none does"
            )
        return Ensemble(parts)

    def predictor(self, model: Network, resolved: Resolved, warn: Callable[[str], None] | None = None) -> TranslationPredictor:
        assert isinstance(model, Model)
        shortlist = self.shortlist if resolved.section.shortlist else None
        split = Splitter(self.source_language, Counted.load(self.run).usual, warn or (lambda message: None))
        return TranslationPredictor(model, self.source, self.target, resolved, warn=warn, shortlist=shortlist, split=split)

    @property
    def tags(self) -> Sequence[str]:
        return self.source.marks

    @property
    def source_language(self) -> str | None:
        """The source language, if the configuration or the suffix of the data files tells."""
        return language_of(self.config.data.source_language, self.config.data.files)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return make_metrics(tokenize=tokenize or self.tokenize, lowercase=lowercase)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The likely target tokens per source token, read from the run's folder."""
        return Shortlist.read(self.run, self.source.size, self.target.size, self.source is self.target)

    def count_shortlist(self) -> Path:
        out = self.run / FILE
        if problem := why_unwritable(self.run):
            out = cached_file(self.run)
            self.tell(f"{self.run}: {problem}. The shortlist is kept in your cache, where weft finds it")
        sizes = self.prepare()
        return Shortlist.count(self.train, sizes.source, sizes.target, sizes.shared).write(out)

    def collate(self, corpus: Corpus, rows: Rows, **layout: Any) -> PairBatch:
        return collate_pairs(corpus, rows, **layout)

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The loss per token on all validation pairs; BLEU, exact match and `train.best_by` of greedy texts on some of them.

        Of several directions there are the scores of each, `bleu/de`, and their mean; the loss is that of all tokens.
        """
        assert isinstance(model, Model)
        found = [self._evaluate(model, direction) for direction in self.directions]
        if len(found) < 2:
            return found[0][0] if found else {}
        scores = {key: sum(each[key] for each, _ in found) / len(found) for key in found[0][0]}
        scores["loss"] = sum(each["loss"] * count for each, count in found) / sum(count for _, count in found)
        named = zip(self.directions, found, strict=True)
        return scores | {f"{key}/{one.label}": value for one, (each, _) in named for key, value in each.items()}

    def _evaluate(self, model: Model, direction: Direction) -> tuple[dict[str, float], int]:
        """The scores of one direction, and its number of tokens."""
        loss, count = self.mean_loss(model, [direction])
        scores, pairs = {"loss": loss}, self.valid_pairs[direction.label]
        if self.config.train.validate_bleu and pairs:
            hypotheses = self.translations(model, [source for source, _ in pairs], direction.tag)
            keys = {"bleu", "exact", self.measure(self.config.train.best_by).key}
            metrics = [metric for metric in self.metrics(tokenize=self.tokenizes[direction.label]) if metric.key() in keys]
            results = score(hypotheses, [target for _, target in pairs], metrics)
            scores |= {each.key: each.value for each in results.values()}
        return scores, count

    def translations(self, model: torch.nn.Module, sources: Sequence[str], tag: str | None = None) -> list[str]:
        """Translations of validation text, by `quick` decoding."""
        assert isinstance(model, Network)
        section = changed(self.config.decode, {**self.quick, "tag": tag})
        predictor = self.predictor(model, resolve(section, model.device))
        return [found.text for found in predictor.predict(map(predictor.parse, sources))]

    def describe(self) -> dict[str, Any]:
        sizes = {"source vocabulary": self.source.size, "target vocabulary": self.target.size}
        facts = {**sizes, "training pairs": len(self.train)}
        return facts | ({} if self.valid is None else {"validation pairs": len(self.valid)})

    def learn(self, train: list[Pairs]) -> None:
        data, shared = self.config.data, self.config.data.shared_vocabulary
        if not has_tokenizers(self.run):
            if data.tokenizer_of:
                self.config, source, target = tokenizers_of(self.config)
            else:
                self.tell_tokenizer()
                source, target = train_tokenizers(
                    data.tokenizer, train, size=data.vocabulary, shared=shared, folder=self.cache, start=self.start
                )
            save_marked(self.run, *with_marks(data, source, target))
            language = language_of(data.target_language, data.files, 1)
            count_sentences(train, self.source_language, language).save(self.run)

    def encode_part(self, part: ValidationCorpus, pairs: list[Pairs], progress: Callable[[int], None]) -> Corpus:
        chosen = part_options(part, self.config.data, self.source)
        return prepare_pairs(
            pairs, self.source, self.target, folder=self.cache, copying=self._copies, progress=progress, **chosen
        )

    @property
    def _copies(self) -> bool:
        return bool(load(MODELS, self.config.model["kind"]).copies)

    def noising(self, corpus: TrainingCorpus) -> Noising | None:
        found = make_noising(corpus, self.source, self.target, self.config.data.max_length)
        if found and self._copies:
            raise ConfigError("data.train: a model that copies source words (model.kind: pointer) cannot read noise; remove it")
        return found
