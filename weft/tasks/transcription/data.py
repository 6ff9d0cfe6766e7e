"""Recordings and their texts as a corpus and as batches: columns `source`, log-mel frames, and `target`, with EOS at the end.

Shapes: B recordings · T frames · M mel bands.
"""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import torch

from weft.data.batch import EOS, Layout, PairBatch, Source
from weft.data.column_checks_and_listed_files import listed_files
from weft.data.corpus import Columns, Corpus, Encoding, ids_below
from weft.data.formats import Texts
from weft.data.sentence_pairs import PairFilters, make_pairs
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.tasks.transcription.log_mel import Frames, LogMel, features

RECORDINGS = listed_files((".wav",))

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
        columns: Columns = {"source": [sources[i] for i in kept], "target": [[*targets[i], EOS] for i in kept]}
        return {**columns, **filters.hashes(texts, kept)}, reasons

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


def lay_out_recordings(recordings: Sequence[Frames]) -> Source:
    """The frames [T, M] of recordings as a source [B, T, M], padded if their lengths differ."""
    lengths = [len(frames) for frames in recordings]
    block = torch.zeros(len(recordings), max(lengths), recordings[0].shape[1])
    for row, frames in zip(block, recordings, strict=True):
        row[: len(frames)] = torch.from_numpy(frames)
    return Source(block, None if len(set(lengths)) == 1 else Layout.padded(lengths))


def random_recordings(length: int, rows: int, mels: int, vocabulary: int, *, rounded: bool) -> PairBatch:
    """Random frames, with a text of an eighth of their number."""
    draw, tokens = np.random.default_rng(length), max(1, length // 8)
    frames = draw.standard_normal((rows * length, mels), np.float32)
    text = draw.integers(RESERVED, max(RESERVED + 1, vocabulary), rows * tokens)
    return make_pairs(frames, text, np.tile([length, tokens], (rows, 1)), rounded=rounded, budget=rows * length)
