"""The ASGI application: both APIs, the web page, and one format for all errors."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from importlib import resources
from pathlib import PurePosixPath

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from weft.errors import WeftError
from weft.serve import json_api, libretranslate_api, opus_cat_api
from weft.serve.middleware import GuardMiddleware, Log, log_line, one_line
from weft.serve.request_and_response import with_choices, with_security
from weft.serve.service import Service
from weft.version import VERSION

STATIC = (
    "page.css",
    "page.js",
    "choices.js",
    "pairs.js",
    "files.js",
    "server.js",
    "docs.css",
    "docs.js",
    "examples.js",
    "icon.svg",
)
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {
    "/": "serve/page/index.html",
    "/docs": "serve/page/docs.html",
    "/static/base.css": "explain/assets/base.css",
    "/static/dom.js": "explain/assets/dom.js",
    **{f"/static/{name}": f"serve/page/{name}" for name in STATIC},
}
"""Static files by URL path. The list is fixed: a request path is never turned into a file path."""

MAX_ERRORS = 5
"""Fields of a request that an error names."""
ALTERNATIVE = re.compile(r"constrained-str|str|list\[.*\]")
"""What pydantic puts behind the name of a field that may be a text or a list of them."""

PUBLIC = ("/health", "/languages", "/frontend/settings", "/v1/models", "/download_file/{name}")
"""Paths that need no API key."""


def make_app(service: Service, log: Log = log_line) -> GuardMiddleware:
    """Builds the whole application, wrapped in the middleware."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start(service.models.remote is not None)
        await asyncio.to_thread(service.batcher.warm_up, service.models.served)
        yield
        service.batcher.close()

    app = FastAPI(
        title="weft",
        version=VERSION,
        summary="An HTTP API for trained sequence-to-sequence models.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    for router in (json_api.router, libretranslate_api.router, libretranslate_api.file_router, opus_cat_api.router):
        app.include_router(router(service))

    @app.get("/metrics", summary="Metrics in Prometheus format", tags=["weft"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        if service.access.keys:
            service.admit(request)
        return PlainTextResponse(await asyncio.to_thread(service.metrics.text), media_type="text/plain; version=0.0.4")

    for path, name in FILES.items():
        add_file(app, path, name)
    add_errors(app)
    # FastAPI caches the schema after the first call.
    schema = app.openapi()
    with_security(schema, bool(service.access.keys), PUBLIC)
    request = with_choices(json_api.TranslateRequest.model_json_schema(), service.models.choices_with_auto)
    schema["components"]["schemas"]["TranslateRequest"] = request
    if service.settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=service.settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return GuardMiddleware(app, service.settings, service.metrics, log)


def add_file(app: FastAPI, path: str, name: str) -> None:
    """Serves a file of the package under a path."""
    content = resources.files("weft").joinpath(name).read_bytes()
    media_type = f"{MEDIA_TYPES[PurePosixPath(name).suffix]}; charset=utf-8"

    @app.get(path, include_in_schema=False, name=name)
    async def file() -> Response:
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})


def add_errors(app: FastAPI) -> None:
    """Formats every error as {"error": "…"}, as LibreTranslate does, and as a page for browsers that ask for one."""
    template = resources.files("weft").joinpath("serve/page/error.html").read_text("utf-8")

    def response(request: Request, message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
        message = one_line(message)
        if request.headers.get("accept", "").startswith("text/html"):
            home = "../" * (request.url.path.count("/") - 1) or "./"
            page = template.replace("{{home}}", home).replace("{{message}}", escape(_sentence(message)))
            return HTMLResponse(page, status, headers)
        return JSONResponse({"error": message}, status, headers)

    @app.exception_handler(WeftError)
    async def wrong(request: Request, error: WeftError) -> Response:
        return response(request, str(error), 400)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return response(request, "internal error", 500)  # the middleware logs the traceback

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return response(request, _problems(error), 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return response(request, str(error.detail), error.status_code, error.headers)


def _problems(error: RequestValidationError) -> str:
    """The fields of a request that are wrong, each with all that could be there instead."""
    found: dict[str, list[str]] = {}
    for each in error.errors()[:MAX_ERRORS]:
        field = ".".join(step for step in map(str, each["loc"][1:]) if not ALTERNATIVE.fullmatch(step))
        found.setdefault(one_line(field, 40) or "body", []).append(each["msg"])
    return "; ".join(f"{field}: {', or: '.join(dict.fromkeys(messages))}" for field, messages in found.items())


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")
