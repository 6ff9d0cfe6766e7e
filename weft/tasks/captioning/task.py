"""Captioning: a text for each picture, cross-entropy with teacher forcing, scored by CIDEr-D and BLEU-4 of decoded captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt

from weft.data.batch import EOS, PairBatch, Source
from weft.data.corpus import Columns, Corpus, Encoding, Rows, ids_below
from weft.data.data_format import listed_files
from weft.data.formats import Pairs, Texts
from weft.data.sentence_pairs import PairFilters
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.decoding.generate import generate
from weft.decoding.search_loop import Cancellation
from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_page import image, notes
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.inference.predictor import BatchItem, Prediction, seed_of
from weft.models.base import Model, Network, Sizes
from weft.tasks.base import LOSS, Measure, Share, TaskContext, TaskInfo
from weft.tasks.captioning.data import (
    CHANNELS,
    CHUNK,
    SUFFIXES,
    Images,
    Pixels,
    augment,
    captions_by_image,
    make_captions,
    read_image,
)
from weft.tasks.captioning.metrics import CaptionBleu, CiderD
from weft.tasks.media_predictor import MediaInput, MediaPredictor
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask

POSITIONS = 64
"""The share of a picture in the budget of a batch, in tokens."""


@dataclass(eq=False)
class PicturePart(BatchItem):
    """The pixels [3, S, S] of a picture."""

    pixels: Pixels = field(kw_only=True)


class CaptionPredictor(MediaPredictor):
    """A model that describes pictures, which it reads with a side of `side` pixels."""

    forks = False
    noun = "picture"

    def __init__(
        self, model: Model, tokenizer: Tokenizer, side: int, options: DecodingOptions, warn: Warn | None = None
    ) -> None:
        super().__init__(model, tokenizer, options, warn)
        self.side = side

    def encode_input(self, inputs: Sequence[MediaInput], first_line: int) -> list[list[PicturePart]]:
        paths = [each.path for each in inputs]
        return [[PicturePart([], length=POSITIONS, pixels=read_image(path, self.side))] if path else [] for path in paths]

    def run(self, parts: list[PicturePart], control: Cancellation | None = None) -> list[list[Prediction]]:
        request = replace(
            self.options.request([]),
            max_tokens=[self.options.config.max_length] * len(parts),
            seeds=[seed_of(part.pixels.tobytes()) for part in parts],
            cancellation=control,
        )
        with self.options.arithmetic(next(self.model.parameters()).dtype, self.options.beams):
            results, _ = generate(self.model, self.model.encode(self._source(parts)), request)
        return [[self.write(each) for each in hypotheses] for hypotheses in results]

    def join_outputs(self, given: MediaInput, parts: list[Any], results: list[list[Prediction]]) -> Prediction:
        """Weights over the picture go row by row through its grid."""
        caption = super().join_outputs(given, parts, results)
        if given.attention and caption.ids:
            places = self.add_attention(caption, self._source(parts)).memory.size(1)
            side = int(places**0.5)
            caption.source_tokens = [f"{place // side + 1},{place % side + 1}" for place in range(places)]
        return caption

    def _source(self, parts: Sequence[PicturePart]) -> Source:
        return Source(torch.from_numpy(np.stack([part.pixels for part in parts])).to(self.model.device))


pass

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
    info = TaskInfo(
        commands=("weft predict {run} picture.jpg", "weft evaluate {run} --data captions.tsv"),
        metric_types=(CiderD, CaptionBleu),
    )
    measures = (*(Measure(metric.key(), metric.name) for metric in info.metric_types), LOSS)
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
            return {"target": [[*targets[i], EOS] for i in kept], "picture": rows}, reasons

        shape = f"({CHANNELS},{self.size},{self.size})uint8"
        key = ["captions", self.target.digest(), data.max_length, drop_duplicates]
        columns = {"target": ids_below(self.target.size), "picture": "uint32"}
        pixels = Encoding(["pictures", self.size], encode_images, {"pixels": shape}, ["pixels"], unit="pictures", chunk=CHUNK)
        captions = Encoding(key, encode_captions, columns, ["target"], unit="captions")
        pictures = pixels.prepare([images], folder=folder, progress=progress)
        corpus = captions.prepare(pairs, folder=folder, progress=progress)
        self.pictures[corpus.folder] = pictures
        return corpus

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Warn | None = None) -> CaptionPredictor:
        assert isinstance(model, Model)
        return CaptionPredictor(model, self.target, self.size, resolved, warn)

    @cached_property
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
