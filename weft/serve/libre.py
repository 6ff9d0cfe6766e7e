"""LibreTranslate's HTTP interface, so that its clients work unchanged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from weft.inference.predictor import Prediction
from weft.serve.ask import Ask
from weft.serve.detect import Detector, language_name
from weft.serve.documents import ERRORS
from weft.serve.fields import Fields, body_schema, read_fields, with_choices
from weft.serve.html import Page
from weft.serve.models import Served
from weft.serve.refusal import Refusal
from weft.serve.service import Service, note

ENDS = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")

ONE_OR_MORE = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
TRANSLATE: dict[str, Any] = {
    "q": {**ONE_OR_MORE, "description": "text to translate, or a list of texts"},
    "source": {"type": "string", "description": "source language, or auto"},
    "target": {"type": "string", "description": "target language"},
    "format": {"type": "string", "enum": ["text", "html"], "default": "text"},
    "alternatives": {"type": "integer", "minimum": 0, "default": 0, "description": "other translations, so many"},
    "api_key": {"type": "string"},
}
DETECT: Fields = {"type": "object", "properties": {"q": ONE_OR_MORE}, "required": ["q"]}


def router(service: Service) -> APIRouter:
    """/translate, /detect, /languages, /health and /frontend/settings."""
    routes = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    detector = Detector()

    choices = {**service.models.choices, "source": ["auto", *service.models.sources]}
    body = with_choices({"type": "object", "properties": TRANSLATE, "required": ["q", "source", "target"]}, choices)

    @routes.post("/translate", summary="Translate text or HTML", openapi_extra=body_schema(body))
    async def translate(request: Request) -> Fields:
        given = await read_fields(request)
        service.admit(request, given.get("api_key") or given.get("apiKey"))
        texts, many = _texts(given)
        service.check(texts)
        guess = None
        source, target = (_word(given, name) for name in ("source", "target"))
        if source == "auto":
            guess = detector.detect(" ".join(texts), service.models.sources)[0]
            source = guess["language"]
        model = service.models.between(source, target)
        pages = [Page(text) if _format(given) == "html" else Lines(text) for text in texts]
        count = _alternatives(given, service.settings.beam)
        options = (("n_best", count + 1),) if count else ()
        found = await service.answer(request, [Ask(model, part, options) for page in pages for part in page.parts])
        return _answer(pages, found, many, count, guess)

    @routes.post("/detect", summary="Which of the source languages a text is in", openapi_extra=body_schema(DETECT))
    async def detect(request: Request) -> list[Fields]:
        given = await read_fields(request)
        service.admit(request, given.get("api_key"))
        texts, _ = _texts(given)
        service.check(texts)
        note(request, characters=sum(map(len, texts)))
        return detector.detect(" ".join(texts), service.models.sources)

    @routes.get("/languages", summary="The languages and what each can be translated to")
    async def languages() -> list[Fields]:
        return known_languages(service.models.served)

    @routes.get("/health", summary="Whether the server is up")
    async def health() -> Fields:
        return {"status": "ok"}

    @routes.get("/frontend/settings", summary="What a page needs to know")
    async def settings() -> Fields:
        first = service.models.served[0]
        return {
            "apiKeys": bool(service.door.keys),
            "charLimit": service.settings.characters,
            "frontendTimeout": 500,
            "keyRequired": bool(service.door.keys),
            "language": {"source": _named(first.source), "target": _named(first.target)},
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    return routes


class Lines:
    """A plain text: its lines are translated one by one, and what parts them stays."""

    def __init__(self, text: str) -> None:
        self._pieces = ENDS.split(text)
        self.parts = [piece for piece in self._pieces[::2] if piece.strip()]

    def filled(self, texts: Sequence[str]) -> str:
        following = iter(texts)
        lines = [next(following) if k % 2 == 0 and piece.strip() else piece for k, piece in enumerate(self._pieces)]
        return "".join(lines)


def known_languages(served: Sequence[Served]) -> list[Fields]:
    """Every language that is read or written, with those it can be translated to."""
    codes = dict.fromkeys(code for model in served for code in (model.source, model.target))
    reach = {code: sorted({model.target for model in served if model.source == code}) for code in codes}
    return [{**_named(code), "targets": reach[code]} for code in codes]


def _named(code: str) -> Fields:
    return {"code": code, "name": language_name(code)}


def _answer(pages: Sequence[Lines | Page], found: Sequence[Prediction], many: bool, count: int, guess: Fields | None) -> Fields:
    following = iter(found)
    groups = [[next(following) for _ in page.parts] for page in pages]
    best = [page.filled([each.text for each in group]) for page, group in zip(pages, groups, strict=True)]
    answer: Fields = {"translatedText": best if many else best[0]}
    if guess is not None:
        answer["detectedLanguage"] = [guess] * len(best) if many else guess
    if count:
        others = [_others(page, group, count) for page, group in zip(pages, groups, strict=True)]
        answer["alternatives"] = others if many else others[0]
    return answer


def _others(page: Lines | Page, group: Sequence[Prediction], count: int) -> list[str]:
    """The second best of every part together, the third best, and so on; a part that has no more keeps its best."""
    ranks = range(min(count, max((len(each.alternatives) for each in group), default=0)))
    ranked = [[each.alternatives[k] if k < len(each.alternatives) else each for each in group] for k in ranks]
    return [page.filled([each.text for each in rank]) for rank in ranked]


def _texts(given: Fields) -> tuple[list[str], bool]:
    """The texts, and whether they came as a list."""
    q = given.get("q")
    if q is None or q == "":
        raise Refusal(400, "Invalid request: missing q parameter")
    texts = q if isinstance(q, list) else [q]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refusal(400, "Invalid request: q has to be a text or a list of texts")
    return texts, isinstance(q, list)


def _word(given: Fields, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(400, f"Invalid request: missing {name} parameter")
    if not value.isprintable() or len(value) > 40:
        raise Refusal(400, f"Invalid request: {name} is no language")
    return value


def _format(given: Fields) -> str:
    value = given.get("format") or "text"
    if value not in ("text", "html"):
        raise Refusal(400, "Invalid request: format has to be text or html")
    return str(value)


def _alternatives(given: Fields, most: int) -> int:
    value = given.get("alternatives") or 0
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < most:
        raise Refusal(400, f"Invalid request: alternatives has to be a number from 0 to {most - 1}")
    return int(value)
