"""The JSON API: translations with scores, alternatives and attention, and the options of the search."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from weft.decoding.predictor import Prediction
from weft.errors import DataError
from weft.explain.html_page import explain_page
from weft.serve.document_reader_processes import LONG
from weft.serve.fair_queue import SHORT
from weft.serve.languages import detect_language
from weft.serve.request_and_response import (
    ERRORS,
    ModelDocument,
    PlainRoute,
    TranslateResponse,
    admitted_body,
    body_schema,
    cells,
    document,
    with_choices,
)
from weft.serve.request_batcher import too_many_cells
from weft.serve.served_model import Options, ServedModel, TranslationQuery
from weft.serve.server_processes import reload_others
from weft.serve.service import Service, client_of, note
from weft.tasks.translation.documents import Format
from weft.tasks.translation.glossary import NO_TERMS, Glossary, Terms
from weft.tasks.translation.segmenter import Translation

Text = Annotated[str, Field(max_length=1 << 20)]
Term = Annotated[str, Field(min_length=1, max_length=200)]
TermList = Annotated[list[Term], Field(max_length=32)]
GlossaryTerm = Annotated[str, Field(pattern=r"^!?\s*[^!\s]", max_length=200)]

PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "media-src data:"
)
"""Lets the script inside the explanation page run, but in an opaque origin: it cannot reach this server."""

ALIGNING = 32
"""Attention weights that may be averaged for an alignment, as a multiple of those that may be sent."""

MAX_EXPLAINED_TOKENS, MAX_EXPLAINED_WORK = 200, 3_200
"""Tokens of the longest sentence that is explained, and of all sentences, times the beam size."""

FEW = 8
"""The most translations that are converted to JSON in the event loop; for few, this is faster than another thread."""

MANY = 20_000
"""The most attention weights that are converted to JSON by this process, which does nothing else meanwhile, in any thread."""

OPTIONS = (
    *("beam", "length_penalty", "max_length", "min_length", "n_best", "no_repeat_ngram"),
    *("sample", "seed", "sentences", "temperature", "top_k", "top_p"),
)


class TranslateRequest(BaseModel):
    """Texts, a model or a language pair, and search options. Options left out default to the run's configuration."""

    model_config = ConfigDict(extra="forbid")

    text: Text | Annotated[list[Text], Field(max_length=10_000)] = Field(
        description="one line of text, or a list of lines; documents if format is html, srt or xliff"
    )
    format: Format = Field("text", description="text, or html, srt or xliff for documents whose markup stays")
    model: str | None = Field(None, description="name of a model, as listed by /v1/models")
    source: str | None = Field(None, description="source language, or auto to detect it, if no model is named")
    target: str | None = Field(None, description="target language, if no model is named")
    beam: int | None = Field(None, ge=1, description="beam size; 1: greedy search")
    n_best: int | None = Field(None, ge=1, description="number of translations for each text")
    length_penalty: float | None = Field(None, ge=-10, le=10, description="exponent of the length that scores are divided by")
    max_length: int | None = Field(None, ge=1, description="maximum number of tokens in a translation")
    min_length: int | None = Field(None, ge=0, le=10_000, description="minimum number of tokens in a translation")
    no_repeat_ngram: int | None = Field(None, ge=0, le=100, description="never repeat an n-gram of this length; 0: off")
    sentences: Literal["auto", "off"] | None = Field(None, description="off: do not split texts into sentences")
    sample: bool | None = Field(None, description="sample instead of searching")
    temperature: float | None = Field(None, ge=0.01, le=100, description="sampling temperature")
    top_k: int | None = Field(None, ge=0, le=1 << 30, description="sample from this many likeliest tokens; 0: all")
    top_p: float | None = Field(None, gt=0, le=1, description="sample from the likeliest tokens with this total probability")
    seed: int | None = Field(None, ge=0, lt=1 << 63, description="random seed of sampling")
    prefix: Text | list[Text] | None = Field(
        None, description="required start of the translation: one for all, or one for each"
    )
    use: TermList = Field([], description="terms that every translation must contain (constrained beam search)")
    avoid: TermList = Field([], description="terms that no translation may contain")
    glossary: Annotated[dict[Term, GlossaryTerm], Field(max_length=100)] = Field(
        {}, description="source terms, each with the term to use wherever it occurs, or to avoid if ! is before it"
    )
    attention: bool = Field(False, description="add the attention weights of every layer that has them")
    alignment: bool = Field(False, description="add the attention between words, averaged over layers and heads")

    @property
    def texts(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def prefixes(self) -> list[str]:
        return [self.prefix] if isinstance(self.prefix, str) else self.prefix or []

    @property
    def glossary_texts(self) -> list[str]:
        """The glossary as one text, if there is one."""
        return [" ".join([*self.glossary.keys(), *self.glossary.values()])] if self.glossary else []

    def terms(self, text: str) -> Terms:
        """The terms for one text."""
        if not (self.use or self.avoid or self.glossary):
            return NO_TERMS
        terms = Glossary(self.glossary.items()).terms(text)
        use, avoid = (*self.use, *terms.use), (*self.avoid, *terms.avoid)
        return Terms(tuple(dict.fromkeys(use)), tuple(dict.fromkeys(avoid)), terms.sources)


class ExplainRequest(BaseModel):
    """One text, a model or a language pair, and the beam size."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=2_000)
    model: str | None = None
    source: str | None = None
    target: str | None = None
    beam: int | None = Field(None, ge=1)


def router(service: Service) -> APIRouter:
    """/v1/translate, /v1/explain, /v1/models and /v1/reload."""
    routes = APIRouter(prefix="/v1", tags=["weft"], responses=ERRORS, route_class=PlainRoute)

    @routes.post(
        "/translate",
        summary="Translate, with scores, alternatives and attention",
        response_model=TranslateResponse,
        openapi_extra=body_schema({"$ref": "#/components/schemas/TranslateRequest"}),
    )
    async def translate(request: Request) -> Response:
        body = await admitted_body(request, service, TranslateRequest)
        service.check(body.texts, body.use + body.avoid + body.glossary_texts, body.prefixes)
        content = await service.attend(request, _translate(service, request, body, await _selected(service, body)))
        return Response(content, media_type="application/json")

    @routes.post(
        "/explain",
        summary="A page that explains how a text is translated",
        response_model=None,
        responses={200: {"description": "an HTML page", "content": {"text/html": {"schema": {"type": "string"}}}}},
        openapi_extra=body_schema(with_choices(ExplainRequest.model_json_schema(), service.models.choices)),
    )
    async def explain(request: Request) -> Response:
        body = await admitted_body(request, service, ExplainRequest)
        service.check([body.text])
        model = service.models.select(body.model, body.source, body.target)
        beam = (("beam", min(body.beam, service.settings.beam)),) if body.beam else ()
        note(request, texts=1, characters=len(body.text), model=model.name)
        explaining = service.readers.do(client_of(request), explain_text, model, body.text, beam, seconds=LONG)
        page = await service.attend(request, explaining)
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    @routes.get("/models", summary="The models of this server")
    async def models() -> list[ModelDocument]:
        return [_document(model, service.settings.beam) for model in service.models.served]

    @routes.post("/reload", summary="Reload all models without interruption", status_code=200)
    async def reload(request: Request) -> list[ModelDocument]:
        if not service.access.keys:
            raise HTTPException(403, "a server without API keys does not reload over HTTP; send it the signal SIGHUP instead")
        service.admit(request, admin=True)
        await service.reload()
        reload_others()
        return await models()

    return routes


async def _selected(service: Service, body: TranslateRequest) -> ServedModel:
    """The model of a request. `source: auto` chooses among the languages that are translated to the target language."""
    models, source = service.models, body.source
    if source == "auto" and body.model is None:
        codes = dict.fromkeys(model.source for model in models.served if model.target == body.target)
        candidates = list(codes) or models.choices["source"]
        source = (await asyncio.to_thread(detect_language, " ".join(body.texts), candidates))[0]["language"]
    return models.select(body.model, source, body.target)


def _document(model: ServedModel, most_beam: int) -> ModelDocument:
    config, names = (
        model.translator.config,
        {"name": model.name, "version": model.version, "source": model.source, "target": model.target},
    )
    beam = config.decode.search.get("width", 1)
    return ModelDocument(**names, kind=config.model["kind"], beam=beam, most_beam=most_beam)


async def _translate(service: Service, request: Request, body: TranslateRequest, model: ServedModel) -> bytes:
    """The response to a request, as JSON."""
    options, limit = _options(body, service.settings.beam, model), service.settings.cells
    if body.format == "text":
        queries = _queries(body, model, options, await _terms(service, request, body, body.texts))
        cells_limit = limit * (1 if body.attention else ALIGNING)
        found = await service.answer(request, queries, cells=cells_limit)
        answers: Sequence[Prediction] = await service.judged(request, model, body.texts, found)
    else:
        if body.prefixes or body.attention or body.alignment or body.use:
            raise HTTPException(400, f"format {body.format}: a document has no prefix, use, attention and alignment")
        documents = await service.documents.segments(client_of(request), body.texts, body.format, model.target)
        segments = [segment for document in documents for segment in document]
        terms = await _terms(service, request, body, [segment.text for segment in segments])
        queries = [
            TranslationQuery(model, each.text, options, terms=wanted, marks=each.marks)
            for each, wanted in zip(segments, terms, strict=True)
        ]
        answers = await service.judged(request, model, [each.text for each in segments], await service.answer(request, queries))
        answers = await service.documents.filled(client_of(request), body.texts, body.format, model.target, answers)
    if (count := cells(answers)) > limit and body.attention:
        raise too_many_cells(count, limit)
    if count > MANY and service.readers.forks:
        return await service.readers.do(client_of(request), content, body, model, answers)
    large = body.attention or body.alignment or body.glossary or len(answers) > FEW
    return await asyncio.to_thread(content, body, model, answers) if large else content(body, model, answers)


def content(body: TranslateRequest, model: ServedModel, translations: Sequence[Prediction]) -> bytes:
    """The response as compact JSON."""
    answers = []
    for text, each in zip(body.texts, translations, strict=True):
        answer = document(model, text, each, attention=body.attention, alignment=body.alignment)
        answer.unmet = body.terms(text).unmet(each.text) or None
        answer.unplaced = (isinstance(each, Translation) and each.unplaced) or None
        answers.append(answer)
    response = TranslateResponse(
        model=model.name, version=model.version, source=model.source, target=model.target, translations=answers
    )
    return response.model_dump_json(exclude_none=True).encode()


async def _terms(service: Service, request: Request, body: TranslateRequest, texts: Sequence[str]) -> list[Terms]:
    """The terms of each text. Another process searches long texts for them."""
    if len(body.glossary) * sum(map(len, texts)) <= 100 * SHORT:
        return find_terms(body, texts)
    return await service.readers.do(client_of(request), find_terms, body, texts)


def find_terms(body: TranslateRequest, texts: Sequence[str]) -> list[Terms]:
    """The terms of each text."""
    return [body.terms(text) for text in texts]


def _queries(body: TranslateRequest, model: ServedModel, options: Options, terms: Sequence[Terms]) -> list[TranslationQuery]:
    """The query of each text."""
    texts, prefixes = body.texts, body.prefixes or [""]
    if any(len(text.splitlines()) > 1 for text in texts):
        raise HTTPException(400, "a text must be one line; send several lines as a list of texts")
    prefixes = prefixes * len(texts) if len(prefixes) == 1 else prefixes
    if len(prefixes) != len(texts):
        counts = f"there are {len(texts)} texts and {len(prefixes)} prefixes"
        raise HTTPException(400, f"{counts}; send one prefix, or one for each text")
    attention = body.attention or body.alignment
    inputs = zip(texts, prefixes, terms, strict=True)
    return [TranslationQuery(model, text, options, prefix, wanted, attention) for text, prefix, wanted in inputs]


def explain_text(model: ServedModel, text: str, options: Options) -> str:
    """A page that explains the sentences of a text. Raises DataError if they take too much work."""
    sentences = model.sentences(text)
    sizes = [model.count(sentence) for sentence in sentences]
    if max(sizes) > MAX_EXPLAINED_TOKENS:
        problem = f"a sentence of {max(sizes)} tokens is too long to be explained"
        raise DataError(f"{problem}; the limit is {MAX_EXPLAINED_TOKENS}")
    beam = int(dict(options).get("beam") or model.translator.config.decode.search.get("width", 1))
    if sum(sizes) * beam > MAX_EXPLAINED_WORK:
        problem = f"{sum(sizes)} tokens are too many to be explained with a beam of {beam}"
        raise DataError(f"{problem}; the limit is {MAX_EXPLAINED_WORK // beam}")
    return explain_page([model.explain(sentence, options) for sentence in sentences], "weft")


def _options(body: TranslateRequest, limit: int, model: ServedModel) -> Options:
    """Returns the options that differ from the run's defaults; refuses those beyond the server's limits."""
    decode = model.translator.config.decode
    named = {"beam": decode.search.get("width"), "sample": decode.search["kind"] == "sample"}
    defaults = {**{name: getattr(decode, name, None) for name in OPTIONS}, **decode.search, **named}
    requested = {name: getattr(body, name) for name in OPTIONS}
    for name in ("beam", "n_best"):
        if requested[name] is not None and requested[name] > limit:
            raise HTTPException(400, f"{name}: {requested[name]} exceeds this server's limit of {limit}")
    if requested["max_length"] is not None:
        requested["max_length"] = min(requested["max_length"], defaults["max_length"])
    return tuple((name, value) for name, value in requested.items() if value is not None and value != defaults.get(name))
