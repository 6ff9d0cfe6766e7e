"""Texts and their recordings as a corpus and as batches: columns `source`, token ids with EOS, and `target`, log-mel frames.

Shapes: B texts · T steps of the decoder, each of R frames · M mel bands.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

import numpy as np
import torch

from weft.data.batch import EOS, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.column_checks_and_listed_files import DataFormat, listed_files
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError
from weft.tasks.transcription.data import CHUNK, VERSION
from weft.tasks.transcription.log_mel import Frames, LogMel, features


def spoken_texts(lowercase: bool) -> DataFormat:
    """The format of lists of texts with their recordings."""
    return replace(listed_files((), lowercase=lowercase, side=1), check=check_texts_first)


def check_texts_first(pairs: Pairs, report: Callable[[str], None]) -> None:
    """Raises DataError if files come before texts, as in lists for transcription."""
    first, second = next(iter(pairs))
    if first.lower().endswith(".wav") and not second.lower().endswith(".wav"):
        place = pairs.name.partition("#")[0]
        raise DataError(f"{pairs.name}: its first column names wav files, here {first!r}, not texts. Write {place}#2,1.")


def speech_encoding(source: Tokenizer, mel: LogMel, max_length: int, drop_duplicates: bool = False) -> Encoding:
    """The corpus of texts and their wav files.

    Left out are empty texts, and those with more than `max_length` tokens or frames.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        sources = source.encode_batch([text for text, _ in texts])
        targets = [features(name, mel) for _, name in texts]
        kept, reasons = filters(texts, sources, targets)
        columns: Columns = {"source": [[*sources[i], EOS] for i in kept], "target": [targets[i] for i in kept]}
        return {**columns, **filters.hashes(texts, kept)}, reasons

    # Iterations of Griffin–Lim and the like change no frame.
    frames = LogMel(mel.rate, mel.mels, mel.window, mel.hop, mel.scaling)
    key = ["spoken texts", VERSION, source.digest(), astuple(frames), max_length, drop_duplicates]
    columns = {"source": ids_below(source.size), "target": f"({mel.mels},)float32"}
    return Encoding(key, encode, columns, ["source", "target"], unit="recordings", chunk=CHUNK)


def collate_speech(corpus: Corpus, rows: Rows, group: int, *, budget: int = 0, rounded: bool = False) -> PairBatch:
    """The texts and frames of some rows as a batch, in steps of `group` frames."""
    (ids, counts), (frames, lengths) = corpus.gather("source", rows), corpus.gather("target", rows)
    recordings = np.split(frames, lengths.cumsum()[:-1])
    return make_speech(ids, counts, recordings, group, rows, budget=budget, rounded=rounded)


def make_speech(
    ids: Rows,
    counts: Rows,
    recordings: Sequence[Frames],
    group: int,
    rows: Rows | None = None,
    *,
    budget: int = 0,
    rounded: bool = False,
) -> PairBatch:
    """A batch of texts, given all token ids and their numbers [n], and the frames of each recording.

    Each step writes R = `group` frames, labels [B, T, R · M], and is fed the last frame of the step before, target [B, T, M],
    zeros at first. The last frame of a recording is repeated until its last step is full.
    """
    steps = [np.concatenate([each, np.repeat(each[-1:], -len(each) % group, 0)]) for each in recordings]
    labels = np.concatenate([each.reshape(-1, group * each.shape[1]) for each in steps])
    fed = np.concatenate([np.concatenate([np.zeros_like(each[:1]), each[group - 1 : -1 : group]]) for each in steps])
    lengths = np.stack([counts, [len(each) // group for each in steps]], 1)
    above, below = lay_out(lengths, budget=budget // group, rounded=rounded)
    numbers = torch.arange(len(counts)) if rows is None else torch.from_numpy(rows)
    return PairBatch(numbers, Source(spread(ids, above), above), spread(fed, below), below, spread(labels, below))


def random_speech(length: int, rows: int, vocabulary: int, mels: int, group: int, *, rounded: bool) -> PairBatch:
    """Random frames of random texts, of which each has a token for eight frames."""
    draw, tokens = np.random.default_rng(length), max(1, length // 8)
    ids = draw.integers(RESERVED, max(RESERVED + 1, vocabulary), rows * tokens)
    recordings = list(draw.standard_normal((rows, length, mels), np.float32))
    return make_speech(ids, np.full(rows, tokens), recordings, group, budget=rows * length, rounded=rounded)
