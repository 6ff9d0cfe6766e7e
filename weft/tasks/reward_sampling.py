"""Draws texts from a model in training, rewards them, and computes the loss of the reward.

Shapes: G sources · K texts of each source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.config.registry import build
from weft.data.batch import EOS, PairBatch
from weft.data.sentence_pairs import make_pairs
from weft.decoding.constraints import FORBIDDEN
from weft.errors import ConfigError
from weft.evaluation.rewards import Reward
from weft.inference.decoding_options import changed, resolve_options
from weft.losses.hard_attention_reinforce import MovingBaseline
from weft.losses.log_likelihood import log_likelihoods
from weft.losses.sequence_rewards import RewardObjective, SampledTexts
from weft.models.base import Model
from weft.tasks.base import Loss
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.segmenter import TextSegment, Translation

if TYPE_CHECKING:
    from weft.tasks.seq2seq_task import Seq2SeqTask

PLAIN: dict[str, Any] = {"rerank": "none", "fusion": "none", "shortlist": 0, "min_length": 0, "no_repeat_ngram": 0}
"""Settings of `decode` under which drawn texts have the probabilities that the model gives them."""


@dataclass(eq=False)
class SampledSegment(TextSegment):
    """A piece that has its own name for sampling, a number, so that each update draws other texts of a source."""

    name: int = 0

    @property
    def seed(self) -> int:
        return self.name


class RewardSampler:
    """The reward of a translation task."""

    def __init__(self, task: Seq2SeqTask, objective: RewardObjective) -> None:
        if task.config.train.packed is True:
            raise ConfigError("task.reward: texts cannot be drawn for packed rows; set train.packed: false")
        if not (objective.weight or objective.teacher_weight):
            raise ConfigError(
                "task.reward: weight and teacher_weight are both 0, so there is nothing to learn; raise one of them"
            )
        self.task, self.objective = task, objective
        self.reward: Reward = build("weft.evaluation:REWARDS", objective.metric, where="task.reward.metric")
        self.baseline = MovingBaseline("reward") if objective.moving else None

    def loss(self, model: Model, batch: PairBatch) -> Loss:
        """The loss of a micro-batch: the mean over its sentences, times its target tokens, which it is divided by later."""
        if model.copies:
            raise ConfigError("task.reward: models that copy source words (model.kind: pointer) are not supported")
        sources, references = _rows(batch.source.values, batch.source.layout), _rows(batch.labels, batch.target_layout)
        with without_dropout(model):
            texts = self.draw(model, sources, self.objective.samples)
            greedy = self.draw(model, sources, 0) if self.objective.compares else []
            if self.objective.with_reference:
                written = [self._decoded(reference) for reference in references]
                texts = [[*each, one] for each, one in zip(texts, written, strict=True)]
            log_prob = self._log_probabilities(model, sources, texts)
            rewards = self._rewards([*map(list.__add__, texts, greedy)] if greedy else texts, references, sources)
            reward = torch.tensor(rewards, dtype=log_prob.dtype, device=log_prob.device)
        return self._sum(log_prob, reward, texts, references)

    def _sum(self, log_prob: Tensor, reward: Tensor, texts: list[list[Translation]], references: list[list[int]]) -> Loss:
        first = torch.tensor([[each.ids not in [one.ids for one in row[:k]] for k, each in enumerate(row)] for row in texts])
        mine, greedy = reward[:, : log_prob.size(1)], reward[:, -1] if self.objective.compares else None
        drawn = SampledTexts(log_prob, mine, first.to(log_prob.device), greedy)
        loss = self.objective.loss(drawn, self.baseline.on(log_prob.device) if self.baseline else None).mean()
        samples = mine[:, : self.objective.samples]
        if self.baseline:
            self.baseline.move(samples, torch.ones_like(samples, dtype=torch.bool))
        count = torch.tensor(sum(map(len, references)), device=log_prob.device)
        lengths = sum(len(each.ids) for row in texts for each in row[: self.objective.samples]) / self.objective.samples
        metrics = {"reward": samples.mean() * count, "drawn_length": torch.tensor(float(lengths), device=count.device)}
        return Loss(self.objective.weight * loss * count, count, metrics)

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[Translation]]:
        """`samples` texts of each source or, if it is 0, the greedy one.

        The numbers that name the draws come from the generator that the trainer seeds for each micro-batch.
        """
        config = self.task.config
        search: dict[str, Any] = {"search": {"kind": "sample"} if samples else {"kind": "greedy"}, "n_best": max(1, samples)}
        tag = next(iter(self.task.source.added), None)  # any, because the sources have their tags
        section = changed(config.decode, {**PLAIN, **search, "tag": tag, "precision": config.train.precision})
        predictor = self.task.predictor(model, resolve_options(section, model.device))
        assert isinstance(predictor, TranslationPredictor)
        names = torch.randint(1 << 62, (len(sources),)).tolist()
        pieces = [SampledSegment(ids, [], name=name) for ids, name in zip(sources, names, strict=True)]
        return predictor.search(list[TextSegment](pieces))[0]

    def _decoded(self, ids: list[int]) -> Translation:
        return Translation(self.task.target.decode([token for token in ids if token != EOS]), 0.0, ids)

    def _log_probabilities(self, model: Model, sources: Sequence[list[int]], texts: list[list[Translation]]) -> Tensor:
        """[G, K], with gradient."""
        pairs = [(source, each.ids) for source, row in zip(sources, texts, strict=True) for each in row]
        lengths = np.array([[len(source), len(ids)] for source, ids in pairs])
        source, labels = (np.concatenate([np.array(pair[side]) for pair in pairs]) for side in (0, 1))
        batch = make_pairs(source, labels, lengths).to(model.device)
        found = model(batch.source, batch.target, batch.target_layout)
        return log_likelihoods(model.decoder, found.hidden, batch.labels, FORBIDDEN).sum(1).view(len(texts), -1)

    def _rewards(
        self, texts: list[list[Translation]], references: list[list[int]], sources: Sequence[list[int]]
    ) -> list[list[float]]:
        true = [self._decoded(reference).text for reference in references]
        read = [self.task.source.decode([token for token in source if token != EOS]) for source in sources]
        flat = [(each.text, *pair) for row, pair in zip(texts, zip(true, read), strict=True) for each in row]
        found = iter(self._checked(self.reward(*map(list, zip(*flat))), len(flat)))
        return [[next(found) for _ in row] for row in texts]

    def _checked(self, rewards: Any, count: int) -> list[float]:
        """The rewards as numbers. A function of another package may return anything."""
        try:
            found = [float(each) for each in rewards]
        except (TypeError, ValueError):
            found = []
        if len(found) != count or not np.isfinite(found).all():
            raise ConfigError(
                f"task.reward.metric: {self.objective.metric['kind']} has to return a finite number for each of {count} texts; "
                f"it returned {str(rewards)[:80]}"
            )
        return found


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside this context the model is in evaluation mode, except recurrent layers: cuDNN has no backward pass there."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, _ in modes:
        if isinstance(module, nn.RNNBase):
            module.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _rows(values: Tensor, layout: Any) -> list[list[int]]:
    """The tokens of each row, without padding."""
    lengths = [values.size(1)] * values.size(0) if layout is None else layout.lengths.tolist()
    return [row[:length] for row, length in zip(values.tolist(), lengths, strict=True)]
