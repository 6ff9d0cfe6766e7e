"""Sequences of bit vectors, as Neural Turing Machines are tested on: copying, repeating, recalling; scored by wrong bits.

The model is any encoder with independent yes-or-no outputs at each position.
Shapes: B rows · S positions · C outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.data.corpus import Corpus, Encoding, Rows
from weft.decoding.decoding_options import DecodingOptions
from weft.decoding.predictor import BatchItem, Prediction, TextInput, TextPredictor
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError, DataError
from weft.explain.html_page import image
from weft.layers.step_recorder import record, recording, steps_under
from weft.models.base import Encoder, Network, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.tasks.base import LOSS, Loss, Measure, TaskContext, TaskInfo
from weft.tasks.corpus_task import CorpusTask
from weft_studies.bits.data import NOTHING, BitBatch, Frames, bit_encoding, make_bits, read_frames, write_target

USED = 0.05
"""The least weight of a slot of a memory that an explanation shows."""


@dataclass(eq=False)
class BitPart(BatchItem):
    """A sequence: its frames [S, F], of which the last `blanks` are blank."""

    frames: Frames
    blanks: int


class BitsPredictor(TextPredictor[Prediction]):
    """A model that fills in blanks. `score` is the log-probability of all its bits. The reader is `read_frames`."""

    no_fields = "a sequence of bits has no such field; leave it out"

    def encode_input(self, inputs: Sequence[TextInput], first_line: int) -> list[list[BatchItem]]:
        return [self._parts(given.text, line) for line, given in enumerate(inputs, start=first_line)]

    def _parts(self, text: str, line: int) -> list[BatchItem]:
        try:
            frames, blanks = self.reader(text) if text.strip() else ([], 0)
        except DataError as error:
            raise DataError(f"line {line}: {error}") from None
        return [BitPart([], frames, blanks, length=len(frames))] if blanks else []

    def run(self, parts: list[BitPart], control: Cancellation | None = None) -> list[Prediction]:
        device, layout = self.model.device, Layout.padded([part.size for part in parts])
        frames = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part.frames) for part in parts], batch_first=True)
        logits = self.forward(Source(frames.to(device), layout.to(device))).float()
        if recording():
            axes = "row token bit"
            record("probabilities", logits.sigmoid(), axes, "sigmoid(logits)", logits=(logits, axes))
        results = []
        for row, part in zip(logits, parts, strict=True):
            written = row[part.size - part.blanks : part.size]
            results.append(Prediction(write_target((written > 0).tolist()), float(F.logsigmoid(written.abs()).sum())))
        return results

    def join_outputs(self, given: TextInput, parts: list[BitPart], results: list[Prediction]) -> Prediction:
        """Weights are under "read" and "write": [heads, steps, slots]."""
        prediction = results[0] if results else Prediction("", 0.0)
        if given.attention and results:
            prediction.source_tokens = given.text.split()
            with steps_under(None), torch.inference_mode():  # the run before has recorded its steps
                frames = torch.from_numpy(parts[0].frames)[None].to(self.model.device)
                heads = self.model.encoder(Source(frames)).extras.get("heads")
            if heads is not None:
                read, write = heads[0].float().transpose(0, 1).chunk(2)
                prediction.attention = {"read": read.cpu().numpy(), "write": write.cpu().numpy()}
        return prediction


class FrameClassifier(Network):
    """The logits [B, S, C] of what an encoder reads."""

    def __init__(self, encoder: Encoder, outputs: int) -> None:
        super().__init__()
        self.encoder, self.dim = encoder, encoder.width
        self.max_source, self.cuda_graph_safe = encoder.max_source, encoder.cuda_graph_safe
        self.output = nn.Linear(encoder.width, outputs)

    def forward(self, source: Source) -> Tensor:
        logits: Tensor = self.output(self.encoder(source).memory)
        return logits


class BitsTask(CorpusTask):
    """Sequences of bit vectors with blanks to fill in (see `weft_studies.bits.data`). Nothing that is written is fed back.

    width: bits of a vector
    """

    example = "sequences.tsv (a sequence with blanks, a tab, what belongs there)"
    info = TaskInfo(
        commands=('weft predict {run} "01101001 11100010 | _ _"', "weft evaluate {run} --data FILES"),
        count_unit="bits",
        inference_kind="forward",
        capturable=True,
        typical_length=41,
    )
    measures = (Measure("bit_errors", "bit errors (%)", higher_is_better=False), Measure("exact", "exact"), LOSS)
    sentences = (0,)

    def __init__(self, context: TaskContext, *, width: PositiveInt = 8) -> None:
        super().__init__(context)
        self.width = width

    def reopen(self) -> Sizes:
        return Sizes(self.width + 2, self.width + 1, reads="frames")

    def placeholder_sizes(self) -> Sizes:
        return self.reopen()

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        return FrameClassifier(build_encoder(spec, sizes), sizes.target)

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None) -> BitsPredictor:
        return BitsPredictor(model, partial(read_frames, width=self.width), resolved, warn)

    def encoding(self, *, training: bool) -> Encoding:
        return bit_encoding(self.width)

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> BitBatch:
        rows = np.asarray(rows, np.int64)
        (frames, lengths), (target, blanks) = corpus.gather("source", rows), corpus.gather("target", rows)
        return make_bits(frames, target, lengths, blanks, rows, budget=budget, rounded=rounded)

    def losses(self, model: nn.Module, batch: BitBatch, update: int) -> Iterator[Loss]:
        logits, real = model(batch.source), batch.labels != NOTHING
        wrong = ((logits > 0) != batch.labels) & real
        yield Loss(_cross_entropy(logits, batch.labels), real.sum(), {"bit_errors": 100 * wrong.sum()})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        total, bits, wrong, exact, rows, channels = 0.0, 0, 0, 0, 0, 0
        for batch in self.validation(model):
            logits, real = model(batch.source).float(), batch.labels != NOTHING
            total += _cross_entropy(logits, batch.labels).item()
            missed = ((logits > 0) != batch.labels) & real
            wrong, bits = wrong + int(missed[..., :-1].sum()), bits + int(real[..., :-1].sum())
            exact, rows = exact + int((~missed.flatten(1).any(1)).sum()), rows + len(missed)
            channels += int(real.sum())
        return {"bit_errors": 100 * wrong / bits, "exact": 100 * exact / rows, "loss": total / channels}

    def explanation(self, predictor: BitsPredictor, prediction: Prediction, text: str) -> str:
        """Where the heads of a Neural Turing Machine write and read: a row for each slot in use, a column for each step."""
        if not prediction.attention:
            raise ConfigError("there is nothing to explain: only a Neural Turing Machine has heads that look at a memory")
        used = np.max([weights.max((0, 1)) for weights in prediction.attention.values()], 0) >= USED
        rows = ""
        for name in ("write", "read"):
            for weights in prediction.attention[name]:
                slots = (255 * weights.T[used]).astype(np.uint8)
                rows += f"<tr><th>{name}</th><td>{image(slots, f'slots that a head {name}s', kind='slots')}</td></tr>\n"
        return f"<table>{rows}</table>\n<p>{escape(' '.join(prediction.source_tokens))}</p>\n"

    def dummy_batch(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> BitBatch:
        """Random vectors, of which the second half is blank."""
        draw, blanks = np.random.default_rng(length), length // 2
        frames = draw.integers(0, 2, (rows, length, sizes.source)).astype(np.float32)
        frames[:, length - blanks :] = 0
        target = draw.integers(0, 2, (rows * blanks, sizes.target))
        counts = np.full(rows, length), np.full(rows, blanks)
        frames, budget = frames.reshape(-1, sizes.source), rows * length
        return make_bits(frames, target, *counts, np.arange(rows), budget=budget, rounded=rounded)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over all channels that are to be written."""
    each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
    return torch.where(labels == NOTHING, 0.0, each).sum()
