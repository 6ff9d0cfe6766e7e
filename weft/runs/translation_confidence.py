"""The confidence in translations as they come: a run of the task quality estimates it for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from weft.data.formats import join_texts
from weft.decoding.decoding_options import Warn
from weft.decoding.predictor import Prediction
from weft.errors import ConfigError
from weft.runs.trained_model import Trained
from weft.runs.translator import Translator, load, named
from weft.tasks.quality.predictor import Quality
from weft.tasks.quality.task import QualityTask
from weft.tasks.translation.segmenter import Translation

TOGETHER = 64
"""Translations that are judged at a time."""

Judged = TypeVar("Judged", bound=Prediction)


def load_estimator(run: str | Path | Sequence[str | Path], device: str = "auto", warn: Warn | None = None) -> Translator:
    """A run of the task quality. Raises ConfigError for runs of other tasks."""
    trained = load(run, device=device, warn=warn)
    if isinstance(trained.task, QualityTask):
        return trained
    kind = trained.config.task["kind"]
    raise ConfigError(f"{named(run)}: its task is {kind}, and the confidence in translations needs a run of the task quality")


def question(source: str, translation: Prediction) -> str:
    """The input of an estimator for a translation, without its markup; empty if one of both texts is blank."""
    written = translation.text
    if isinstance(translation, Translation) and translation.runs:
        written = "".join(text for text, is_markup in translation.runs if not is_markup)
    return join_texts([source, written]) if source.strip() and written.strip() else ""


def with_quality(translation: Judged, quality: Prediction) -> Judged:
    """A translation with its estimated quality; as it is, if it has no text."""
    if not (isinstance(translation, Translation) and isinstance(quality, Quality) and quality.text):
        return translation
    return replace(translation, quality=quality)


def judged(
    estimator: Trained, sources: Iterable[str], translations: Iterable[Judged], ready: Callable[[], bool] | None = None
) -> Iterator[Judged]:
    """The translations with their estimated quality, in order.

    ready: whether the next translation can be had without waiting; if not, the ones so far are judged first. Without it, many
    are judged together.
    """
    predictor = estimator.predictor()
    pairs = zip(sources, translations)
    while some := list(_window(pairs, ready)):
        inputs = [predictor.parse_input(question(source, each)) for source, each in some]
        for (_, each), quality in zip(some, predictor.predict(inputs, together=True), strict=True):
            yield with_quality(each, quality)


def _window(pairs: Iterator[tuple[str, Judged]], ready: Callable[[], bool] | None) -> Iterator[tuple[str, Judged]]:
    """The next pair, and up to `TOGETHER` if they are ready."""
    for pair in islice(pairs, TOGETHER):
        yield pair
        if ready is not None and not ready():
            return
