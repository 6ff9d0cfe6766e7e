"""`weft serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer


def serve(
    run: list[str] = typer.Argument(
        help="Folders of trained runs, each also with its languages: en-de=RUN. RUN,RUN is an ensemble.", metavar="RUN…"
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; 0.0.0.0 serves other machines."),
    port: int = typer.Option(5000, "--port", help="Port to listen on; 0 takes a free one.", min=0, max=65535),
    api_key: list[str] = typer.Option([], "--api-key", help="A key that requests have to show. Repeatable.", metavar="KEY"),
    api_keys: Path = typer.Option(None, "--api-keys", help="File with keys, one a line.", show_default=False),
    rate: int = typer.Option(0, "--rate", help="Requests a minute of each key or address; 0: any number.", min=0),
    char_limit: int = typer.Option(10_000, "--char-limit", help="Most characters of one request.", min=1),
    queue: int = typer.Option(2_000, "--queue", help="Texts that may wait; beyond it, 503 with Retry-After.", min=1),
    timeout: float = typer.Option(60.0, "--timeout", help="Seconds a request may take.", min=0.1),
    window: float = typer.Option(4.0, "--window", help="Milliseconds in which requests are gathered into a batch.", min=0),
    batch_tokens: int = typer.Option(4096, "--batch-tokens", help="Source tokens of a batch; 0: every text alone.", min=0),
    cache: int = typer.Option(10_000, "--cache", help="Translations remembered.", min=0),
    max_beam: int = typer.Option(16, "--max-beam", help="The widest beam a request may ask for.", min=1),
    cors: list[str] = typer.Option([], "--cors", help="A site whose pages may ask, or *. Repeatable.", metavar="ORIGIN"),
    proxy: str = typer.Option("", "--proxy", help="Address of a proxy that names its clients.", show_default=False),
    log_text: bool = typer.Option(False, "--log-text", help="Write the texts to the log, too."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    threads: int = typer.Option(
        0, "--threads", help="CPU threads of the model; 0: one less than cores, so that requests are read meanwhile.", min=0
    ),
) -> None:
    """Serve trained runs over HTTP: a web page, LibreTranslate's interface, and a JSON one with everything a search knows.

    SIGHUP reads the runs again without a pause; SIGTERM answers what was taken, then ends.
    """
    from weft.errors import ConfigError

    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"weft serve needs the package {error.name}: pip install 'weft[serve]'") from None
    from weft.data.lines import check_file, read_lines
    from weft.serve.models import Models, parse_place
    from weft.serve.server import Server
    from weft.serve.settings import Settings

    keys = {key.strip() for key in [*api_key, *(read_lines(check_file(api_keys)) if api_keys else [])]} - {""}
    if (api_key or api_keys) and not keys:
        raise ConfigError("--api-keys: there is no key in the file; leave the option away to serve everyone")
    settings = Settings(
        host=host,
        port=port,
        keys=frozenset(keys),
        rate=rate,
        characters=char_limit,
        queue=queue,
        timeout=timeout,
        window=window / 1000,
        batch_tokens=batch_tokens,
        cache=cache,
        beam=max_beam,
        origins=tuple(cors),
        proxies=proxy,
        log_text=log_text,
        threads=threads or max(1, (os.cpu_count() or 2) - 1),
    )
    if not (settings.local or keys):
        _say(f"{host} can be reached from other machines and no --api-key is set: whoever reaches it may use it")
    server = Server(settings, Models([parse_place(text) for text in run], device=device, tell=_say))
    _say(f"{server.address} shows a page to try it; /docs says how to ask from programs")
    server.run()


def _say(message: str) -> None:
    print(f"weft: {message}", file=sys.stderr, flush=True)
