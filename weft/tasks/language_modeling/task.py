"""Language modelling: predicts the next token of running text; scored by bits per character and perplexity."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.data.batch import Position, TextBatch
from weft.decoding.decoding_options import DecodingOptions, Warn, changed, resolve_options
from weft.errors import ConfigError
from weft.explain.inside import TokenNames
from weft.losses.log_likelihood import LossSpec, build_loss, decoder_loss
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.language_model import LanguageModel
from weft.tasks.base import LOSS, SAMPLES, Loss, Measure, Sample, Share, Task, TaskContext, TaskInfo, lower_setting
from weft.tasks.language_modeling.data import (
    Streams,
    Text,
    TextFile,
    in_streams,
    keeps_lines,
    random_streams,
    read_text,
    windows,
)
from weft.tasks.language_modeling.predictor import GenerationPredictor, Prompt
from weft.tasks.language_modeling.segment_recurrence import Kind, SegmentRecurrence, StreamStates
from weft.tasks.run_tokenizers import TokenizerPair, learn_once, learn_tokenizer, open_tokenizers, tokenizers_of

SHOWN = 16
"""Tokens of a passage that a sample gives as a prompt, and as many that the model continues it with."""


class LanguageModelTask(Task):
    """Predicts the next token of running text (model.kind: language_model, rnn_language_model or bytenet_language_model).

    The text is read as several streams in parallel, one segment after the other. `carry` says what continues into the next
    segment of a stream.

    segment: tokens per segment; train.batch_tokens are divided into streams of this length
    carry: nothing, memory (the inputs of each layer, for attention) or state (of recurrent layers and running sums)
    memory: tokens that are remembered, for carry: memory
    evaluation_memory: tokens remembered in evaluation and generation; by default as many as in training
    stride: tokens scored at a time in evaluation, each with a full segment of context; 0: whole segments
    evaluation_streams: parallel streams in evaluation, if something is carried; fewer are slower and more exact
    loss: loss of the next token; cross_entropy is computed without storing all logits
    label_smoothing: share of the probability that is spread evenly over the vocabulary
    """

    measures = (
        Measure("bits_per_character", "bits per character", higher_is_better=False),
        Measure("bits_per_byte", "bits per byte", higher_is_better=False),
        Measure("perplexity", "perplexity", higher_is_better=False),
        LOSS,
    )
    info = TaskInfo(
        commands=('weft generate {run} "a beginning"', "weft evaluate {run} --data TEXT"),
        count_unit="tokens",
        inference_kind="continue",
        bf16_weights=False,
    )

    def __init__(
        self,
        context: TaskContext,
        *,
        segment: PositiveInt = 256,
        carry: Kind = "nothing",
        memory: NonNegativeInt = 256,
        evaluation_memory: NonNegativeInt | None = None,
        stride: NonNegativeInt = 0,
        evaluation_streams: PositiveInt = 8,
        loss: LossSpec = {"kind": "cross_entropy"},  # noqa: B006
        label_smoothing: Share = 0.0,
    ) -> None:
        super().__init__(context)
        if self.config.data.teacher:
            raise ConfigError("data.teacher: only tasks that translate learn from the translations of another run; remove it")
        self.segment, self.stride, self.streams, self.smoothing = segment, stride, evaluation_streams, label_smoothing
        self.token_loss = build_loss(loss)
        self.carrying = SegmentRecurrence(carry, memory)
        self.scoring = SegmentRecurrence(carry, memory if evaluation_memory is None else evaluation_memory)
        # A memory of several segments has no fixed size until it is full.
        self.info = replace(self.info, fixed_length=segment, capturable=carry != "memory" or memory <= segment)
        if stride > segment:
            raise ConfigError(f"task.stride: {stride} is more than the segment of {segment} tokens; lower it")
        self.train: Text
        self.valid: Text | None = None
        self.states = StreamStates(self.carrying)

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError("there is no training text: give --data TEXT, or set data.train")
        if data.hold_out:
            raise ConfigError("data.hold_out: running text has no pairs to hold out; give --valid TEXT instead")
        if mixed := [spec for spec in (*data.train, *data.valid) if not isinstance(spec, str)]:
            raise ConfigError(
                f"data.train: running text is read in order, so {mixed[0].label} cannot be mixed in; name its files"
            )
        train, valid = ([TextFile(str(path)) for path in paths] for paths in (data.train, data.valid))
        new = learn_once(self.run, lambda: self._tokenizers(train))
        sizes = self.reopen()
        if new and self.tokenizer.learns and not data.tokenizer_of:
            lower_setting(self, "data.vocabulary", self.tokenizer.size)
        if not keeps_lines(self.tokenizer):
            raise ConfigError(
                f"data.tokenizer: {data.tokenizer['kind']} does not keep line ends; use characters, bytes, bpe, unigram or "
                "words with line_ends: true"
            )
        self.train = self.read(train, "training")
        self.valid = self.read(valid, "validation") if valid else None
        if (rows := self._streams().rows) < self.config.train.batch_tokens // self.segment:
            lower_setting(self, "train.batch_tokens", rows * self.segment)
        return sizes

    def _tokenizers(self, train: list[TextFile]) -> TokenizerPair:
        if not self.config.data.tokenizer_of:
            return learn_tokenizer(self.config, train, self.report)
        self.config, _, tokenizer = tokenizers_of(self.config)
        return tokenizer, tokenizer

    def reopen(self) -> Sizes:
        self.tokenizer, _ = open_tokenizers(self.run, self.config)
        return Sizes(self.tokenizer.size, self.tokenizer.size, shared=True)

    def vocabularies(self) -> list[str]:
        return [self.tokenizer.digest()]

    def read(self, files: list[TextFile], what: str) -> Text:
        """The text of these files, tokenised now or read from the cache."""
        self.report(f"reading {what} text: {', '.join(file.name for file in files)}")
        text = read_text(files, self.tokenizer, self.config.data.cache, self.config.data.processes)
        self.report(f"{what} text: {text.characters:,} characters, {len(text):,} tokens")
        return text

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = build_model(spec, sizes)
        if not isinstance(model, LanguageModel):
            raise ConfigError(
                f"model.kind: {spec['kind']} reads a source, but running text has none; set model.kind: language_model, "
                "rnn_language_model or bytenet_language_model"
            )
        self.carrying.check(model, self.segment)
        self.scoring.check(model, self.segment)
        return model

    def batches(self, position: Position) -> Iterator[tuple[TextBatch, Position]]:
        return self._streams().stream(position)

    def _streams(self) -> Streams:
        train = self.config.train
        rows = train.batch_tokens // self.segment
        if rows == 0:
            raise ConfigError(
                f"train.batch_tokens: {train.batch_tokens:,} tokens are less than one segment of {self.segment:,}; raise "
                "it or lower task.segment"
            )
        most = max(1, (len(self.train) - 1) // (self.segment * train.accumulate))
        return Streams(self.train.tokens, self.segment, min(rows, most), train.accumulate, train.seed)

    def losses(self, model: LanguageModel, batch: TextBatch, update: int) -> Iterator[Loss]:
        features, after = self.carrying.read(model, batch.tokens, self.states.before(model, batch))
        total, nll = decoder_loss(self.token_loss, model.decoder, features.hidden, batch.labels, self.smoothing)
        yield Loss(total, torch.full_like(nll, batch.labels.numel()), {"nll": nll})
        self.states.carry(batch, after, total.detach())  # only after the backward pass, which still reads the old state

    def extra_state(self) -> dict[str, Tensor]:
        return self.states.extra_state()

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.states.load_extra_state(tensors)

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        return {} if self.valid is None else self.score_text(model, self.valid)

    def samples(self, model: LanguageModel) -> list[Sample]:
        """Passages from the whole validation text: the beginning, how it goes on, and the likeliest continuation."""
        if self.valid is None or len(self.valid) < 2 * SHOWN:
            return []
        room, section = len(self.valid) - 2 * SHOWN, {"search": "greedy", "rerank": "none", "n_best": 1}
        passages = [self.valid.tokens[start : start + 2 * SHOWN].tolist() for start in range(0, room + 1, room // SAMPLES + 1)]
        texts = [tuple(map(self.tokenizer.decode, (each[:SHOWN], each[SHOWN:]))) for each in passages]
        try:
            predictor = self.predictor(model, resolve_options(changed(self.config.decode, section), model.device))
            found = list(predictor.predict([Prompt(text, SHOWN) for text, _ in texts], together=True))
        except ConfigError:  # a search that needs other models, or cannot work with this one
            return []
        return [Sample(text, rest, each.text) for (text, rest), each in zip(texts, found, strict=True)]

    def score(self, model: LanguageModel, data: Sequence[str]) -> dict[str, float]:
        return self.score_text(model, self.read([TextFile(path) for path in data], "test"))

    def score_text(self, model: LanguageModel, text: Text) -> dict[str, float]:
        """The scores of any text; the loss is in nats per token. The first token, which has no context, is not scored."""
        totals: list[Tensor] = []
        carried: Any = None
        for inputs, labels in self._blocks(text):
            features, carried = self.scoring.read(model, inputs.to(model.device), carried)
            totals.append(model.decoder.loss(features.hidden, labels.to(model.device))[1])
        loss = math.fsum(torch.stack(totals).tolist()) / (len(text) - 1)
        bits = loss / math.log(2) * len(text)
        scores = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return scores | {"bits_per_character": bits / text.characters, "bits_per_byte": bits / text.bytes}

    def _blocks(self, text: Text) -> Iterable[tuple[Tensor, Tensor]]:
        """Inputs and labels in reading order."""
        if self.scoring.kind == "nothing":
            rows = max(1, self.config.train.batch_tokens // self.segment)
            return windows(text.tokens, self.segment, self.stride or self.segment, rows)
        return in_streams(text.tokens, self.stride or self.segment, min(self.streams, len(text) - 1))

    def predictor(self, model: LanguageModel, resolved: DecodingOptions, warn: Warn | None = None) -> GenerationPredictor:
        memory = self.scoring.memory if self.scoring.kind == "memory" else 0
        context = None if self.scoring.kind == "state" else self.segment + memory
        return GenerationPredictor(model, self.tokenizer, resolved, context, warn)

    def explained(self, predictor: GenerationPredictor, text: str) -> tuple[str, str]:
        """The text, and how the model reads it."""
        from weft.tasks.language_modeling.explanation import read_text, reading_page  # not needed to generate

        return text, reading_page(read_text(predictor, text))

    def step_names(self, predictor: GenerationPredictor, text: str) -> TokenNames:
        from weft.tasks.language_modeling.explanation import read_text

        return TokenNames(read_text(predictor, text).tokens, predictor.tokenizer.tokens)

    def identity(self) -> str:
        return self.train.identity

    def describe(self) -> dict[str, Any]:
        facts = {"ids": self.tokenizer.size, "training tokens": len(self.train)}
        return facts | ({} if self.valid is None else {"validation tokens": len(self.valid)})

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> TextBatch:
        return random_streams(length, rows, sizes.target)
