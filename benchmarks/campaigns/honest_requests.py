"""Requests of honest clients with the answers that `weft translate` gives, and a client that tells losses apart."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

OUTCOMES = ("ok", "repeated after 503", "reopened", "cut", "lost", "wrong")
"""The possible ends of a request. The last two must not happen.

Answered at once · answered after a 503 with Retry-After · answered on a new connection, because the server had closed the kept
one while it was idle, as every HTTP client does · cut off after the answer began · no answer, or another status · another text
than that of the command line."""

REFUSALS = 8
"""How often a client repeats a request that gets status 503."""

WITHIN = 90.0
"""Seconds for an answer."""


@dataclass(frozen=True)
class Request:
    """A request of a client, and how the right answer is found in the response."""

    kind: str
    path: str
    content_type: str
    body: bytes
    expected: object
    read: Callable[[bytes], object]


def translated(run: str, source: Path, out: Path) -> str:
    """A file as `weft translate` translates it in a process of its own."""
    command = [sys.executable, "-m", "weft", "translate", run, str(source), "-o", str(out), "--device", "cpu", "--fast"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return out.read_text("utf-8")


def documents(texts: Sequence[str]) -> dict[str, str]:
    """A file of each of these types."""
    paragraphs = [f"<p>{a} <b>{b}</b></p>" for a, b in zip(texts[0:12:2], texts[1:12:2], strict=True)]
    cues = [f"{n + 1}\n00:00:{n:02},000 --> 00:00:{n:02},900\n{text}\n" for n, text in enumerate(texts[12:24])]
    return {
        "page.html": f"<html><body>{''.join(paragraphs)}</body></html>\n",
        "film.srt": "\n".join(cues),
        "notes.md": "".join(f"# {a}\n\n{b}\n\n" for a, b in zip(texts[24:32:2], texts[25:32:2], strict=True)),
        "lines.txt": "".join(f"{text}\n" for text in texts[32:92]),
    }


def posted(path: str, body: dict[str, object], kind: str, expected: object, read: Callable[[bytes], object]) -> Request:
    return Request(kind, path, "application/json", json.dumps(body).encode(), expected, read)


def upload(name: str, content: str) -> tuple[str, bytes]:
    """The content type and the body of a form with a file."""
    fields = "".join(
        f'--weft\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in (("source", "en"), ("target", "de"))
    )
    file = f'--weft\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content}\r\n--weft--\r\n'
    return "multipart/form-data; boundary=weft", (fields + file).encode()


def requests(texts: Sequence[str], folder: Path, translated: Callable[[Path, Path], str]) -> list[Request]:
    """Single texts, lists, long texts and files, with the answers of `translated(file, output)`, see above."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    answers = translated(folder / "texts.txt", folder / "texts.out.txt").splitlines()

    def found(body: bytes) -> object:
        return [each["text"] for each in json.loads(body)["translations"]]

    made = [
        posted("/v1/translate", {"text": text}, "one text", [answer], found)
        for text, answer in zip(texts, answers, strict=True)
    ]
    for first in range(0, len(texts) - 16, 16):
        some, right = list(texts[first : first + 16]), answers[first : first + 16]
        made.append(posted("/v1/translate", {"text": some}, "16 texts", right, found))
    for first in range(0, len(texts) - 150, 50):
        lines, right = texts[first : first + 150], answers[first : first + 150]
        body: dict[str, object] = {"q": "\n".join(lines), "source": "en", "target": "de"}
        made.append(posted("/translate", body, "long text", "\n".join(right), lambda raw: json.loads(raw)["translatedText"]))
    for name, content in documents(texts).items():
        (folder / name).write_text(content, "utf-8")
        right_file = translated(folder / name, folder / f"out-{name}").encode()
        made.append(Request("file", "/translate_file", *upload(name, content), right_file, lambda raw: raw))
    return made


class Lost(Exception):
    """No answer. begun: whether a part of it had arrived · used: whether the connection had served a request before."""

    def __init__(self, why: str, *, begun: bool, used: bool) -> None:
        super().__init__(why)
        self.begun, self.used = begun, used


class HttpClient:
    """One kept connection from an address of this machine, directly or through a proxy with TLS."""

    def __init__(self, port: int, address: str, *, tls: bool = False, prefix: str = "", host: str = "localhost") -> None:
        self.port, self.address, self.prefix, self.host = port, address, prefix, host
        self._tls = ssl._create_unverified_context() if tls else None  # the proxy has a certificate of its own making
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used = False

    async def send(self, method: str, path: str, content_type: str = "", body: bytes = b"") -> tuple[int, bytes, bytes]:
        """The status, headers and body of the response."""
        begun = False
        try:
            if self._writer is None or self._reader is None or self._reader.at_eof() or self._writer.is_closing():
                self.close()
                opened = asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0), ssl=self._tls)
                self._reader, self._writer = await asyncio.wait_for(opened, WITHIN)
            head = f"{method} {self.prefix}{path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n"
            head += f"Content-Type: {content_type}\r\n" if content_type else ""
            self._writer.write(head.encode() + b"\r\n" + body)
            first = await asyncio.wait_for(self._reader.readexactly(1), WITHIN)
            begun = True
            headers = (first + await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
            content = await asyncio.wait_for(self._reader.readexactly(length), WITHIN)
        except (OSError, EOFError, TimeoutError) as error:
            used = self._used
            self.close()
            raise Lost(f"{type(error).__name__}: {error}", begun=begun, used=used) from None
        self._used = True
        if b"connection: close" in headers:
            self.close()
        return int(headers[9:12]), headers, content

    def close(self) -> None:
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.close()
        self._writer, self._used = None, False


@dataclass
class Tally:
    """Outcomes by kind of request, seconds of the answers, and what was lost or wrong in words."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, kind: str, outcome: str) -> None:
        self.outcomes.setdefault(kind, Counter())[outcome] += 1


async def answered(client: HttpClient, request: Request) -> tuple[str, str]:
    """The outcome of a request, and what went wrong."""
    outcome = "ok"
    for _ in range(REFUSALS):
        try:
            status, headers, body = await client.send("POST", request.path, request.content_type, request.body)
            if status == 200 and request.kind == "file":
                place = json.loads(body)["translatedFileUrl"]
                path = "/" + place.split("://", 1)[1].split("/", 1)[1]
                status, headers, body = await client.send("GET", path.removeprefix(client.prefix))
        except Lost as lost:
            if lost.begun:
                return "cut", str(lost)
            if lost.used:
                outcome = "reopened"
                continue
            return "lost", str(lost)
        if status == 503 and b"retry-after: " in headers:
            outcome = "repeated after 503"
            await asyncio.sleep(min(10.0, float(headers.split(b"retry-after: ")[1].split(b"\r\n")[0])))
            continue
        if status != 200:
            return "lost", f"status {status}: {body[:200]!r}"
        found = request.read(body)
        return (outcome, "") if found == request.expected else ("wrong", f"{found!r} instead of {request.expected!r}"[:400])
    return "lost", f"refused {REFUSALS} times"


async def honest(
    client: HttpClient, made: Sequence[Request], tally: Tally, draw: random.Random, pause: float, end: float
) -> None:
    """Sends one request after the other until the time is up; most are single texts."""
    kinds: dict[str, list[Request]] = {}
    for request in made:
        kinds.setdefault(request.kind, []).append(request)
    names, shares = ["one text", "16 texts", "long text", "file"], [0.7, 0.1, 0.1, 0.1]
    await asyncio.sleep(draw.uniform(0, pause))
    while time.monotonic() < end:
        request = draw.choice(kinds[draw.choices(names, shares)[0]])
        began = time.monotonic()
        outcome, why = await answered(client, request)
        tally.seconds.append(time.monotonic() - began)
        tally.add(request.kind, outcome)
        if outcome in ("cut", "lost", "wrong"):
            tally.errors.append(f"{outcome}, {request.kind}, port {client.port}: {why}")
        await asyncio.sleep(draw.uniform(0.5 * pause, 1.5 * pause))
    client.close()
