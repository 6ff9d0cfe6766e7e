"""Recordings with their texts, as a corpus: columns `source`, log-mel frames, and `target`, with EOS at the end."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from weft.data.batch import EOS, PairBatch
from weft.data.corpus import Columns, Corpus, Encoding, ids_below
from weft.data.data_format import listed_files
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters, make_pairs
from weft.data.tokenizers import RESERVED
from weft.models.base import Sizes
from weft.tasks.base import Share
from weft.tasks.corpus_task import CorpusTask
from weft.tasks.transcription.log_mel import LogMel, Scaling, features, read_wav
from weft.tasks.transcription.spec_augment import SpecAugment

CHUNK = 256
"""Recordings whose features are held in memory at a time."""

VERSION = 1
"""Changes when the same recording gives other features than before."""


def recording_encoding(target: Tokenizer, mel: LogMel, max_length: int, drop_duplicates: bool = False) -> Encoding:
    """The corpus of wav files and their texts.

    Left out are recordings without a text, and those with more than `max_length` frames or tokens.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        sources = [features(name, mel) for name, _ in texts]
        targets = target.encode_batch([text for _, text in texts])
        kept, reasons = filters(texts, sources, targets)
        return {"source": [sources[i] for i in kept], "target": [[*targets[i], EOS] for i in kept]}, reasons

    key = ["recordings", VERSION, target.digest(), astuple(mel), max_length, drop_duplicates]
    columns = {"source": f"({mel.mels},)float32", "target": ids_below(target.size)}
    return Encoding(key, encode, columns, ["source", "target"], unit="recordings", chunk=CHUNK)


def count_unalignable(corpus: Corpus, shortens: int) -> int:
    """Recordings whose text CTC cannot align: they have fewer vectors than tokens, counting repeated tokens twice.

    shortens: frames per vector of the model.
    """
    frames, tokens = np.asarray(corpus.lengths, np.int64).T
    ids, begins = np.asarray(corpus.values["target"]), np.asarray(corpus.offsets["target"]).astype(np.int64)
    repeats = np.zeros(len(ids) + 1, np.int64)
    repeats[2:] = ids[1:] == ids[:-1]  # EOS ends every row, so no row repeats the end of the one before
    total = repeats.cumsum()
    needed = tokens - 1 + total[begins[1:]] - total[begins[:-1]]
    return int((-(-frames // shortens) < needed).sum())


@dataclass(frozen=True)
class SoundOptions:
    """Features of recordings, and their random changes in training.

    rate: samples per second; recordings of other rates are resampled. 0: the rate of the first training recording
    mels: mel bands per frame
    window: length of a frame in seconds
    hop: seconds from one frame to the next
    scaling: of the bands. recording: to mean 0 and variance 1 in each recording, which hides differences of microphones, and
        of the sounds of a short recording; fixed: by constants, which sound that is transcribed as it comes needs
    time_masks: masks over time per recording (SpecAugment, Park et al. 2019)
    time_mask: frames of the longest such mask; at most a fifth of a recording
    frequency_masks: masks over frequencies per recording
    frequency_mask: bands of the largest such mask
    tempo: largest random change of speed in training; 0.1: ten per cent
    pitch: largest random change of all frequencies in training
    level: largest random change in training of the volume, and of the outermost bands against the middle one, in units of
        scaled bands
    """

    rate: NonNegativeInt = 0
    mels: PositiveInt = 40
    window: PositiveFloat = 0.025
    hop: PositiveFloat = 0.01
    scaling: Scaling = "recording"
    time_masks: NonNegativeInt = 0
    time_mask: NonNegativeInt = 20
    frequency_masks: NonNegativeInt = 0
    frequency_mask: NonNegativeInt = 8
    tempo: Share = 0.0
    pitch: Share = 0.0
    level: NonNegativeFloat = 0.0

    @property
    def mel(self) -> LogMel:
        return LogMel(self.rate, self.mels, self.window, self.hop, self.scaling)

    def augment(self, longest: int) -> SpecAugment:
        """The changes of recordings that have at most `longest` frames."""
        masks = self.time_masks, self.time_mask, self.frequency_masks, self.frequency_mask
        return SpecAugment(*masks, self.tempo, self.pitch, self.level, longest)


class Recordings(CorpusTask):
    """The data of a task on recordings and their texts. mel: the features of a recording · augment: changes in training."""

    data_format = listed_files((".wav",))
    mel: LogMel
    augment: SpecAugment

    def learn(self, train: list[Pairs]) -> None:
        """Takes over the rate of the first recording as well, if none is set."""
        if not self.mel.rate:
            first = next(iter(train[0]))[0]
            self.mel = replace(self.mel, rate=read_wav(first).rate)
            self.config = self.config.replaced({"task.rate": self.mel.rate})
            self.report(f"task.rate: {self.mel.rate:,} samples per second, as in {first}")
        super().learn(train)

    def placeholder_sizes(self) -> Sizes:
        return Sizes(self.mel.mels, 8, reads="frames")

    def encoding(self, *, training: bool) -> Encoding:
        data = self.config.data
        return recording_encoding(self.target, self.mel, data.max_length, data.drop_duplicates and training)

    def augmented(self, batch: PairBatch, key: tuple[int, ...]) -> PairBatch:
        return self.augment.batch(batch, key) if self.augment else batch

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> PairBatch:
        """Random frames, with a text of an eighth of their number."""
        draw, tokens = np.random.default_rng(length), max(1, length // 8)
        frames = draw.standard_normal((rows * length, sizes.source), np.float32)
        text = draw.integers(RESERVED, max(RESERVED + 1, sizes.target), rows * tokens)
        return make_pairs(frames, text, np.tile([length, tokens], (rows, 1)), rounded=rounded, budget=rows * length)
