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
from weft.data.sound import LogMel, wav_size
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
class Listed(Part):
    """A recording that is read when its batch is run. frames: their number, as the head of the file says."""

    path: str
    frames: int

    @property
    def size(self) -> int:
        return self.frames


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
        if resolved.rerank is not None:
            raise ConfigError("decode.rerank: transcripts cannot be reranked; set decode.rerank: none")
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])
        if isinstance(model, Model):
            resolved.search.watched(model.decoder)  # fails now if the search cannot work with this decoder

    def parse(self, line: str, **fields: Any) -> Recording:
        refuse(fields, "a recording has no such field")
        path = str(check_file(line.strip()))
        found = os.stat(path)
        return Recording(path, (found.st_size, found.st_mtime_ns))

    def read(self, inputs: Sequence[Recording], first_line: int) -> list[list[Listed]]:
        return [[self._list(given.path)] for given in inputs]

    def _list(self, path: str) -> Listed:
        frames, most = self.mel.frames(*wav_size(path)), self.model.max_source
        if most is not None and frames > most:
            raise DataError(
                f"{path}: the recording has {frames:,} frames, and the model has positions for {most:,} only; cut it into "
                "shorter files"
            )
        return Listed([], path, frames)

    def run(self, parts: list[Listed], control: Control | None = None) -> list[list[Transcript]]:
        heard = [features(part.path, self.mel) for part in parts]
        with self.resolved.arithmetic(next(self.model.parameters()).dtype, self.resolved.beams):
            encoded = self.model.encode(self._source(heard))
            found = self._search(heard, encoded, control)
        best = self.resolved.section.n_best
        return [[self._transcript(each) for each in some[:best]] for some in found]

    def join(self, given: Recording, parts: list[Listed], results: list[list[Transcript]]) -> Transcript:
        if not results or not results[0]:
            return Transcript("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    def _source(self, heard: Sequence[Frames]) -> Source:
        lengths, device = [len(frames) for frames in heard], self.model.device
        block = torch.zeros(len(heard), max(lengths), self.mel.mels)
        for row, frames in zip(block, heard, strict=True):
            row[: len(frames)] = torch.from_numpy(frames)
        layout = None if len(set(lengths)) == 1 else Layout.padded(lengths).to(device)
        return Source(block.to(device), layout)

    def _search(self, heard: Sequence[Frames], encoded: Encoded, control: Control | None) -> list[list[Hypothesis]]:
        weight, width = self.weight, self.resolved.search.width(self.resolved.candidates)
        if not weight:
            return self._attend(heard, encoded, self.resolved.candidates, control)
        assert isinstance(self.model, CtcModel | JointModel)
        emitted: Emitted = self.model.ctc(encoded)
        aligned = self._align(emitted, width)
        if weight == 1:
            return aligned
        assert isinstance(self.model, JointModel)
        attended = self._attend(heard, encoded, width, control)
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

    def _attend(self, heard: Sequence[Frames], encoded: Encoded, best: int, control: Control | None) -> list[list[Hypothesis]]:
        """The texts that the decoder finds."""
        device, section = self.model.device, self.resolved.section
        limits = self._limits(heard)
        found, _ = self.resolved.search.find(
            self.model.decoder,
            encoded,
            limits=limits,
            first=torch.full((len(heard), 1), BOS, device=device),
            best=best,
            constraints=usual_constraints(section.no_repeat_ngram, 1 + int(limits.longest.max())),
            control=control,
        )
        return found

    def _limits(self, heard: Sequence[Frames]) -> Limits:
        section, most, shortens = self.resolved.section, self.model.max_target, self.model.encoder.shortens
        longest = [min(section.max_length, int(section.max_ratio * -(-len(frames) // shortens)) + 10) for frames in heard]
        if most is not None:
            longest = [max(1, min(each, most - 1)) for each in longest]
        shortest = [min(section.min_length, each - 1) for each in longest]
        columns = longest, shortest, [_name(frames) for frames in heard]
        return Limits(*(torch.tensor(each, device=self.model.device) for each in columns))

    def _transcript(self, hypothesis: Hypothesis) -> Transcript:
        ids = hypothesis.tokens
        text = self.target.decode([token for token in ids if token != EOS])
        return Transcript(text, hypothesis.score, ids, self.target.tokens(ids))


def _name(frames: Frames) -> int:
    """A number that names a recording to sampling."""
    return int.from_bytes(blake2b(frames.tobytes(), digest_size=8).digest(), "little") >> 1
