"""`weft serve` as a process, and clients that take little CPU time from it. Shared by the benchmarks of the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


class Server:
    """`weft serve` as a process on a free port of this machine."""

    def __init__(self, run: str, *options: str) -> None:
        command = [sys.executable, "-m", "weft", "serve", run, "--port", "0", "--cache", "0", *options]
        self.pid, self.url = 0, ""
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.events: list[dict[str, object]] = []
        self.answered: list[tuple[str, float]] | None = None  # clients and seconds of requests, if somebody wants them
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready.wait()
        if not self.pid:
            raise SystemExit("the server did not start; see its messages above")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not line.startswith("{"):
                print(line, end="", file=sys.stderr)
                continue
            event = json.loads(line)
            if event["event"] != "request":
                self.events.append(event)
            elif self.answered is not None:
                self.answered.append((event.get("client", ""), event["ms"] / 1000))
            if event["event"] == "serving":
                self.pid = int(event.get("pid", self.process.pid))  # another one after a hand-over
                self.url = str(event["address"])
                self._ready.set()
        self._ready.set()

    def memory(self) -> float:
        """Resident memory of the process in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def end(self) -> dict[str, object]:
        """Sends SIGTERM and waits; returns the last event."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.process.wait()
        self._reader.join()  # also waits for a process that has taken over
        return self.events[-1]


@contextmanager
def serving(run: str, *options: str) -> Iterator[Server]:
    """A running server, ended on exit."""
    server = Server(run, *options)
    try:
        yield server
    finally:
        server.end()


@dataclass
class Load:
    """Measurements of the clients: seconds per response, errors, and the server's memory."""

    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        """The time that this share of the responses took at most."""
        return sorted(self.times)[int(share * (len(self.times) - 1))]

    def row(self, name: str, seconds: float) -> str:
        median, slowest = (1000 * self.at(share) for share in (0.5, 0.99))
        rate = len(self.times) / seconds
        memory = f"{self.memory[0]:.0f} → {self.memory[-1]:.0f}" if self.memory else "–"
        return f"| {name} | {rate:.1f} | {median:.0f} | {slowest:.0f} | {len(self.errors)} | {memory} |"


class Connection:
    """A minimal HTTP connection for one request after the other, so that clients take little CPU time from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def open(url: str, address: str = "127.0.0.1") -> Connection:
        """Connects from an address of this machine: clients with different ones are different to the server."""
        host, port = url.removeprefix("http://").split(":")
        return Connection(*await asyncio.open_connection(host, int(port), local_addr=(address, 0)))

    @property
    def closed(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    async def translate(self, body: dict[str, object]) -> tuple[int, bytes]:
        """The status and body of the response."""
        raw = json.dumps(body).encode()
        head = f"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        self.writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
        headers = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        if b"connection: close" in headers:
            self.writer.close()
        return int(headers[9:12]), body
