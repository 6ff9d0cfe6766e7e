"""The web application of `weft watch`: reading needs a key if there are any, changing anything always needs one.

It uses the parts of the server that keep others out (keys, foreign pages, large bodies) and none that run models: those are
commands in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from weft.config.sections import recipe_summary, recipes
from weft.data.cleaning.check import check
from weft.data.cleaning.filters import NAMES
from weft.data.formats import open_pairs
from weft.serve.access_control import AccessControl
from weft.serve.app import add_errors, add_file
from weft.serve.middleware import GuardMiddleware, Log
from weft.serve.prometheus import Metrics
from weft.serve.server_processes import address, listener
from weft.serve.settings import Settings
from weft.version import VERSION
from weft.watch.processes import MachineLoad, Processes, TrainingOrder
from weft.watch.run_reader import RunReader

FILES = {
    "/": "watch/page/index.html",
    "/static/base.css": "explain/assets/base.css",
    "/static/dom.js": "explain/assets/dom.js",
    "/static/server.js": "serve/page/server.js",
    "/static/icon.svg": "serve/page/icon.svg",
    **{f"/static/{name}": f"watch/page/{name}" for name in ("watch.css", "chart.js", "details.js", "train.js", "watch.js")},
}
"""Static files by URL path. The list is fixed: a request path is never turned into a file path."""

BODY = 512 << 20
"""Bytes that an uploaded file may have."""

ARRIVE = 600.0
"""Seconds in which it must have arrived."""

CURVES = 12
"""Runs whose curves are shown together."""


class RunName(BaseModel):
    run: str


class Pair(BaseModel):
    run: str
    other: str


class TextToTry(BaseModel):
    run: str
    text: str


class DataToCheck(BaseModel):
    data: str


class Order(BaseModel):
    name: str
    data: str
    recipe: str = "auto"
    time: str = "20m"
    valid: str = ""


def watch_settings(host: str, port: int, **access: Any) -> Settings:
    """The settings of the page's server. access: keys and hosts, see `Settings`."""
    return Settings(host=host, port=port, body=BODY, arrive=ARRIVE, **access)


def make_app(folder: Path, settings: Settings, *, control: bool, log: Log = lambda facts: None) -> GuardMiddleware:
    """The application for the runs below a folder. control: whether runs may be started and stopped; that needs keys."""
    metrics = Metrics()
    access, reader, processes = AccessControl(settings, metrics), RunReader(folder), Processes(folder.resolve())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        processes.close()

    app = FastAPI(title="weft watch", version=VERSION, docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    def admit(request: Request) -> None:
        if access.keys:
            access.admit(request)

    def admit_change(request: Request) -> None:
        if not control:
            raise HTTPException(403, "this page only shows runs; start it with --control to start and stop them")
        access.admit(request)

    _add_reading(app, reader, processes, admit, control)
    _add_control(app, reader, processes, admit_change)
    for path, name in FILES.items():
        add_file(app, path, name)
    add_errors(app)
    return GuardMiddleware(app, settings, metrics, log)


Admit = Callable[[Request], None]


def _add_reading(app: FastAPI, reader: RunReader, processes: Processes, admit: Admit, control: bool) -> None:
    load = MachineLoad()
    known = {name: recipe_summary(path) for name, path in recipes().items()} if control else {}

    @app.get("/api/recipes")
    def all_recipes(request: Request) -> Any:
        admit(request)
        return JSONResponse(known)

    @app.get("/api/runs")
    def runs(request: Request) -> Any:
        admit(request)
        states = [asdict(each) for each in reader.states()]
        problems = {each["name"]: problem for each in states if (problem := processes.problem(each["name"]))}
        starting = processes.started() if control else []
        about = {"folder": str(reader.folder), "control": control, "version": VERSION, "machine": load()}
        return JSONResponse({**about, "runs": states, "starting": starting, "problems": problems})

    @app.get("/api/run")
    def run(request: Request, run: str) -> Any:
        admit(request)
        return JSONResponse(reader.details(run))

    @app.get("/api/curves")
    def curves(request: Request, run: list[str] = Query(default=[])) -> Any:  # noqa: B008
        admit(request)
        return JSONResponse({name: reader.curves(name) for name in run[:CURVES]})

    @app.get("/api/differences")
    def differences(request: Request, run: list[str] = Query(default=[])) -> Any:  # noqa: B008
        admit(request)
        return JSONResponse({"differences": reader.differences(run[:CURVES])})


def _add_control(app: FastAPI, reader: RunReader, processes: Processes, admit: Admit) -> None:
    @app.post("/api/stop")
    def stop(request: Request, wanted: RunName) -> Any:
        admit(request)
        processes.stop(wanted.run, reader.folder_of(wanted.run))
        return {"done": True}

    @app.post("/api/resume")
    def resume(request: Request, wanted: RunName) -> Any:
        admit(request)
        processes.resume(wanted.run, reader.folder_of(wanted.run))
        return {"done": True}

    @app.post("/api/upload")
    async def upload(request: Request, name: str) -> Any:
        admit(request)
        content = await request.body()
        return {"data": str(await asyncio.to_thread(processes.save_upload, name, content))}

    @app.post("/api/check")
    def check_data(request: Request, wanted: DataToCheck) -> Any:
        admit(request)
        return JSONResponse({**check([open_pairs(wanted.data)]), "about": NAMES})

    @app.post("/api/train")
    def train(request: Request, order: Order) -> Any:
        admit(request)
        processes.train(TrainingOrder(**order.model_dump()))
        return {"done": True}

    @app.post("/api/try")
    def try_run(request: Request, wanted: TextToTry) -> Any:
        admit(request)
        return {"text": processes.predict(reader.folder_of(wanted.run), wanted.text)}

    @app.post("/api/compare")
    def compare(request: Request, wanted: Pair) -> Any:
        admit(request)
        return processes.compare(reader.folder_of(wanted.run), reader.folder_of(wanted.other))


class WatchServer(uvicorn.Server):
    """The server of the page. `run` may be called in any thread; port 0 takes any free port."""

    def __init__(self, folder: Path, settings: Settings, *, control: bool) -> None:
        self._listening = listener(settings.host, settings.port)
        self.address = address(settings.host, self._listening)
        app = make_app(folder, settings, control=control)
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "ws": "none"}
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=5, **options))

    def run(self, sockets: Any = None) -> None:
        """Serves until SIGTERM or SIGINT, or until `stop`."""
        super().run([self._listening])

    def stop(self) -> None:
        """Ends the server. For any thread."""
        self.should_exit = True
