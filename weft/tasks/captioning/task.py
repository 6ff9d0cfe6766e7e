"""Captioning: a text for each picture, cross-entropy with teacher forcing, scored by CIDEr-D and BLEU-4 of decoded captions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from weft.data.batch import PairBatch, Position
from weft.data.batching import Batches
from weft.data.corpus import Corpus, Rows
from weft.data.data_format import listed_files
from weft.data.formats import Pairs
from weft.data.tokenizers import RESERVED
from weft.evaluation.metrics import Metric
from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_parts import image, notes
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import Prediction
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import LOSS, Measure, Share, TaskContext
from weft.tasks.captioning.data import (
    CHANNELS,
    SUFFIXES,
    captions_by_image,
    collate_captions,
    images_of,
    make_captions,
    prepare_captions,
    prepare_images,
    read_image,
)
from weft.tasks.captioning.metrics import CaptionBleu, CiderD
from weft.tasks.captioning.predictor import CaptionPredictor
from weft.tasks.seq2seq_objective import Seq2SeqObjective
from weft.tasks.seq2seq_task import Seq2SeqTask

DARKEST = 215
"""How much of a place without attention is hidden on a page that explains a caption, of 255."""


class CaptioningTask(Seq2SeqTask):
    """Picture to text: each line of the data is a picture file, a tab and a caption. All captions of a picture are references.

    size: side in pixels that pictures are resized to, after they are cut to a square
    flip: mirror pictures at random in training
    crop: largest share of the side that a random crop of training pictures leaves out; 0: no crops
    lowercase: read and write captions in lower case
    """

    example = "captions.tsv (a picture file, a tab, a caption), or photos.zip,captions.tsv"
    commands = ("weft predict {run} picture.jpg", "weft evaluate {run} --data captions.tsv")
    measures = (*(Measure(metric.key(), metric.name) for metric in (CiderD, CaptionBleu)), LOSS)
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
        self.data_format = listed_files(SUFFIXES, lowercase=lowercase)
        self.pictures: dict[Path, Corpus] = {}

    def examples(self, data: Sequence[str], report: Callable[[str], None] = lambda message: None) -> list[tuple[str, str]]:
        """Each picture with all its captions, one per line."""
        return captions_by_image([self.data_format.open(spec) for spec in data])

    def placeholder_sizes(self) -> Sizes:
        return Sizes(CHANNELS, 8, reads="image")

    def vocabularies(self) -> list[str]:
        return [self.target.digest(), str(self.size)]

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> CaptionPredictor:
        assert isinstance(model, Model)
        return CaptionPredictor(model, self.target, self.size, resolved, warn)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return [CiderD(), CaptionBleu()]

    def collate(self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> PairBatch:
        return collate_captions(corpus, self.pictures[corpus.folder], rows, budget=budget, rounded=rounded)

    def batches(self, position: Position) -> Iterator[tuple[PairBatch, Position]]:
        """Augmented pictures follow from the seed and the position alone, so a resumed run sees the same ones."""
        train, pictures = self.config.train, self.pictures[self.train.folder]
        rounded = train.rounded is True
        batches = Batches(self.train.lengths, train.batch_tokens, seed=train.seed, packed=False, rounded=rounded)
        for rows, following in batches.stream(position):
            draw = np.random.default_rng((train.seed, *position))
            options: dict[str, Any] = {"draw": draw, "flip": self.flip, "crop": self.crop} if self.flip or self.crop else {}
            yield collate_captions(self.train, pictures, rows, budget=train.batch_tokens, rounded=rounded, **options), following
            position = following

    def decoded_examples(self) -> list[tuple[str, str]]:
        """Some pictures with all their captions, one per line."""
        train = self.config.train
        return captions_by_image(self.references)[: train.validate_sentences or None] if train.validate_bleu else []

    def explanation(self, predictor: CaptionPredictor, prediction: Prediction, text: str) -> str:
        """The picture, and for each token the picture, dark where there is no attention: the mean of all layers and heads."""
        picture = image(read_image(text.strip(), self.size).transpose(1, 2, 0), "the picture")
        weights = mean_attention(prediction, "cross")
        if weights is None:
            return f"<figure class=picture>{picture}</figure>\n{notes(['the decoder shows no attention weights'])}"
        side = int(weights.shape[-1] ** 0.5)
        figures = [f"<figure class=picture>{picture}<figcaption></figcaption></figure>\n"]
        for token, row in zip(prediction.tokens, weights[:, : side * side], strict=True):
            shade = np.zeros((side, side, 4), np.uint8)
            shade[..., 3] = (DARKEST * (1 - row / max(float(row.max()), 1e-9))).reshape(side, side)
            over = image(shade, f"attention of {token}")
            figures.append(f"<figure class=picture>{picture}{over}<figcaption>{escape(token)}</figcaption></figure>\n")
        return "".join(figures)

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
        data, pictures = self.config.data, images_of(pairs)
        shown = prepare_images(pictures, self.size, folder=folder, progress=progress)
        corpus = prepare_captions(
            pairs,
            pictures.places,
            self.target,
            folder=folder,
            max_length=data.max_length,
            drop_duplicates=data.drop_duplicates and training,
            progress=progress,
        )
        self.pictures[corpus.folder] = shown
        return corpus
