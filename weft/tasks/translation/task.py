"""Translation: pairs of texts, cross-entropy with teacher forcing, scored by the loss and by metrics of decoded text.

Corpora may have tags and noise of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft.decoding.decoding_options import DecodingOptions, Warn, changed, resolve_options
from weft.decoding.shortlist import Shortlist
from weft.errors import ConfigError, DataError
from weft.evaluation.metrics import USUAL, Metric, built_in_metrics, choose_tokenization, make_metrics
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import (
    TaskContext,
    TaskInfo,
    added_metrics,
    all_metrics,
    find_measure,
    measures_of,
    text_scores,
)
from weft.tasks.corpus_task import Direction
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask
from weft.tasks.translation.data import ParallelTexts
from weft.tasks.translation.generation_request import PLAIN, translate_ids
from weft.tasks.translation.predictor import TranslationPredictor

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation


class TranslationTask(ParallelTexts, Seq2SeqTask):
    """Text to text: cross-entropy of the next target token given the true ones before it, with label smoothing."""

    example = "source.txt,target.txt"
    info = TaskInfo(commands=('weft translate {run} "a sentence"', "weft evaluate {run} --data SOURCE,TARGET"))
    supports_distillation = True
    rewards = True
    quick: Mapping[str, Any] = {**Seq2SeqTask.quick, "fusion": "none"}

    def __init__(self, context: TaskContext, *, objective: Seq2SeqObjective) -> None:
        super().__init__(context, objective=objective)
        *texts, loss = measures_of(built_in_metrics())
        self.measures = (*texts, loss) if self.config.train.validate_bleu else (loss, *texts)
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
                    self.report(chosen.note)
        self.tokenize = next(iter(self.tokenizes.values()), USUAL)
        return sizes

    def _check_tokenize(self, name: str) -> None:
        try:
            make_metrics(["bleu"], tokenize=name)
        except ConfigError as error:
            raise ConfigError(f"train.tokenize: {error}") from None

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = super().build(spec, sizes)
        assert isinstance(model, Model)
        self.check_model(model)
        return model

    def check_model(self, model: Model) -> None:
        """Raises ConfigError if the model does not suit the task."""
        if model.decoder.parallel:
            raise ConfigError("task: this model writes all tokens at once; set task: parallel_translation")
        if self.objective.unlikelihood and model.copies:
            raise ConfigError("task.unlikelihood: this model copies words of the source, which it would forbid; set it to 0")

    def predictor(self, model: Model, resolved: DecodingOptions, warn: Warn | None = None) -> TranslationPredictor:
        shortlist = self.shortlist if resolved.config.shortlist else None
        split = self.sentence_splitter()
        begin = self.target.begin(resolved.config.tag)
        return TranslationPredictor(
            model, self.source, self.target, resolved, warn=warn, shortlist=shortlist, split=split, begin=begin
        )

    def explain(self, predictor: TranslationPredictor, text: str, *, target: str | None = None, **options: Any) -> Explanation:
        from weft.tasks.translation.explanation import explain_translation  # slow to import, and not needed to translate

        count = 1 if target is not None else len(predictor.sentences(text))
        if count > 1:
            raise DataError(
                f"the text has {count} parts that are translated one by one; explain them with explain_sentences(text), or the "
                "text as a whole with sentences='off'"
            )
        explanation = explain_translation(predictor, text, target=target, **options)
        languages = self.config.data.source_language or "", self.config.data.target_language or ""
        explanation.model, explanation.languages = self.config.model["kind"], languages
        return explanation

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return make_metrics(tokenize=tokenize or self.tokenize, lowercase=lowercase)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The likely target tokens per source token, read from the run's folder."""
        return Shortlist.read(self.run, self.source.size, self.target.size, self.source.shares_ids(self.target))

    def build_shortlist(self) -> Path:
        """Counts the shortlist of the run. Writes it into its folder or, if that is read-only, into the user's cache."""
        sizes = self.prepare()
        return Shortlist.count(self.train, sizes.source, sizes.target, sizes.shared).save(self.run, self.report)

    def evaluate(self, model: Model) -> dict[str, float]:
        """The loss per token on all validation pairs; BLEU, exact match and `train.best_by` of greedy texts on some of them.

        Of several directions there are the scores of each, `bleu/de`, and their mean; the loss is that of all tokens.
        """
        results = [self._evaluate(model, direction) for direction in self.directions]
        if len(results) < 2:
            return results[0][0] if results else {}
        scores = {key: sum(each[key] for each, _ in results) / len(results) for key in results[0][0]}
        scores["loss"] = sum(each["loss"] * count for each, count in results) / sum(count for _, count in results)
        named = zip(self.directions, results, strict=True)
        return scores | {f"{key}/{one.label}": value for one, (each, _) in named for key, value in each.items()}

    def _evaluate(self, model: Model, direction: Direction) -> tuple[dict[str, float], int]:
        """The scores of one direction, and its number of tokens."""
        loss, count = self.mean_loss(model, [direction])
        scores, pairs = {"loss": loss}, self.valid_pairs[direction.label]
        if self.config.train.validate_bleu and pairs:
            keys = {"bleu", "exact", find_measure(self, self.config.train.best_by).key}
            keys |= {each.key() for each in added_metrics(self)}
            every = all_metrics(self, tokenize=self.tokenizes[direction.label])
            metrics = [metric for metric in every if metric.key() in keys]
            texts = self.decoded(model, pairs, {**self.quick, "tag": direction.tag}, together=False)
            scores |= text_scores(texts, [reference for _, reference in pairs], metrics)
        return scores, count

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[list[int]]]:
        """See `Seq2SeqTask`. Seeds come from the generator of random numbers that the trainer seeds for each micro-batch."""
        search = {"search": {"kind": "sample" if samples else "greedy"}, "n_best": max(1, samples)}
        section = changed(self.config.decode, {**PLAIN, **search, "precision": self.config.train.precision})
        seeds = torch.randint(1 << 62, (len(sources),)).tolist()
        options = resolve_options(section, model.device)
        texts = translate_ids(model, (self.source, self.target), sources, options, seeds=seeds)
        return [[text.tokens for text in some] for some in texts]
