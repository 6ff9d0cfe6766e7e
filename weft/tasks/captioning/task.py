"""Captioning: a text for each picture, cross-entropy with teacher forcing, scored by CIDEr-D and BLEU-4 of decoded captions."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from weft.data.batch import EOS, PairBatch
from weft.data.column_checks_and_listed_files import listed_files
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters
from weft.data.tokenizers import RESERVED
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.models.base import Model, Sizes
from weft.tasks.base import Share, TaskContext, TaskInfo, measures_of
from weft.tasks.captioning.data import (
    CHANNELS,
    CHUNK,
    SUFFIXES,
    Images,
    augment,
    captions_by_image,
    make_captions,
    read_image,
)
from weft.tasks.captioning.metrics import CaptionBleu, CiderD
from weft.tasks.captioning.predictor import CaptionPredictor
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask


class CaptioningTask(Seq2SeqTask):
    """Picture to text: each line of the data is a picture file, a tab and a caption. All captions of a picture are references.

    size: side in pixels that pictures are resized to, after they are cut to a square
    flip: mirror pictures at random in training
    crop: largest share of the side that a random crop of training pictures leaves out; 0: no crops
    lowercase: read and write captions in lower case
    """

    example = "captions.tsv (a picture file, a tab, a caption), or photos.zip,captions.tsv"
    info = TaskInfo(
        commands=("weft predict {run} picture.jpg", "weft evaluate {run} --data captions.tsv"),
        metric_types=(CiderD, CaptionBleu),
        several_references=True,
    )
    measures = measures_of(info.metric_types)
    sentences = (0,)
    mixes = False

    def __init__(
        self,
        context: TaskContext,
        *,
        objective: Seq2SeqObjective,
        size: PositiveInt = 96,
        flip: bool = True,
        crop: Share = 0.2,
        lowercase: bool = True,
    ) -> None:
        super().__init__(context, objective=objective)
        self.size, self.flip, self.crop = size, flip, crop
        self.pictures: dict[Path, Corpus] = {}
        self.data_format = listed_files(SUFFIXES, lowercase=lowercase)

    def examples(self, data: Sequence[str], report: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        """Each picture with all its captions, one per line."""
        return captions_by_image([self.data_format.open(spec) for spec in data])

    def placeholder_sizes(self) -> Sizes:
        return Sizes(CHANNELS, 8, reads="image")

    def vocabularies(self) -> list[str]:
        return [self.target.digest(), str(self.size)]

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> PairBatch:
        rows = np.asarray(rows, dtype=np.int64)
        (labels, lengths), (places, _) = corpus.gather("target", rows), corpus.gather("picture", rows)
        pixels, _ = self.pictures[corpus.folder].gather("pixels", places.astype(np.int64))
        return make_captions(pixels, labels, lengths, rows, budget=budget, rounded=rounded)

    def augmented(self, batch: PairBatch, key: tuple[int, ...]) -> PairBatch:
        if self.flip or self.crop:
            pixels = batch.source.values[: len(batch.rows)].numpy()
            pixels[:] = augment(pixels, np.random.default_rng(key), flip=self.flip, crop=self.crop)
        return batch

    def identity(self) -> str:
        return f"{self.train.folder.name} {self.pictures[self.train.folder].folder.name}"

    def describe(self) -> dict[str, Any]:
        facts = {"ids": self.target.size, "training captions": len(self.train)}
        facts["training pictures"] = len(self.pictures[self.train.folder])
        return facts | ({} if self.valid is None else {"validation pictures": len(self.pictures[self.valid.folder])})

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> PairBatch:
        """Random pictures with random captions."""
        draw = np.random.default_rng(length)
        pixels = draw.integers(0, 256, (rows, CHANNELS, self.size, self.size), np.uint8)
        labels = draw.integers(RESERVED, max(RESERVED + 1, sizes.target), rows * length)
        return make_captions(pixels, labels, np.full(rows, length), budget=rows * length, rounded=rounded)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        """Left out are captions that are empty or too long, and duplicates: those that occurred before with the same image."""
        data, images = self.config.data, Images(pairs)
        drop_duplicates = data.drop_duplicates and training
        filters = PairFilters(data.max_length, None, drop_duplicates)

        def encode_images(paths: list[str]) -> tuple[Columns, dict[str, int]]:
            return {"pixels": [[read_image(path, self.size)] for path in paths]}, {}

        def encode_captions(texts: Texts) -> tuple[Columns, dict[str, int]]:
            targets = self.target.encode_batch([caption for _, caption in texts])
            kept, reasons = filters(texts, targets)
            rows = [[images.places[texts[i][0]]] for i in kept]
            columns: Columns = {"target": [[*targets[i], EOS] for i in kept], "picture": rows}
            return {**columns, **filters.hashes(texts, kept)}, reasons

        shape = f"({CHANNELS},{self.size},{self.size})uint8"
        key = ["captions", self.target.digest(), data.max_length, drop_duplicates]
        columns = {"target": ids_below(self.target.size), "picture": "uint32"}
        pixels = Encoding(["pictures", self.size], encode_images, {"pixels": shape}, ["pixels"], unit="pictures", chunk=CHUNK)
        captions = Encoding(key, encode_captions, columns, ["target"], unit="captions")
        pictures = pixels.prepare([images], folder=folder, processes=data.processes, progress=progress)
        corpus = captions.prepare(pairs, folder=folder, processes=data.processes, progress=progress)
        self.pictures[corpus.folder] = pictures
        return corpus

    def predictor(self, model: Model, resolved: DecodingOptions, warn: Warn | None = None) -> CaptionPredictor:
        return CaptionPredictor(model, self.target, self.size, resolved, warn)

    @cached_property
    def decoded_examples(self) -> list[tuple[str, str]]:
        """Some pictures with all their captions, one per line."""
        train = self.config.train
        return captions_by_image(self.references)[: train.validate_sentences or None] if train.validate_bleu else []

    def explanation(self, predictor: CaptionPredictor, prediction: Any, text: str) -> str:
        """The picture, and for each token the picture with its attention."""
        return predictor.explanation(prediction, text)
