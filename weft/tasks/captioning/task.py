"""Captioning: a text for each picture, cross-entropy with teacher forcing, scored by CIDEr-D and BLEU-4 of decoded captions."""

from __future__ import annotations

from functools import cached_property
from html import escape

import numpy as np
from pydantic import PositiveInt

from weft.explain.attention_heatmap import mean_attention
from weft.explain.html_parts import image, notes
from weft.inference.decoding_options import DecodingOptions, Warn
from weft.inference.predictor import Prediction
from weft.models.base import Model, Network
from weft.tasks.base import LOSS, Measure, Share, TaskContext, TaskInfo
from weft.tasks.captioning.data import CaptionedImages, captions_by_image, listed_images, read_image
from weft.tasks.captioning.metrics import CaptionBleu, CiderD
from weft.tasks.captioning.predictor import CaptionPredictor
from weft.tasks.seq2seq_task import Seq2SeqObjective, Seq2SeqTask

DARKEST = 215
"""How much of a place without attention is hidden on a page that explains a caption, of 255."""


class CaptioningTask(CaptionedImages, Seq2SeqTask):
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
        self.pictures, self.data_format = {}, listed_images(lowercase=lowercase)

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
