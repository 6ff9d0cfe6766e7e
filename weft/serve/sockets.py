"""The listening socket of a server: made, inherited, and passed on to other processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from weft.errors import WeftError
from weft.serve.http_protocol import CONNECTIONS

HANDED, STOPS = "WEFT_LISTEN_FD", "WEFT_REPLACES"
"""Environment variables of a server that replaces another: the number of its socket, and the process that it stops."""

WORKER, READY = "WEFT_WORKER", "WEFT_READY_FD"
"""Environment variables of one of several processes: its number, and a pipe to write to when it is ready."""

MODELS, REMOTE = "WEFT_MODELS_FD", "WEFT_MODELS"
"""Environment variables of the process that runs the models, and of those that use it: its socket's number, and its path."""

FIRST_OF_SYSTEMD = 3
"""The number of the first socket that systemd passes on."""


def command() -> list[str]:
    """Starts this program again, with the same arguments."""
    return [sys.executable, "-m", "weft", *sys.argv[1:]]


def address(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens: that of the server before this one, of systemd, or a new one."""
    if number := os.environ.get(HANDED):
        return socket.socket(fileno=int(number))
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=FIRST_OF_SYSTEMD)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets created with IPPROTO_TCP.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(CONNECTIONS)
    except OSError as error:
        made.close()
        raise WeftError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host and --port"
        ) from None
    return made


def hand_over(listening: socket.socket) -> None:
    """Starts a new server with the same arguments and the same socket; it stops this one when it is ready."""
    number = listening.fileno()
    environment = {**os.environ, HANDED: str(number), STOPS: str(os.getpid())}
    subprocess.Popen(command(), pass_fds=[number], env=environment)


def stop_predecessor() -> None:
    """Stops the server that this one replaces, if there is one."""
    if other := os.environ.pop(STOPS, ""):
        os.environ.pop(HANDED, None)
        with suppress(ProcessLookupError):
            os.kill(int(other), signal.SIGTERM)


def reload_others() -> None:
    """Makes all processes of this server reload their models, if there are several."""
    if WORKER in os.environ:
        os.kill(os.getppid(), signal.SIGHUP)


def report_ready() -> None:
    """Tells the process that started this one that it serves."""
    if number := os.environ.pop(READY, ""):
        os.write(int(number), b"1")
        os.close(int(number))
