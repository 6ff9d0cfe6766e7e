"""Transcription: recordings to texts. The text of a recording does not depend on its batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from weft.data.batch import EOS
from weft.data.tokenizers import Tokenizer
from weft.decoding.ctc_decoding import alignment_marks, best_paths, prefix_beams, rescore_with_ctc, texts_of
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.predictor import BatchItem, MediaInput, MediaPredictor, Prediction, Weights, seed_of
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError, DataError
from weft.explain.attention_heatmap import spectrogram_rows
from weft.models.base import Encoded
from weft.tasks.transcription.data import lay_out_recordings
from weft.tasks.transcription.log_mel import Frames, LogMel, features, wav_size
from weft.tasks.transcription.model import CtcModel, CtcOutputs, JointModel


@dataclass(eq=False)
class Listed(BatchItem):
    """A recording that is read when its batch is run. length: its frames, as the head of the file says."""

    path: str


class TranscriptionPredictor(MediaPredictor):
    """A model that listens.

    weight: how much CTC counts when a text is chosen: 0 for attention alone, 1 for CTC alone; between them, the texts that both
    propose are ranked by both.
    """

    noun = "recording"

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        mel: LogMel,
        options: DecodingOptions,
        *,
        weight: float,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(model, tokenizer, options, warn)
        self.mel, self.weight = mel, weight
        if weight and options.search.kind not in ("greedy", "beam"):
            raise ConfigError(
                f"decode.search: {options.search.kind} cannot search the outputs of CTC; set decode.search: beam or greedy, "
                "or task.decode_ctc: 0 for a model that has a decoder"
            )
        if options.rerank is not None:
            raise ConfigError("decode.rerank: transcripts cannot be reranked; set decode.rerank: none")

    def encode_input(self, inputs: Sequence[MediaInput], first_line: int) -> list[list[Listed]]:
        return [[self._list(given.path)] if given.path else [] for given in inputs]

    def _list(self, path: str) -> Listed:
        frames, most = self.mel.frames(*wav_size(path)), self.model.max_source
        if most is not None and frames > most:
            raise DataError(
                f"{path}: the recording has {frames:,} frames, and the model has positions for {most:,} only; cut it into "
                "shorter files"
            )
        return Listed([], path, length=frames)

    def run(self, parts: list[Listed], control: Cancellation | None = None) -> list[list[Prediction]]:
        recordings = [features(part.path, self.mel) for part in parts]
        with self.arithmetic():
            encoded = self.model.encode(lay_out_recordings(recordings).to(self.model.device))
            hypotheses = self._search(recordings, encoded, control)
        best = self.options.config.n_best
        return [[self.write(each) for each in some[:best]] for some in hypotheses]

    def join_outputs(self, given: MediaInput, parts: list[Any], results: list[list[Prediction]]) -> Prediction:
        """The alignment of CTC is under "ctc": ones where a token is said, over the vectors of the encoder."""
        transcript = super().join_outputs(given, parts, results)
        if given.attention and transcript.ids:
            source = lay_out_recordings([features(given.path, self.mel)]).to(self.model.device)
            encoded = self.add_attention(transcript, source)
            transcript.source_tokens = [str(number) for number in range(1, encoded.memory.size(1) + 1)]
            if isinstance(self.model, CtcModel | JointModel):
                transcript.attention["ctc"] = self._alignment(transcript.ids[:-1], encoded)
        return transcript

    @torch.inference_mode()
    def _alignment(self, ids: list[int], encoded: Encoded) -> Weights:
        """[1, T, S]: ones where the best path of a text says each of its tokens; none for EOS."""
        emitted: CtcOutputs = self.model.ctc(encoded)
        marks = alignment_marks(emitted.logits, emitted.lengths, ids, blank=emitted.blank)
        return np.pad(marks, ((0, 1), (0, 0)))[None]

    def explanation(self, prediction: Prediction, text: str) -> str:
        """HTML with the spectrogram and the places where each token was heard."""
        frames = features(text.strip(), self.mel)
        return spectrogram_rows(frames, len(frames) * self.mel.step / self.mel.rate, prediction)

    def listen(self, sound: Any) -> Iterator[str]:
        from weft.tasks.transcription.streaming import transcribe_stream  # which wraps this predictor

        return transcribe_stream(self, sound)

    def _search(self, recordings: Sequence[Frames], encoded: Encoded, control: Cancellation | None) -> list[list[Hypothesis]]:
        weight, width = self.weight, self.options.search.width(self.options.candidates)
        if not weight:
            return self._attend(recordings, encoded, self.options.candidates, control)
        assert isinstance(self.model, CtcModel | JointModel)
        emitted: CtcOutputs = self.model.ctc(encoded)
        aligned = self._align(emitted, width)
        if weight == 1:
            return aligned
        assert isinstance(self.model, JointModel)
        attended = self._attend(recordings, encoded, width, control)
        candidates = [
            [list(text) for text in dict.fromkeys(tuple(each.tokens[:-1]) for each in some if each.tokens[-1:] == [EOS])]
            for some in [[*ours, *theirs] for ours, theirs in zip(attended, aligned, strict=True)]
        ]
        return rescore_with_ctc(
            self.model.decoder, encoded, emitted.logits, emitted.lengths, candidates, blank=emitted.blank, weight=weight
        )

    def _align(self, emitted: CtcOutputs, width: int) -> list[list[Hypothesis]]:
        """The texts that CTC finds, each with EOS."""
        logits, lengths, blank = emitted.logits, emitted.lengths, emitted.blank
        if width == 1:
            paths = [[each] for each in texts_of(*best_paths(logits, lengths), lengths, blank=blank)]
        else:
            paths = prefix_beams(logits, lengths, blank=blank, width=width, best=width)
        return [[Hypothesis(each.score, [*each.tokens, EOS]) for each in some] for some in paths]

    def _attend(
        self, recordings: Sequence[Frames], encoded: Encoded, n_best: int, control: Cancellation | None
    ) -> list[list[Hypothesis]]:
        """The texts that the decoder finds."""
        request = self.options.request([-(-len(frames) // self.model.encoder.shortens) for frames in recordings])
        seeds = [seed_of(frames.tobytes()) for frames in recordings]
        return self.run_search(encoded, replace(request, seeds=seeds, n_best=n_best, cancellation=control))[0]
