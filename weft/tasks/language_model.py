"""Language modelling: the next token of running text, scored in bits per character and by perplexity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.batch import Position, TextBatch
from weft.config.sections import DecodeSection
from weft.data.text import Streams, Text, TextFile, in_streams, keeps_lines, read_text, windows
from weft.data.tokenizer import RESERVED, Tokenizer, has_tokenizers, load_tokenizers, save_tokenizers, train_tokenizer
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.models.composing import build_model
from weft.models.lm import LanguageModel
from weft.state import State, leaves, write_
from weft.tasks.base import Headline, Loss, Setting, Share, Task
from weft.tasks.carrying import Carrying, Kind
from weft.tasks.corpora import cache_of
from weft.tasks.generating import Generating


class LanguageModelTask(Task):
    """The next token given those before it, over files of running text (model.kind: language_model).

    The text is read at many places at once, by segments. Of every place, what `carry` says goes on into the next segment.

    segment: tokens that are read at once; train.batch_tokens are divided into streams of so many
    carry: nothing, memory (what layers were given, for attention to look at), or state (of recurrent layers and running sums)
    memory: tokens that are remembered, for carry: memory
    evaluation_memory: tokens remembered in evaluation and generation; by default as many as in training
    stride: in evaluation, tokens that are scored at a time, with what can be seen before them; 0: whole segments
    evaluation_streams: places at which a text is scored at once where something is carried; fewer are slower, and nearer to one
    label_smoothing: share of the probability that is moved evenly over the vocabulary
    """

    headline = Headline("bits_per_character", "bits per character", higher_is_better=False)
    counts = "tokens"

    def __init__(
        self,
        setting: Setting,
        *,
        segment: PositiveInt = 256,
        carry: Kind = "nothing",
        memory: NonNegativeInt = 256,
        evaluation_memory: NonNegativeInt | None = None,
        stride: NonNegativeInt = 0,
        evaluation_streams: PositiveInt = 8,
        label_smoothing: Share = 0.0,
    ) -> None:
        self.config, self.run, self.tell = setting.config, setting.run, setting.tell
        self.segment, self.stride, self.streams, self.smoothing = segment, stride, evaluation_streams, label_smoothing
        self.carrying = Carrying(carry, memory)
        self.scoring = Carrying(carry, memory if evaluation_memory is None else evaluation_memory)
        # A memory of several segments grows at first, and has no place of its own until it is full.
        self.steady = carry != "memory" or memory <= segment
        if stride > segment:
            raise ConfigError(f"task.stride: {stride} tokens at a time are more than the segment of {segment}")
        self.tokenizer: Tokenizer
        self.train: Text
        self.valid: Text | None = None
        self._carried: dict[int, State] = {}
        self._waiting: dict[int, list[Tensor]] = {}

    def prepare(self) -> Sizes:
        data = self.config.data
        if not data.train:
            raise ConfigError("there is no text to learn from: give --data TEXT, or set data.train")
        train, valid = ([TextFile(path) for path in paths] for paths in (data.train, data.valid))
        if not has_tokenizers(self.run):
            self.tell(f"training {data.tokenizer['kind']} tokenizer")
            tokenizer = train_tokenizer(data.tokenizer, train, size=data.vocabulary, folder=cache_of(self.config))
            save_tokenizers(self.run, tokenizer, tokenizer)
        sizes = self.reopen()
        if not keeps_lines(self.tokenizer):
            raise ConfigError(
                f"data.tokenizer: {data.tokenizer['kind']} does not keep line ends; use characters, bytes, bpe or unigram"
            )
        self.train = self.read(train, "training")
        self.valid = self.read(valid, "validation") if valid else None
        self._streams()
        return sizes

    def reopen(self) -> Sizes:
        """What `prepare` says, of a run that has been trained: its folder is read, and no data."""
        self.tokenizer, _ = load_tokenizers(self.run, self.config.data.tokenizer)
        return Sizes(self.tokenizer.size, self.tokenizer.size, shared=True)

    def read(self, files: list[TextFile], what: str) -> Text:
        """The text of these files, tokenised now or found in the cache."""
        self.tell(f"reading {what} text: {', '.join(file.name for file in files)}")
        text = read_text(files, self.tokenizer, folder=cache_of(self.config))
        self.tell(f"{what} text: {text.characters:,} characters, {len(text):,} tokens")
        return text

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = build_model(spec, sizes)
        if not isinstance(model, LanguageModel):
            raise ConfigError(
                f"model.kind: {spec['kind']} reads a source, and running text has none; set model.kind: language_model"
            )
        self.carrying.check(model, self.segment)
        self.scoring.check(model, self.segment)
        return model

    def check_length(self, model: Network, longest: int) -> None:
        """Text is read in segments, however long it is, and theirs was checked when the model was built."""

    def widest(self, longest: int) -> int:
        return self.segment

    def batches(self, position: Position) -> Iterator[tuple[TextBatch, Position]]:
        return self._streams().stream(position)

    def _streams(self) -> Streams:
        train = self.config.train
        rows = train.batch_tokens // self.segment
        if rows == 0:
            raise ConfigError(
                f"train.batch_tokens: {train.batch_tokens:,} tokens are less than one segment of {self.segment:,}; raise "
                "it, or lower task.segment"
            )
        return Streams(self.train.tokens, self.segment, rows, train.accumulate, train.seed)

    def losses(self, model: nn.Module, batch: TextBatch, update: int) -> Iterator[Loss]:
        assert isinstance(model, LanguageModel)
        found, after = self.carrying.read(model, batch.tokens, self._before(model, batch))
        total, nll = model.decoder.loss(found.hidden, batch.labels, self.smoothing)
        yield Loss(total, torch.full_like(nll, batch.labels.numel()), {"nll": nll})
        # After the backward pass, which still reads what came before; and into its place, where a recording will look for it.
        before = self._carried.get(batch.group)
        self._carried[batch.group] = write_(before, after) if _alike(before, after) else after

    def _before(self, model: LanguageModel, batch: TextBatch) -> State:
        """What is carried into a batch: nothing if its streams begin; after a resume, what the checkpoint has of them."""
        waiting = self._waiting.pop(batch.group, None)
        if batch.fresh:
            return None
        if waiting is not None and waiting[0].size(0) == batch.tokens.size(0):
            return self.carrying.restore(model, [tensor.to(model.device) for tensor in waiting])
        return self._carried.get(batch.group)

    def carried(self) -> dict[str, Tensor]:
        return {
            f"{self.carrying.kind}/{group}/{place}": leaf.clone()
            for group, state in self._carried.items()
            for place, leaf in enumerate(leaves(state))
        }

    def carry(self, tensors: Mapping[str, Tensor]) -> None:
        found: dict[int, dict[int, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            kind, group, place = name.split("/")
            if kind == self.carrying.kind:  # it may have been changed since
                found[int(group)][int(place)] = tensor
        self._waiting = {group: [places[place] for place in sorted(places)] for group, places in found.items()}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Of the validation text: loss (nats a token), perplexity, bits per character and bits per byte."""
        assert isinstance(model, LanguageModel)
        return {} if self.valid is None else self.score(model, self.valid)

    def score(self, model: LanguageModel, text: Text) -> dict[str, float]:
        """The same of any text. Of its first token, which nothing stands before, no score is asked."""
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        carried: State = None
        for inputs, labels in self._blocks(text):
            found, carried = self.scoring.read(model, inputs.to(model.device), carried)
            total += model.decoder.loss(found.hidden, labels.to(model.device))[1]
        loss = float(total) / (len(text) - 1)
        bits = loss / math.log(2) * len(text)
        scores = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return scores | {"bits_per_character": bits / text.characters, "bits_per_byte": bits / text.bytes}

    def _blocks(self, text: Text) -> Iterable[tuple[Tensor, Tensor]]:
        """Inputs and labels, in the order in which they follow each other where something is carried."""
        if self.scoring.kind == "nothing":
            rows = max(1, self.config.train.batch_tokens // self.segment)
            return windows(text.tokens, self.segment, self.stride or self.segment, rows)
        return in_streams(text.tokens, self.stride or self.segment, min(self.streams, len(text) - 1))

    def generating(self, model: LanguageModel, options: DecodeSection) -> Generating:
        """A trained model ready to go on with texts."""
        memory = self.scoring.memory if self.scoring.kind == "memory" else 0
        context = None if self.scoring.kind == "state" else self.segment + memory
        return Generating(model, self.tokenizer, options, context)

    def describe(self) -> dict[str, Any]:
        facts = {"ids": self.tokenizer.size, "training tokens": len(self.train)}
        return facts | ({} if self.valid is None else {"validation tokens": len(self.valid)})

    def made_up(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> TextBatch:
        """Streams that begin, each with a segment of `length` tokens."""
        generator = torch.Generator().manual_seed(length)
        tokens = torch.randint(RESERVED, max(RESERVED + 1, sizes.target), (rows * length + 1,), generator=generator).numpy()
        return next(Streams(tokens, length, rows, 1, 0).stream(Position()))[0]


def _alike(old: State, new: State) -> bool:
    """Whether one can be written over the other."""
    shapes = [[(leaf.shape, leaf.dtype) for leaf in leaves(state)] for state in (old, new)]
    return old is not None and shapes[0] == shapes[1]
