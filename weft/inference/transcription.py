"""Transcription: recordings to texts. The text of a recording does not depend on its batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch

from weft.batch import BOS, EOS, Layout, Source
from weft.data.lines import check_file
from weft.data.recordings import Frames, features
from weft.data.sound import LogMel
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError, DataError
from weft.inference.predictor import Part, Prediction, Predictor, refuse
from weft.inference.resolve import Resolved
from weft.models.base import Encoded, Model
from weft.models.ctc import CtcModel, Emitted, JointModel
from weft.search.choosers import Limits
from weft.search.constraints import usual_constraints
from weft.search.ctc import best_paths, prefix_beams
from weft.search.joint import rank_jointly
from weft.search.loop import Control
from weft.search.tables import Hypothesis


@dataclass
class Transcript(Prediction):
    """What was said. Its score is that of the search; CTC gives log-probabilities of whole texts."""


@dataclass(frozen=True)
class Recording:
    """A wav file to transcribe. stamp: its size and the time it was changed, so that another file is another input."""

    path: str
    stamp: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class Heard(Part):
    """The features of a recording."""

    frames: Frames

    @property
    def size(self) -> int:
        return len(self.frames)

    @property
    def seed(self) -> int:
        """Names the recording to sampling."""
        return int.from_bytes(blake2b(self.frames.tobytes(), digest_size=8).digest(), "little") >> 1


class TranscriptionPredictor(Predictor[Recording, Transcript]):
    """A model that listens, with the tokenizer of its texts.

    weight: how much CTC counts when a text is chosen: 0 for attention alone, 1 for CTC alone; between them, the texts that both
    propose are ranked by both.
    """

    def __init__(
        self,
        model: Any,
        target: Tokenizer,
        mel: LogMel,
        resolved: Resolved,
        *,
        weight: float,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.target, self.mel, self.weight = target, mel, weight
        if weight and resolved.search.kind not in ("greedy", "beam"):
            raise ConfigError(
                f"decode.search: {resolved.search.kind} cannot search the outputs of CTC; set decode.search: beam or greedy, "
                "or task.decode_ctc: 0 for a model that has a decoder"
            )
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])
        if isinstance(model, Model):
            resolved.search.watched(model.decoder)  # fails now if the search cannot work with this decoder

    def parse(self, line: str, **fields: Any) -> Recording:
        refuse(fields, "a recording has no such field")
        path = str(check_file(line.strip()))
        found = os.stat(path)
        return Recording(path, (found.st_size, found.st_mtime_ns))

    def read(self, inputs: Sequence[Recording], first_line: int) -> list[list[Heard]]:
        return [[Heard([], self._listen(given.path))] for given in inputs]

    def _listen(self, path: str) -> Frames:
        frames, most = features(path, self.mel), self.model.max_source
        if most is not None and len(frames) > most:
            raise DataError(
                f"{path}: the recording has {len(frames):,} frames, and the model has positions for {most:,} only; cut it into "
                "shorter files"
            )
        return frames

    def cost(self, given: Recording) -> int:
        return max(1, given.stamp[0] // (2 * self.mel.step))

    def run(self, parts: list[Heard], control: Control | None = None) -> list[list[Transcript]]:
        with self.resolved.arithmetic(next(self.model.parameters()).dtype, self.resolved.beams):
            encoded = self.model.encode(self._source(parts))
            found = self._search(parts, encoded, control)
        best = self.resolved.section.n_best
        return [[self._transcript(each) for each in some[:best]] for some in found]

    def join(self, given: Recording, parts: list[Heard], results: list[list[Transcript]]) -> Transcript:
        if not results or not results[0]:
            return Transcript("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    def _source(self, parts: Sequence[Heard]) -> Source:
        lengths, device = [part.size for part in parts], self.model.device
        block = torch.zeros(len(parts), max(lengths), self.mel.mels)
        for row, part in zip(block, parts, strict=True):
            row[: part.size] = torch.from_numpy(part.frames)
        layout = None if len(set(lengths)) == 1 else Layout.padded(lengths).to(device)
        return Source(block.to(device), layout)

    def _search(self, parts: Sequence[Heard], encoded: Encoded, control: Control | None) -> list[list[Hypothesis]]:
        weight, width = self.weight, self.resolved.search.width(self.resolved.candidates)
        if not weight:
            return self._attend(parts, encoded, self.resolved.candidates, control)
        assert isinstance(self.model, CtcModel | JointModel)
        emitted: Emitted = self.model.ctc(encoded)
        aligned = self._align(emitted, width)
        if weight == 1:
            return aligned
        assert isinstance(self.model, JointModel)
        attended = self._attend(parts, encoded, width, control)
        candidates = [
            [list(text) for text in dict.fromkeys(tuple(each.tokens[:-1]) for each in some if each.tokens[-1:] == [EOS])]
            for some in [[*ours, *theirs] for ours, theirs in zip(attended, aligned, strict=True)]
        ]
        return rank_jointly(
            self.model.decoder, encoded, emitted.logits, emitted.lengths, candidates, blank=emitted.blank, weight=weight
        )

    def _align(self, emitted: Emitted, width: int) -> list[list[Hypothesis]]:
        """The texts that CTC finds, each with EOS."""
        logits, lengths, blank = emitted.logits, emitted.lengths, emitted.blank
        if width == 1:
            found = [[each] for each in best_paths(logits, lengths, blank=blank)]
        else:
            found = prefix_beams(logits, lengths, blank=blank, width=width, best=width)
        return [[Hypothesis(each.score, [*each.tokens, EOS]) for each in some] for some in found]

    def _attend(self, parts: Sequence[Heard], encoded: Encoded, best: int, control: Control | None) -> list[list[Hypothesis]]:
        """The texts that the decoder finds."""
        device, section = self.model.device, self.resolved.section
        limits = self._limits(parts)
        found, _ = self.resolved.search.find(
            self.model.decoder,
            encoded,
            limits=limits,
            first=torch.full((len(parts), 1), BOS, device=device),
            best=best,
            constraints=usual_constraints(section.no_repeat_ngram, 1 + int(limits.longest.max())),
            control=control,
        )
        return found

    def _limits(self, parts: Sequence[Heard]) -> Limits:
        section, most, shortens = self.resolved.section, self.model.max_target, self.model.encoder.shortens
        longest = [min(section.max_length, int(section.max_ratio * -(-part.size // shortens)) + 10) for part in parts]
        if most is not None:
            longest = [max(1, min(each, most - 1)) for each in longest]
        shortest = [min(section.min_length, each - 1) for each in longest]
        columns = longest, shortest, [part.seed for part in parts]
        return Limits(*(torch.tensor(each, device=self.model.device) for each in columns))

    def _transcript(self, hypothesis: Hypothesis) -> Transcript:
        ids = hypothesis.tokens
        text = self.target.decode([token for token in ids if token != EOS])
        return Transcript(text, hypothesis.score, ids, self.target.tokens(ids))
