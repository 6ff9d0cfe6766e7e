"""Tasks that write a text for a source of any kind, with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, ClassVar

from torch import Tensor, nn

from weft.data.batch import PairBatch
from weft.data.formats import Pairs
from weft.data.tokenizers import Tokenizer
from weft.errors import ConfigError, RunError
from weft.evaluation.metrics import Metric, score
from weft.inference.decoding_options import changed, resolve_options
from weft.models.base import Model, Network, Sizes
from weft.models.wrapped_decoders import Ensemble
from weft.tasks.base import Loss, TaskContext
from weft.tasks.corpus_task import CorpusTask, Direction
from weft.tasks.seq2seq_objective import Seq2SeqLoss, Seq2SeqObjective
from weft.tasks.tokenizer_setup import learn_tokenizer


class Seq2SeqTask(CorpusTask):
    """A task whose models are an encoder and a decoder that writes the target token by token.

    rewards: whether it can learn from rewards of texts that the model writes.
    quick: settings of decode with which validation inputs are decoded.
    """

    rewards: ClassVar[bool] = False
    quick: Mapping[str, Any] = {"search": "greedy", "rerank": "none", "n_best": 1}

    def __init__(self, context: TaskContext, *, objective: Seq2SeqObjective) -> None:
        super().__init__(context)
        self.objective, self.smoothing = Seq2SeqLoss(objective, self), objective.label_smoothing
        self.capturable, self.rewarding = self.objective.capturable, self.objective.rewarding
        if self.rewarding is not None and not self.rewards:
            raise ConfigError(f"task.reward: the task {self.config.task['kind']} has no rewards; remove it")
        if self.rewarding is not None and self.config.train.packed is True:
            raise ConfigError("task.reward: texts cannot be drawn for packed rows; set train.packed: false")

    def prepare(self) -> Sizes:
        sizes = super().prepare()
        if self.objective.unlikelihood and not (sizes.reads == "tokens" and sizes.shared):
            raise ConfigError("task.unlikelihood needs texts with one vocabulary on both sides: data.shared_vocabulary: true")
        return sizes

    def tokenizers(self, train: list[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        """By default one, of the targets."""
        tokenizer = learn_tokenizer(self.config, train, self.report, side=1)
        return tokenizer, tokenizer

    def describe(self) -> dict[str, Any]:
        unit = self.train.parts[0].report.unit
        facts = {"ids": self.target.size, f"training {unit}": len(self.train)}
        return facts | ({} if self.valid is None else {f"validation {unit}": len(self.valid)})

    def ensemble(self, models: Sequence[Network]) -> Network:
        parts = [model for model in models if isinstance(model, Model)]
        if len({model.copies for model in parts}) > 1:
            raise RunError(
                "an ensemble needs runs that all copy source words (model.kind: pointer), or runs of which none does"
            )
        return Ensemble(parts)

    def losses(self, model: nn.Module, batch: PairBatch, update: int) -> Iterator[Loss]:
        assert isinstance(model, Model)
        yield from self.objective(model, batch, update)

    def draw(self, model: Model, sources: Sequence[list[int]], samples: int) -> list[list[list[int]]]:
        """The ids of `samples` texts of each source or, if it is 0, of the greedy one, for `task.reward`."""
        raise NotImplementedError

    def extra_state(self) -> dict[str, Tensor]:
        return self.objective.extra_state()

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.objective.load_extra_state(tensors)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The loss per token on all validation data; the metrics of quickly decoded texts on some of it."""
        if self.valid is None:
            return {}
        examples = self.decoded_examples()
        return {"loss": self.mean_loss(model)[0], **(self.decoded_scores(model, examples, self.metrics()) if examples else {})}

    def decoded_examples(self) -> list[tuple[str, str]]:
        """The validation inputs that `evaluate` decodes, with their references."""
        return list(islice(chain.from_iterable(self.references), self.config.train.validate_sentences or None))

    def decoded_scores(
        self, model: nn.Module, examples: Sequence[tuple[str, str]], metrics: Sequence[Metric], **changes: Any
    ) -> dict[str, float]:
        """The metrics of quickly decoded texts by their keys. changes: further settings of decode."""
        hypotheses = self.decode(model, (source for source, _ in examples), **changes)
        results = score(hypotheses, [reference for _, reference in examples], metrics)
        return {each.key: each.value for each in results.values()}

    def decode(self, model: nn.Module, inputs: Iterable[str], **changes: Any) -> list[str]:
        """The texts that `quick` decoding writes for some inputs. changes: further settings of decode."""
        assert isinstance(model, Network)
        section = changed(self.config.decode, {**self.quick, **changes})
        predictor = self.predictor(model, resolve_options(section, model.device))
        return [each.text for each in predictor.predict(map(predictor.parse_input, inputs), together=True)]

    def mean_loss(self, model: nn.Module, directions: Sequence[Direction] | None = None) -> tuple[float, int]:
        """The negative log-likelihood per token of validation targets, by default of all, and the number of tokens."""
        total, count = 0.0, 0
        for batch in self.validation(model, directions):
            nll, tokens = self.validation_loss(model, batch)
            total, count = total + float(nll), count + int(tokens)
        return total / max(1, count), count

    def validation_loss(self, model: nn.Module, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of a batch, and the number of tokens it sums."""
        assert isinstance(model, Model)
        features = model(batch.source, batch.target, batch.target_layout)
        return model.decoder.loss(features.hidden, batch.labels)[1], batch.target_layout.mask.sum()
