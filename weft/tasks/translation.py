"""Translation: pairs of texts, cross-entropy with teacher forcing, scored by the loss and by metrics of decoded text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from weft.access import why_unwritable
from weft.batch import PairBatch
from weft.config.registry import Among, build, load
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.pairs import collate_pairs, prepare_pairs
from weft.data.sentences import Counted, Splitter, count_sentences, language_of
from weft.data.tokenizer import has_tokenizers, load_tokenizers, save_tokenizers, train_tokenizers
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import METRICS, Chrf, Metric, make_metrics, score
from weft.evaluation.tokenization import USUAL, choose_tokenization
from weft.inference.resolve import Resolved, changed, resolve
from weft.inference.shortlist import FILE, Shortlist, cached_file
from weft.inference.translation import TranslationPredictor
from weft.models import MODELS
from weft.models.base import Model, Network, Sizes
from weft.models.ensemble import Ensemble
from weft.objectives.attention_penalties import Penalties
from weft.objectives.likelihoods import log_likelihoods
from weft.objectives.reinforce import Baseline, MovingBaseline, Reinforce
from weft.objectives.rewards import RewardObjective
from weft.objectives.scheduled_sampling import Sampling
from weft.tasks.base import LOSS, Loss, Measure, Setting, Share
from weft.tasks.rewarding import Rewarding
from weft.tasks.text import TextTask

CHRF = Chrf.key()
"""`train.best_by` may call it chrf, as `weft evaluate` does."""


class TranslationTask(TextTask):
    """Text to text: cross-entropy of the next target token given the true ones before it, with label smoothing.

    label_smoothing: share of the probability that is spread evenly over the vocabulary
    reinforce_weight: weight of REINFORCE for attention that samples (hard)
    reinforce_discount: discount of the reward per later token; 1: all count in full, without bias; less: biased, but less noisy
    reinforce_baseline: the reward that is expected: that of other samples, or a moving average (Xu et al. 2015)
    entropy_weight: reward for the entropy of such an attention, per nat
    draws: samples per sentence and step; from 2 on, the other samples of a sentence are its baseline
    guided_weight: penalty on attention away from the diagonal (Tachibana et al. 2017)
    guided_width: width of the diagonal that costs little, as a share of the sentence
    coverage_weight: penalty on attending to the same source token again (See et al. 2017)
    doubly_stochastic_weight: penalty on source tokens whose total attention is not one (Xu et al. 2015)
    penalty_layers: the cross-attentions that these penalties apply to; 0: the first, −1: the last
    sampling: what the decoder is fed in training: the true tokens, or some of its own predictions
    reward: learn from a score of whole texts that the model writes, instead of or beside cross-entropy
    """

    example = "source.txt,target.txt"

    def __init__(
        self,
        setting: Setting,
        *,
        label_smoothing: Share = 0.1,
        reinforce_weight: NonNegativeFloat = 1.0,
        reinforce_discount: Annotated[float, Field(ge=0, le=1)] = 0.5,
        entropy_weight: NonNegativeFloat = 0.01,
        reinforce_baseline: Baseline = "samples",
        draws: PositiveInt = 1,
        guided_weight: NonNegativeFloat = 0.0,
        guided_width: PositiveFloat = 0.2,
        coverage_weight: NonNegativeFloat = 0.0,
        doubly_stochastic_weight: NonNegativeFloat = 0.0,
        penalty_layers: Annotated[list[int], Field(min_length=1)] = [-1],  # noqa: B006
        sampling: Annotated[dict[str, Any], Among("weft.objectives:SAMPLINGS")] = {"kind": "none"},  # noqa: B006
        reward: Annotated[dict[str, Any], Among("weft.objectives:REWARD_OBJECTIVES")] = {"kind": "none"},  # noqa: B006
    ) -> None:
        super().__init__(setting)
        texts = [Measure(metric.key(), metric.name, metric.higher_is_better) for metric in METRICS.values()]
        self.measures = (*texts, LOSS) if self.config.train.validate_bleu else (LOSS, *texts)
        self.smoothing = label_smoothing
        self.reinforce = Reinforce(reinforce_weight, entropy_weight, reinforce_discount, draws, reinforce_baseline)
        self._moving = MovingBaseline("baseline") if reinforce_baseline == "moving" else None
        weights = {"guided": guided_weight, "coverage": coverage_weight, "doubly_stochastic": doubly_stochastic_weight}
        self.penalties = Penalties(weights, guided_width, penalty_layers)
        self.sampling: Sampling = build("weft.objectives:SAMPLINGS", sampling)
        objective: RewardObjective | None = build("weft.objectives:REWARD_OBJECTIVES", reward, where="task.reward")
        self.rewarding = None if objective is None else Rewarding(self, objective)
        # Attention weights of a packed row would cover every pair of its sentences.
        self.steady = self.sampling.steady and not any(weights.values()) and objective is None
        self.valid_pairs: list[tuple[str, str]] = []
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
        self.valid_pairs = list(islice(chain.from_iterable(self.references), options.validate_sentences or None))
        if options.validate_bleu and self.valid_pairs:
            references = [target for _, target in self.valid_pairs]
            chosen = choose_tokenization(options.tokenize, self.config.data.target_language, references)
            self.tokenize = chosen.name
            if chosen.note:
                self.tell(chosen.note)
        return sizes

    def _check_tokenize(self, name: str) -> None:
        try:
            make_metrics(["bleu"], tokenize=name)
        except ConfigError as error:
            raise ConfigError(f"train.tokenize: {error}") from None

    def measure(self, key: str) -> Measure:
        return super().measure(CHRF if key == "chrf" else key)

    def reopen(self) -> Sizes:
        self.source, self.target = load_tokenizers(self.run, self.config.data.tokenizer)
        return Sizes(self.source.size, self.target.size, self.source is self.target)

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
    def source_language(self) -> str | None:
        """The source language, if the configuration or the suffix of the data files tells."""
        return language_of(self.config.data.source_language, self.config.data.train)

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

    def losses(self, model: torch.nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        """One loss for each way of feeding the batch. A sentence counts once, however often it is sampled and fed."""
        assert isinstance(model, Model)
        teacher = self.rewarding.objective.teacher_weight if self.rewarding else 1.0
        if teacher:
            drawn = self.reinforce.repeat(model, batch)
            inputs = self.sampling.inputs(model, drawn, update)
            for fed in inputs:
                loss = self._objective(model, drawn, fed, times=self.reinforce.draws * len(inputs))
                yield loss if teacher == 1 else replace(loss, total=teacher * loss.total)
        if self.rewarding:
            loss = self.rewarding.loss(model, batch)
            yield replace(loss, count=torch.zeros_like(loss.count)) if teacher else loss

    def _baselines(self) -> list[MovingBaseline]:
        return [each for each in (self._moving, self.rewarding and self.rewarding.baseline) if each]

    def carried(self) -> dict[str, Tensor]:
        return {name: tensor for each in self._baselines() for name, tensor in each.carried().items()}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        for each in self._baselines():
            each.carry(tensors)

    def _objective(self, model: Model, batch: PairBatch, fed: Tensor, times: int) -> Loss:
        """The loss if the decoder is fed `fed`, with everything added to it, divided by `times`."""
        with self.penalties.watching(model) as watched:
            found = model(batch.source, fed, batch.target_layout)
        total, nll = model.decoder.loss(found.hidden, batch.labels, self.smoothing)
        ok, metrics = batch.target_layout.ok, {"nll": nll}
        if "log_prob" in found.extras:
            with torch.no_grad():
                gained = log_likelihoods(model.decoder, found.hidden, batch.labels)
            terms = found.extras["log_prob"], found.extras["entropy"]
            total = total + self.reinforce.loss(gained, *terms, ok, self._moving.on(gained.device) if self._moving else None)
            if self._moving:
                self._moving.move(gained, ok)
            metrics["entropy"] = found.extras["entropy"].detach().where(ok, 0.0).sum()
        for name, value in self.penalties.sums(watched, batch).items():
            total = total + self.penalties.weights[name] * value
            metrics[name] = value.detach()
        if not self.sampling.steady:
            metrics["true_inputs"] = ((fed == batch.target) & ok).sum()
        return Loss(total / times, ok.sum() / times, {name: value / times for name, value in metrics.items()})

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        """The loss per token on all validation pairs; BLEU, exact match and `train.best_by` of greedy texts on some of them."""
        if self.valid is None:
            return {}
        assert isinstance(model, Model)
        total, count = 0.0, 0
        for batch in self.validation(model):
            found = model(batch.source, batch.target, batch.target_layout)
            nll = model.decoder.loss(found.hidden, batch.labels)[1]
            total, count = total + float(nll), count + int(batch.target_layout.ok.sum())
        scores = {"loss": total / max(1, count)}
        if self.config.train.validate_bleu and self.valid_pairs:
            hypotheses = self.translations(model)
            references = [target for _, target in self.valid_pairs]
            keys = {"bleu", "exact", self.measure(self.config.train.best_by).key}
            results = score(hypotheses, references, [metric for metric in self.metrics() if metric.key() in keys])
            scores |= {each.key: each.value for each in results.values()}
        return scores

    def translations(self, model: torch.nn.Module) -> list[str]:
        """Greedy translations of the validation text."""
        assert isinstance(model, Network)
        section = changed(self.config.decode, {"search": "greedy", "rerank": "none", "n_best": 1})
        predictor = self.predictor(model, resolve(section, model.device))
        inputs = (predictor.parse(source) for source, _ in self.valid_pairs)
        return [found.text for found in predictor.predict(inputs)]

    def describe(self) -> dict[str, Any]:
        sizes = {"source vocabulary": self.source.size, "target vocabulary": self.target.size}
        facts = {**sizes, "training pairs": len(self.train)}
        return facts | ({} if self.valid is None else {"validation pairs": len(self.valid)})

    def learn(self, train: list[Pairs]) -> None:
        data, shared = self.config.data, self.config.data.shared_vocabulary
        if not has_tokenizers(self.run):
            self.tell_tokenizer()
            tokenizers = train_tokenizers(
                data.tokenizer, train, size=data.vocabulary, shared=shared, folder=self.cache, start=self.start
            )
            save_tokenizers(self.run, *tokenizers)
            target = language_of(data.target_language, data.train, 1)
            count_sentences(train, self.source_language, target).save(self.run)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        data = self.config.data
        return prepare_pairs(
            pairs,
            self.source,
            self.target,
            folder=folder,
            max_length=data.max_length,
            max_ratio=data.max_ratio if training else None,
            drop_duplicates=data.drop_duplicates and training,
            copying=load(MODELS, self.config.model["kind"]).copies,
            progress=progress,
        )
