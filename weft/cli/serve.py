"""`weft serve`."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from weft.cli.input_and_output import warn
from weft.cli.options import DEVICE
from weft.errors import ConfigError
from weft.garbage_collection import collect_in_short_pauses
from weft.serve.settings import Settings
from weft.version import install

ADAPTED = typer.Option(True, "--adapted/--no-adapted", help="Use the newest adapter that `weft adapt` made of a run.")
THREADS = typer.Option(0, help="CPU threads of a model; 0: its share of the cores, less one while requests wait.", min=0)
CACHE = typer.Option(64, help="MiB of translations kept in the cache.", min=0)


def serve(
    run: list[str] = typer.Argument(
        help="Folders of trained runs, each optionally with its languages: en-de=RUN. RUN,RUN is an ensemble.", metavar="RUN…"
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 0.0.0.0 serves other machines."),
    port: int = typer.Option(5000, help="Port to listen on; 0 takes a free one.", min=0, max=65535),
    api_key: list[str] = typer.Option([], help="A key that requests have to present. Repeatable.", metavar="KEY"),
    api_keys: Path = typer.Option(None, help="File with a key per line, then optionally name=NAME, rate=NUMBER and admin."),
    admin_key: list[str] = typer.Option([], help="A key that may also reload the runs.", metavar="KEY"),
    rate: int = typer.Option(0, help="Requests per minute for each key or address; 0: no limit.", min=0),
    char_limit: int = typer.Option(10_000, help="Maximum characters per text.", min=1),
    queue: int = typer.Option(2_000, help="Sentences that may wait; beyond that, 503 with Retry-After.", min=1),
    timeout: float = typer.Option(60.0, help="Seconds that a request may take.", min=0.1),
    window: float = typer.Option(4.0, help="Milliseconds in which requests are collected into a batch.", min=0),
    batch_time: float = typer.Option(200.0, help="Milliseconds that a batch may take.", min=1),
    batch_tokens: int = typer.Option(
        None, help="Source tokens per batch; 0: no batches. Default: 4096, on a GPU usually 32768.", min=0
    ),
    cache: int = CACHE,
    max_beam: int = typer.Option(16, help="The widest beam that a request may ask for.", min=1),
    cors: list[str] = typer.Option([], help="Site whose pages may send requests, or *. Repeatable.", metavar="ORIGIN"),
    proxy: str = typer.Option("", help="Address of a proxy whose X-Forwarded-For header is trusted.", show_default=False),
    allowed_host: list[str] = typer.Option(
        [], help="Name under which the server answers, such as that of a proxy. Repeatable.", metavar="NAME"
    ),
    prefix: str = typer.Option("", help="Path of the server behind a proxy, such as /weft.", show_default=False),
    memory: list[str] = typer.Option([], help="Translation memory: its exact matches are the answers.", metavar="FILE"),
    quality: list[str] = typer.Option(
        [], help="Run of the task quality, optionally en-de=RUN; answers then have a confidence. Repeatable.", metavar="RUN"
    ),
    suggestions: Path = typer.Option(None, help="File for translations that users suggest: a .tmx, or JSON lines."),
    adapted: bool = ADAPTED,
    log_text: bool = typer.Option(False, "--log-text", help="Write the texts to the log, too."),
    fast: bool = typer.Option(
        True,
        "--fast/--no-fast",
        help="Use compiled C++ kernels on a CPU if there is a compiler; at least 99 % of texts stay the same.",
    ),
    device: str = DEVICE,
    workers: int = typer.Option(1, help="Processes that share the port. Several GPUs are taken in turn.", min=1),
    model_process: bool = typer.Option(
        None,
        "--model-process/--no-model-process",
        help="Run the models in a separate process that all workers share. Default: on a GPU.",
    ),
    threads: int = THREADS,
) -> None:
    """Serve trained runs over HTTP: a web page, LibreTranslate's interface, and a JSON interface with all search options.

    SIGHUP reloads the runs without a pause. SIGTERM finishes the requests that were accepted, then exits.
    """
    _check_packages()
    cores = threads or max(1, (os.cpu_count() or 2) // workers)
    processes: dict[str, Any] = {"workers": workers, "threads": threads or max(1, cores - 1), "alone": cores}
    processes |= {"engines": _engines(device, workers, model_process), "prefix": prefix, "proxies": proxy, "log_text": log_text}
    processes["lanes"] = _lanes(device, cores)
    limits: dict[str, Any] = {"rate": rate, "characters": char_limit, "queue": queue, "timeout": timeout, "beam": max_beam}
    limits |= {"window": window / 1000, "slice": batch_time / 1000, "cache": cache << 20}
    limits |= {"batch_tokens": _batch_tokens(processes["engines"], device) if batch_tokens is None else batch_tokens}
    access: dict[str, Any] = {"keys": frozenset(api_key), "admin_keys": frozenset(admin_key), "key_file": str(api_keys or "")}
    access |= {"origins": tuple(cors), "hosts": tuple(allowed_host), "suggestions": str(suggestions or "")}
    opening = {"device": device, "fast": fast, "memories": memory, "estimators": quality, "adapted": adapted}
    import_module("weft.serve.server")  # whose objects, and those of torch, then need not be looked at again
    with collect_in_short_pauses():
        _run(Settings(host=host, port=port, **limits, **processes, **access), run, opening)


def _check_packages() -> None:
    try:
        for package in ("babel", "fastapi", "prometheus_client", "py3langid", "python_multipart", "uvicorn"):
            import_module(package)
    except ImportError as error:
        raise ConfigError(f"weft serve needs the package {error.name}: {install('serve')}") from None


def _run(settings: Settings, run: Sequence[str], opening: dict[str, Any]) -> None:
    """Runs a server, or one of its processes. opening: how models are opened, see `Models`."""
    from weft.serve.access_control import read_keys
    from weft.serve.served_models import Models, parse_location
    from weft.serve.server import Server
    from weft.serve.server_processes import WORKER, Workers

    if worker := os.environ.get(WORKER):
        _work(settings, run, {**opening, "device": _device(opening["device"], int(worker))})
        return
    if settings.prefix and (not settings.prefix.startswith("/") or settings.prefix.endswith("/")):
        raise ConfigError(f"--prefix: {settings.prefix} must start with / and not end with it, such as /weft")
    if "*" in settings.proxies:
        warn("--proxy '*' believes every client that names another address; give the address of your proxy instead")
    keys = read_keys(settings.keys, settings.key_file, settings.admin_keys)
    if not (settings.local or keys):
        warn(f"{settings.host} can be reached from other machines and no --api-key is set: anyone who reaches it may use it")
    locations = [parse_location(text) for text in run]
    if settings.workers > 1 or settings.engines:
        server: Workers | Server = Workers(settings)
    else:
        server = Server(settings, Models(locations, warn=warn, **_located(opening)))
    warn(f"{server.address} shows a page to try it; /docs describes the interface for programs")
    server.run()


def _located(opening: dict[str, Any]) -> dict[str, Any]:
    """Options for opening models, with the places of the estimators."""
    from weft.serve.served_models import parse_location

    return {**opening, "estimators": [parse_location(text) for text in opening["estimators"]]}


def _work(settings: Settings, run: Sequence[str], opening: dict[str, Any]) -> None:
    """Runs one of several processes: one that runs models, or one that serves."""
    from weft.serve.engine_process import Remote, run_engine
    from weft.serve.served_models import Models, parse_location
    from weft.serve.server import Server
    from weft.serve.server_processes import ENGINE_FD, ENGINE_PATH, WORKER

    if number := os.environ.get(ENGINE_FD):
        own = {"device": opening["device"], "fast": opening["fast"], "adapted": False}
        run_engine(int(number), lambda location: Models([location], **own).served[0], settings.threads)
        return
    if path := os.environ.get(ENGINE_PATH):
        opening = {**opening, "device": "cpu", "fast": False, "remote": Remote(path)}
    report = warn if os.environ[WORKER] == "0" else lambda text: None  # once
    Server(settings, Models([parse_location(text) for text in run], warn=report, **_located(opening))).run()


def _lanes(device: str, cores: int) -> int:
    """Searches side by side. On a CPU, two with half of the cores each are faster than one that leaves a core for requests."""
    return 2 if cores > 1 and not _on_gpu(device) else 1


def _engines(device: str, workers: int, wanted: bool | None) -> int:
    """Processes that run the models: one per GPU that is used, unless the workers run them."""
    import torch

    cuda = _on_gpu(device)
    if not (cuda if wanted is None else wanted):
        return 0
    return min(workers, torch.cuda.device_count()) if cuda and ":" not in device else 1


def _batch_tokens(engines: int, device: str) -> int:
    """Source tokens per batch. A model process on a GPU divides what is too much for its memory."""
    from weft.decoding.decoding_options import MOST, TOKENS

    return MOST if engines and _on_gpu(device) else TOKENS


def _on_gpu(device: str) -> bool:
    """Whether models run on a GPU. This does not open it, which would take memory in every process."""
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _device(device: str, worker: int) -> str:
    """The device of a worker: one of the GPUs in turn."""
    import torch

    count = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return f"cuda:{worker % count}" if count > 1 else device
