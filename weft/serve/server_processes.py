"""The processes of a server: several that serve on one listening socket, those that run the models, and successors."""

import asyncio
import atexit
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from weft.errors import WeftError
from weft.serve.http_protocol import CONNECTIONS, allow_descriptors
from weft.serve.middleware import log_line
from weft.serve.prometheus import FOLDER
from weft.serve.request_retries import AVAILABLE, JOURNAL_FD, SPARE, WorkerConnections
from weft.serve.settings import Settings

LISTEN_FD, REPLACES = "WEFT_LISTEN_FD", "WEFT_REPLACES"
"""Environment variables of a server that replaces another: the number of its socket, and the process that it stops."""

WORKER, READY_FD = "WEFT_WORKER", "WEFT_READY_FD"
"""Environment variables of one of several processes: its number, and a pipe to write to when it is ready."""

ENGINE_FD, ENGINE_PATH = "WEFT_MODELS_FD", "WEFT_MODELS"
"""Environment variables of the process that runs the models, and of those that use it: its socket's number, and its path."""

SHARED = "WEFT_SHARED"
"""Environment variable with the folder that the processes of a server share."""

FILES = "WEFT_FILES"
"""Environment variable with the folder of translated files, for workers and for a server that replaces another."""

VISIBLE = "CUDA_VISIBLE_DEVICES"

ATTACH_FILTER = 26
"""The socket option SO_ATTACH_FILTER of Linux."""

SYSTEMD_FD = 3
"""The number of the first socket that systemd passes on."""

PAUSE = 1.0
"""Seconds before a worker that ended is started again."""


def shared_folder() -> Path:
    """The folder that the processes of a server share, which the first of them makes and deletes in the end."""
    if path := os.environ.get(SHARED):
        return Path(path)
    folder = tempfile.TemporaryDirectory(prefix="weft-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def files_folder() -> Path:
    """The folder of translated files: that of the process that started this one, or a new one. The last server deletes it."""
    path = os.environ.get(FILES) or tempfile.mkdtemp(prefix="weft-files-")
    if WORKER not in os.environ:
        lock = os.open(path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        atexit.register(leave_files_folder, path, lock)
    return Path(path)


def leave_files_folder(path: str, lock: int) -> None:
    """Deletes the folder of translated files if no other server has it. Each has a shared lock on it until it ends."""
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def command() -> list[str]:
    """The command that starts this program again, with the same arguments."""
    return [sys.executable, "-m", "weft", *sys.argv[1:]]


def address(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens: that of the server before this one, of systemd, or a new one."""
    if number := os.environ.get(LISTEN_FD):
        return socket.socket(fileno=int(number))
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=SYSTEMD_FD)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets created with IPPROTO_TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(CONNECTIONS)
    except OSError as error:
        listening.close()
        problem = f"cannot listen on {host} port {port}: {error.strerror}"
        raise WeftError(f"{problem}; choose another with --host and --port") from None
    return listening


def refuse_handshakes(listening: socket.socket) -> None:
    """Lets no new connection begin. Those that wait to be accepted, or are about to, stay. Linux only."""
    # A filter of packets: drops those with the flag SYN, byte 13 of the TCP header.
    program = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)))


def hand_over(listening: socket.socket, files: Path) -> None:
    """Starts a new server with the same arguments, socket and translated files; it stops this one when it is ready."""
    number = listening.fileno()
    environment = {**os.environ, LISTEN_FD: str(number), REPLACES: str(os.getpid()), FILES: str(files)}
    subprocess.Popen(command(), pass_fds=[number], env=environment)


def stop_predecessor() -> None:
    """Stops the server that this one replaces, if there is one."""
    if other := os.environ.pop(REPLACES, ""):
        os.environ.pop(LISTEN_FD, None)
        with suppress(ProcessLookupError):
            os.kill(int(other), signal.SIGTERM)


def reload_others() -> None:
    """Makes all processes of this server reload their models, if there are several."""
    if WORKER in os.environ:
        os.kill(os.getppid(), signal.SIGHUP)


def report_ready() -> None:
    """Tells the process that started this one that it serves."""
    if number := os.environ.pop(READY_FD, ""):
        os.write(int(number), b"1")
        os.close(int(number))


class Workers:
    """Starts workers, starts them again if they end, and passes signals on to them.

    The operating system gives each new connection to one of them. If one is killed, others take over its connections. They
    share a folder for metrics and translated files, and with settings.engines the processes that run the models.
    """

    def __init__(self, settings: Settings) -> None:
        self._listener = listener(settings.host, settings.port)
        self._count, self.address = settings.workers, address(settings.host, self._listener)
        self._folder, self._files = shared_folder(), files_folder()
        self._sockets = [_unix_listener(self._folder / f"models-{number}") for number in range(settings.engines)]
        self._running: dict[int, Process] = {}
        self._engines: dict[int, Process] = {}
        self._stopping = self._failed = self._handed_over = False
        descriptors = allow_descriptors(2 * (1 + settings.workers) * CONNECTIONS)
        self._connections = WorkerConnections(descriptors - SPARE, self._log_retries)

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises an error if a worker cannot start."""
        asyncio.run(self._run())
        log_line.close()
        if self._failed:
            raise WeftError("a worker could not start; see its message above")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGUSR2, self._hand_over)
        ready = await asyncio.gather(*map(self._start_engine, range(len(self._sockets))))
        restarting = [asyncio.create_task(self._watch(self._engines, number, self._start_engine)) for number in self._engines]
        if all(ready):
            ready = await asyncio.gather(*map(self._start, range(self._count)))
        if all(ready):
            log_line({"event": "serving", "address": self.address, "pid": os.getpid(), "workers": self._count})
            stop_predecessor()
        elif not self._stopping:
            self._failed = True
            self._stop()
        await asyncio.gather(*(self._watch(self._running, number, self._start) for number in list(self._running)))
        for task, engine in zip(restarting, self._engines.values(), strict=True):
            task.cancel()
            with suppress(ProcessLookupError):
                engine.kill()  # all requests are answered
        log_line({"event": "all workers stopped"})

    async def _start(self, number: int) -> bool:
        """Starts a worker; returns whether it serves."""
        own = {LISTEN_FD: str(self._listener.fileno()), SHARED: str(self._folder), FOLDER: str(self._folder)}
        own[FILES] = str(self._files)
        if self._sockets:
            own[ENGINE_PATH] = self._sockets[number % len(self._sockets)].getsockname()
        if not AVAILABLE:
            return await self._spawn(self._running, number, own, self._listener)
        with self._connections.link(number) as link:
            own[JOURNAL_FD] = str(link.fileno())
            ready = await self._spawn(self._running, number, own, self._listener, link)
        if ready:
            self._connections.serves(number)
        return ready

    async def _start_engine(self, number: int) -> bool:
        """Starts a process that runs models; returns whether it takes tasks."""
        listening = self._sockets[number]
        own = {ENGINE_FD: str(listening.fileno())}
        if len(self._sockets) > 1:  # each sees its own GPU only
            own[VISIBLE] = (os.environ.get(VISIBLE) or ",".join(map(str, range(len(self._sockets))))).split(",")[number]
        return await self._spawn(self._engines, number, own, listening)

    async def _spawn(self, among: dict[int, Process], number: int, own: dict[str, str], *sockets: socket.socket) -> bool:
        reading, writing = os.pipe()
        own |= {WORKER: str(number), READY_FD: str(writing)}
        environment = {name: value for name, value in os.environ.items() if name != REPLACES} | own
        # In a session of its own, so that Ctrl-C reaches it only once.
        among[number] = await asyncio.create_subprocess_exec(
            *command(), pass_fds=[*(each.fileno() for each in sockets), writing], env=environment, start_new_session=True
        )
        os.close(writing)
        if self._stopping:
            self._signal(signal.SIGTERM)
        try:
            return bool(await asyncio.to_thread(os.read, reading, 1))  # nothing if the worker has ended
        finally:
            os.close(reading)

    async def _watch(self, among: dict[int, Process], number: int, start: Callable[[int], Awaitable[bool]]) -> None:
        """Starts a process again whenever it ends, until all are stopped."""
        while True:
            status = await among[number].wait()
            mark_process_dead(among[number].pid, self._folder)
            if among is self._running:
                self._connections.ended(number, stopping=self._stopping)
            if self._stopping:
                return
            what = "a worker" if among is self._running else "the model process"
            log_line({"event": f"{what} ended; starting another", "worker": number, "status": status})
            await asyncio.sleep(PAUSE)
            if not self._stopping:
                await start(number)

    @staticmethod
    def _log_retries(count: int) -> None:
        log_line({"event": "requests of a worker that ended were given to another", "requests": count})

    def _hand_over(self) -> None:
        self._handed_over = True
        hand_over(self._listener, self._files)

    def _stop(self) -> None:
        """Stops all workers gracefully at the first call, and at once at the second."""
        if not (self._handed_over or "LISTEN_FDS" in os.environ):
            refuse_handshakes(self._listener)
        self._stopping = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._running.values():
            with suppress(ProcessLookupError):
                worker.send_signal(number)


def _unix_listener(path: Path) -> socket.socket:
    """A socket that listens for processes of this user. It stays when the process that accepts connections is started again."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(128)
    return listening
