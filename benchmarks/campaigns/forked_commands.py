"""Commands of weft as forks of a process that has imported everything, each on a disk that can fail, or on a host of its own.

Starting Python with torch takes seconds, a fork takes milliseconds, so that hundreds of commands fit into minutes. The process
loads `failing_disk.c` beforehand (`preloaded`); each fork says what its disk does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("failing_disk.c")
FAULTS = ("none", "full", "read-only", "broken", "short")
"""The faults of a disk: no room, read-only from some operation on, EIO in writing and syncing, and writes done in part."""

OPTIONAL = tuple(f"weft.training.trackers.{name}" for name in ("mlflow", "trackio", "wandb"))
LEFT_OUT = ("weft.layers.kernels.triton", "weft.contract", "weft.__main__", *OPTIONAL)
NEW_USER, NEW_MOUNTS, NEW_HOST, NEW_PIDS = 0x10000000, 0x00020000, 0x04000000, 0x20000000


@dataclass(frozen=True)
class Disk:
    """The disk of a command. Operations that change something below `root` are counted from 1.

    fault: one of FAULTS, which begins at the operation `at`, and lasts or hits only that one · kill: the operation in which the
    process is killed; 0: none · record: a file for all operations
    """

    root: Path
    record: Path
    fault: str = "none"
    at: int = 0
    lasts: bool = True
    kill: int = 0
    seed: int = 0

    def begin(self) -> None:
        """Makes this process and its descendants have this disk."""
        begin = ctypes.CDLL(None).failing_disk
        begin.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_long, ctypes.c_ulong]
        begin.argtypes += [ctypes.c_char_p]
        fault, places = FAULTS.index(self.fault), (str(self.root).encode(), str(self.record).encode())
        begin(places[0], fault, self.at, self.lasts, self.kill, self.seed, places[1])


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit status, negative for a signal, what it said, and the seconds that it computed."""

    status: int
    said: str
    seconds: float


def compiled(folder: Path) -> Path:
    """The library of `failing_disk.c`, compiled into a folder."""
    library = folder / "failing_disk.so"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


def preloaded(folder: Path) -> None:
    """Makes sure that this process has loaded `failing_disk.c`; otherwise it begins again with it, compiled into `folder`."""
    if hasattr(ctypes.CDLL(None), "failing_disk"):
        return
    settings = {"LD_PRELOAD": str(compiled(folder)), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def import_everything(folder: Path) -> None:
    """Imports what commands import, and makes once what they make alike, so that forks have it.

    Nothing is computed that starts threads, which would not survive a fork.
    """
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # as if it were missing: pictures would take half of the time
    import torch

    import weft
    import weft_studies
    from weft.config.sections import save_schema

    for package in (weft, weft_studies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_OUT):
                importlib.import_module(module.name)
    for name in ("sacrebleu", "safetensors.numpy", "torch._dynamo"):
        importlib.import_module(name)
    with torch.device("meta"):
        torch.nn.Embedding(2, 2)
    save_schema(folder)
    gc.collect()
    gc.freeze()


class Command:
    """A command line of weft that runs in a fork.

    said: a file for what it says · host: the name of a host with its own numbers of processes and its own mounts; empty: here
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        said: Path,
        disk: Disk | None = None,
        host: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.said, self.began = said, time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._become(arguments, folder, disk, host, environment or {})
            except BaseException as error:
                print(f"Traceback: the campaign: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(98)

    def _become(
        self, arguments: Sequence[str], folder: Path, disk: Disk | None, host: str, environment: Mapping[str, str]
    ) -> None:
        os.setsid()
        out = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(environment)
        if host:
            _enter(host)
        os.chdir(folder)
        if disk:
            disk.begin()
        sys.argv = ["weft", *arguments]
        from weft.cli import main

        try:
            main()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        os._exit(97)

    def kill(self) -> None:
        """Ends the command and everything that it started, with signal 9."""
        for target in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                target(self.pid, signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the command, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, limit: float = 120.0) -> Ended:
        """Waits for the end. After `limit` seconds the command is killed and counts as hanging (status -1000)."""
        hung = False
        while True:
            found, status, used = os.wait4(self.pid, os.WNOHANG)
            if found:
                break
            if not hung and time.monotonic() - self.began > limit:
                hung = True
                self.kill()
            time.sleep(0.002)
        said = self.said.read_text("utf-8", errors="replace")
        return Ended(-1000 if hung else os.waitstatus_to_exitcode(status), said, used.ru_utime + used.ru_stime)


def _enter(host: str) -> None:
    """Moves this process to another host as far as the kernel can pretend: its name, its mounts, its numbers of processes."""
    library = ctypes.CDLL(None, use_errno=True)
    flags = NEW_MOUNTS | NEW_HOST | NEW_PIDS | (0 if os.geteuid() == 0 else NEW_USER)
    if library.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    library.mount(b"none", b"/", None, ctypes.c_ulong(0x4000 | 0x40000), None)  # private: what is mounted here stays here
    socket.sethostname(host)
    inner = os.fork()  # the first process of the new numbers
    if inner:
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(inner, number))
        signal.signal(signal.SIGHUP, lambda number, frame: os.kill(inner, number))
        _, status = os.waitpid(inner, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    library.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None)
