"""`weft watch`."""

import secrets
from importlib import import_module
from pathlib import Path

import typer

from weft.cli.input_and_output import tell
from weft.errors import ConfigError
from weft.serve.settings import LOOPBACK
from weft.version import install


def watch(
    runs: Path = typer.Argument(Path("runs"), help="A folder with run folders, at any depth, or one run."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; another one than loopback needs keys."),
    port: int = typer.Option(5001, help="Port to listen on; 0 takes a free one.", min=0, max=65535),
    control: bool = typer.Option(
        False, "--control", help="Let those with a key start, stop, resume, try and compare runs. Without keys, one is made."
    ),
    api_key: list[str] = typer.Option([], help="A key that requests have to present. Repeatable.", metavar="KEY"),
    api_keys: Path = typer.Option(None, help="File with a key per line, as for `weft serve`."),
    allowed_host: list[str] = typer.Option([], help="Name under which the page answers. Repeatable.", metavar="NAME"),
) -> None:
    """Watch runs in a browser as they train: curves over each other, samples, settings, machine, and side by side.

    The page reads run folders only, also those that other machines train on a shared disk, and loads nothing from a network.
    With --control, it also trains: upload or name a file, check it, choose a time, start, watch and try.
    """
    try:
        for package in ("fastapi", "prometheus_client", "uvicorn"):
            import_module(package)
    except ImportError as error:
        raise ConfigError(f"weft watch needs the package {error.name}: {install('serve')}") from None
    if not runs.is_dir():
        raise ConfigError(f"{runs}: there is no such folder; name the folder of your runs")
    from weft.serve.access_control import read_keys
    from weft.watch.watch_server import WatchServer, watch_settings

    given, made = frozenset(api_key), ""
    if not read_keys(given, str(api_keys or "")):
        if host not in LOOPBACK:
            raise ConfigError(f"--host {host}: others could read your data there; give keys with --api-key or --api-keys")
        if control:
            made = secrets.token_urlsafe(16)
            given = frozenset([made])
    settings = watch_settings(host, port, keys=given, key_file=str(api_keys or ""), hosts=tuple(allowed_host))
    server = WatchServer(runs, settings, control=control)
    tell(f"{server.address}/{f'#key={made}' if made else ''} shows the runs in {runs}; stop with Ctrl-C")
    server.run()
