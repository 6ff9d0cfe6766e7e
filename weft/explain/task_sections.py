"""Explains what is not a translation: labels, tags, captions, transcripts, each as a section of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from weft.errors import ConfigError, DataError
from weft.explain.explain_labels import label_body, tags_body
from weft.explain.explain_media import caption_body, transcript_body
from weft.explain.explanation import Explanation
from weft.explain.html_page import asset, page
from weft.inference.predictor import Predictor
from weft.tasks.captioning.predictor import CaptionPredictor
from weft.tasks.classification.predictor import LabelPredictor
from weft.tasks.tagging.predictor import TaggingPredictor
from weft.tasks.transcription.predictor import TranscriptionPredictor

BODIES: Mapping[type, Callable[[Any, Any, str], str]] = {
    LabelPredictor: label_body,
    TaggingPredictor: tags_body,
    CaptionPredictor: caption_body,
    TranscriptionPredictor: transcript_body,
}
"""Kind of predictor → function that returns the HTML of a section, given the predictor, what it said, and its input.

Predictors of installed packages have a method `explanation_body` instead."""


@dataclass(frozen=True)
class Section:
    """What a run says about an input, and why, as HTML."""

    run: str
    said: str
    body: str

    def _repr_html_(self) -> str:
        """Shows the page in a notebook, isolated from the notebook's styles."""
        return (
            f'<iframe srcdoc="{escape(static_page([self]))}" title="weft explain" '
            'style="width:100%;height:30em;border:0" sandbox=""></iframe>'
        )


def explain_input(predictor: Predictor[Any, Any], text: str, run: str = "") -> Section:
    """Explains what a model says about an input. Raises ConfigError if nothing can be shown of this kind of model."""
    own = getattr(type(predictor), "explanation_body", None)
    body = next((body for kind, body in BODIES.items() if isinstance(predictor, kind)), own)
    if body is None:
        raise ConfigError("there is nothing to explain: models of this task have no attention, no labels and no search")
    (found,) = predictor.predict([predictor.parse_input(text, attention=True)])
    if not (found.text or found.source_tokens):
        raise DataError("there is nothing to explain in an empty input; give a text, a document or the name of a file")
    return Section(run, " ".join(found.text.split()), body(predictor, found, text))


def explain_page(found: Sequence[Explanation | Section], title: str = "weft explain") -> str:
    """The page of explanations, all of translations or none."""
    sections = [each for each in found if isinstance(each, Section)]
    translations = [each for each in found if isinstance(each, Explanation)]
    if sections and translations:
        raise ConfigError("one run translates and another does not; explain them one by one")
    return static_page(sections, title) if sections else page(translations, title)


def static_page(sections: Sequence[Section], title: str = "weft explain") -> str:
    """An HTML page without scripts, which needs no network."""
    shown = "".join(
        f"<section>\n<h2>{escape(each.said) or '(nothing)'} <small>{escape(each.run)}</small></h2>\n{each.body}</section>\n"
        for each in sections
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{asset('base.css')}{asset('sections.css')}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1></header>\n<main>\n{shown}</main>\n</body>\n</html>\n"
    )
