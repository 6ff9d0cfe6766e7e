"""The application: all interfaces, the page, and what every error looks like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata, resources

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from weft.errors import WeftError
from weft.serve import json_api, libretranslate
from weft.serve.request_body import with_choices
from weft.serve.middleware import Guard, Log, log_line
from weft.serve.refusal import Refusal
from weft.serve.service import Service

FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/static/page.css": ("page.css", "text/css"),
    "/static/page.js": ("page.js", "text/javascript"),
    "/static/docs.js": ("docs.js", "text/javascript"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Everything that is served as a file, by its address: no address is ever made into a path."""


def make_app(service: Service, log: Log = log_line) -> Guard:
    """The whole application, guarded."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        service.batcher.close()

    app = FastAPI(
        title="weft",
        version=_version(),
        summary="Trained sequence-to-sequence models behind HTTP.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(json_api.router(service))
    app.include_router(libretranslate.router(service))
    _add_metrics(app, service)
    for address, (name, kind) in FILES.items():
        _add_file(app, address, name, kind)
    _add_errors(app)
    _describe(app, service.models.choices)
    if service.settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=service.settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return Guard(app, service.settings, service.metrics, log)


def _version() -> str:
    try:
        return metadata.version("weft")
    except metadata.PackageNotFoundError:
        return "0"  # a source tree that is not installed


def _add_metrics(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", summary="Counts for Prometheus", tags=["weft"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        if service.door.keys:
            service.admit(request)
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_file(app: FastAPI, address: str, name: str, kind: str) -> None:
    content = resources.files("weft.serve").joinpath("page", name).read_bytes()

    @app.get(address, include_in_schema=False, name=name)
    async def file() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})


def _describe(app: FastAPI, choices: dict[str, list[str]]) -> None:
    """Makes the description, which is kept from then on, with the names of models and languages in it."""
    known = app.openapi()["components"]["schemas"]
    known["TranslateRequest"] = with_choices(known["TranslateRequest"], choices)


def _add_errors(app: FastAPI) -> None:
    """Every error is {"error": "…"}, as LibreTranslate's are."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return JSONResponse({"error": str(error)}, error.status, headers=error.headers)

    @app.exception_handler(WeftError)
    async def wrong(_: Request, error: WeftError) -> Response:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": "internal error"}, 500)  # what happened is in the log

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        said = "; ".join(f"{'.'.join(map(str, each['loc'][1:])) or 'body'}: {each['msg']}" for each in error.errors())
        return JSONResponse({"error": said.encode("utf-8", "replace").decode()}, 422)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)
