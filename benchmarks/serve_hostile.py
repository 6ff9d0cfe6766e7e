"""Honest clients beside hostile ones: nothing that the hostile ones do may lose, delay or change an honest answer.

    python benchmarks/serve_load.py RUN --hostile [--minutes 30] [--clients 64] [--cores 2]

Each honest client has its own address and keeps one connection. It sends a sentence, compares the answer with that of Python,
and waits about a second. A tenth of the time is quiet. Then hostile clients join, each kind from an address of its own:

- greedy: 256 texts with beam 16 and at least 100 tokens, once a second, often abandoned;
- slow: connections that send one byte of a header per second, also after a first request;
- half-closed: requests whose sender closes its side, and then reads or does not;
- garbage: bytes that are not HTTP, broken JSON, large headers, bodies of 1 MiB;
- abandoned: requests whose sender leaves at once;
- hard to read: markup with many or deep elements, placeholders, dots and digits without end, explanations with a wide beam;
- lying: a Content-Length that is too long or too short, twice or beside chunks, senders that leave in the middle of a body;
- unread: large answers that nobody reads.

Meanwhile the models are reloaded once a minute, and in the middle the server is replaced by a new process (SIGUSR2), which
stops the old one by SIGTERM. The hostile clients are a process of their own, so that the honest ones measure the server and not
them; with --cores N, the server gets N cores that no client uses. The exit status says whether an honest request was lost or
wrong. A connection that the server has closed while it was idle is opened again, as every HTTP client does.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from serve_process import Connection, Load, Server, serving

from weft import load as load_run

Attack = Callable[[str, list[str]], Awaitable[None]]
PAUSE = (0.5, 1.5)
"""Seconds between two requests of an honest client."""

BODIES = 500


def request(body: dict[str, object], path: str = "/v1/translate") -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def honest(url: str, number: int, expected: dict[str, str], load: Load, end: float) -> None:
    """Sends one text after the other and compares the answers."""
    address, draw = f"127.0.1.{number + 1}", random.Random(number)
    texts = list(expected)
    await asyncio.sleep(draw.uniform(0, PAUSE[1]))
    connection = await Connection.open(url, address)
    while time.monotonic() < end:
        text = draw.choice(texts)
        if connection.closed:
            connection = await Connection.open(url, address)
        began = time.monotonic()
        try:
            status, response = await connection.translate({"text": text})
            found = json.loads(response)["translations"][0]["text"] if status == 200 else ""
            if status != 200 or found != expected[text]:
                load.errors.append(f"{text!r}: {status}, {response[:200]!r}")
        except (OSError, EOFError) as error:
            load.errors.append(f"{text!r}: {error!r}")
            connection = await Connection.open(url, address)
        load.times.append(time.monotonic() - began)
        await asyncio.sleep(draw.uniform(*PAUSE))
    connection.writer.close()


async def greedy(url: str, texts: list[str]) -> None:
    chosen = random.choices(texts, k=256)
    connection = await Connection.open(url, "127.0.2.1")
    connection.writer.write(request({"text": chosen, "beam": 16, "min_length": 100}))
    with suppress(TimeoutError):
        await asyncio.wait_for(connection.reader.read(1), random.choice([1.0, 20.0]))
    connection.writer.close()


async def slow(url: str, texts: list[str]) -> None:
    connection = await Connection.open(url, "127.0.2.2")
    if random.random() < 0.5:
        await connection.translate({"text": texts[0]})
    for byte in b"POST /v1/translate HTTP/1.1\r\nHost: localhost":
        connection.writer.write(bytes([byte]))
        await connection.writer.drain()
        await asyncio.sleep(1)


async def half_closed(url: str, texts: list[str]) -> None:
    connection = await Connection.open(url, "127.0.2.3")
    connection.writer.write(request({"text": random.choice(texts)}))
    connection.writer.write_eof()
    if random.random() < 0.5:
        await connection.reader.read()
    connection.writer.close()


async def garbage(url: str, texts: list[str]) -> None:
    connection = await Connection.open(url, "127.0.2.4")
    sent = random.choice(
        [
            random.randbytes(2000),
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[[[[[[[[[",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,
            request({"q": "x" * ((1 << 20) - 100)}, "/translate"),
            request({"text": ["\ud800", "<![foo["], "format": "html"}),
            request({"text": texts[0], "attention": True, "beam": 10**9}),
        ]
    )
    connection.writer.write(sent)
    await asyncio.wait_for(connection.reader.read(), 20)
    connection.writer.close()


async def abandoned(url: str, texts: list[str]) -> None:
    connection = await Connection.open(url, "127.0.2.5")
    connection.writer.write(request({"text": random.choices(texts, k=20), "alternatives": 5}))
    await connection.writer.drain()
    connection.writer.transport.abort()


async def hard_to_read(url: str, texts: list[str]) -> None:
    connection = await Connection.open(url, "127.0.2.6")
    sent = random.choice(
        [
            request({"text": "".join(f"<i>{word}</i> " for word in ["a"] * 900), "format": "html"}),
            request({"text": "<p " + "x" * 9_000 + ">a b c</p>", "format": "html"}),
            request({"text": "<i>" * 1_500 + "a" + "</i>" * 1_200, "format": "html"}),
            request({"text": ["%" + "0" * 9_900] * 8}),
            request({"text": ["{}" * 4_900, "1. " * 3_300, "(." * 4_900, "\0. " * 3_300]}),
            request({"text": "a b", "prefix": "a " * 4_900}),
            request({"text": " ".join(texts[:20])[:1_900], "beam": 16}, "/v1/explain"),
        ]
    )
    connection.writer.write(sent)
    with suppress(TimeoutError):
        await asyncio.wait_for(connection.reader.read(1), random.choice([1.0, 20.0]))
    connection.writer.close()


async def lying(url: str, texts: list[str]) -> None:
    """Sends another body than the headers announce; half of the time it leaves without an answer."""
    connection = await Connection.open(url, "127.0.2.7")
    body = json.dumps({"text": random.choice(texts)}).encode()
    head = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    lengths = [b"%d" % number for number in (len(body) + 50, len(body) // 2, -1)] + [b"1e3", b"9" * 30]
    lengths += [b"%d\r\n" % len(body) + more for more in (b"Content-Length: 3", b"Transfer-Encoding: chunked")]
    length = random.choice(lengths)
    connection.writer.write(head + b"Content-Length: " + length + b"\r\n\r\n" + body)
    await connection.writer.drain()
    if random.random() < 0.5:
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.reader.read(), 15)
    connection.writer.transport.abort()


async def unread(url: str, texts: list[str]) -> None:
    """Requests attention weights of several texts, and reads nothing of the answer for half a minute."""
    connection = await Connection.open(url, "127.0.2.8")
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    connection.writer.write(request({"text": random.choices(texts, k=100), "n_best": 5, "beam": 5, "attention": True}) * 3)
    await connection.writer.drain()
    await asyncio.sleep(30)
    connection.writer.transport.abort()


ATTACKS: dict[Attack, tuple[int, float]] = {greedy: (20, 1.0), slow: (300, 0.1), half_closed: (20, 0.2), garbage: (20, 0.2)}
ATTACKS |= {abandoned: (20, 0.2), hard_to_read: (10, 0.3), lying: (20, 0.2), unread: (10, 3.0)}
"""How many of each kind run at once, and the seconds between their starts."""


async def attack(
    kind: Attack, url: str, texts: list[str], end: float, counts: Counter[str], pace: Callable[[], float] = lambda: 1.0
) -> None:
    """Starts attacks of one kind until the time is up, in pauses that are `pace` times as long as usual."""
    most, pause = ATTACKS[kind]
    running: set[asyncio.Task[None]] = set()

    async def once() -> None:
        with suppress(OSError, EOFError, TimeoutError, ValueError):
            await kind(url, texts)

    while time.monotonic() < end:
        if len(running) < most:
            task = asyncio.create_task(once())
            running.add(task)
            task.add_done_callback(running.discard)
            counts[kind.__name__] += 1
        await asyncio.sleep(pause * pace())
    for task in running:
        task.cancel()


def attack_all(url: str, texts: list[str], end: float, counts: multiprocessing.SimpleQueue[Counter[str]]) -> None:
    """Runs all kinds of attacks in this process until `end`, as time.monotonic() tells it to all processes of a machine."""

    async def run() -> None:
        found = Counter[str]()
        await asyncio.gather(*(attack(kind, url, texts, end, found) for kind in ATTACKS))
        counts.put(found)

    asyncio.run(run())


async def operate(server: Server, end: float, memory: list[str]) -> None:
    """Reloads the models once a minute, and replaces the server in the middle."""
    middle, pause = (time.monotonic() + end) / 2, min(60.0, (end - time.monotonic()) / 6)
    replaced = False
    while time.monotonic() + pause < end:
        await asyncio.sleep(pause)
        os.kill(server.pid, signal.SIGHUP)
        memory.append(f"{server.memory():.0f}")
        if not replaced and time.monotonic() > middle:
            old, replaced = server.pid, True
            os.kill(old, signal.SIGUSR2)
            while server.pid == old:
                await asyncio.sleep(0.2)
            memory.append(f"new process: {server.memory():.0f}")


async def send_bodies(server: Server) -> str:
    """Memory before and after many bodies of 1 MiB."""
    body = request({"q": "x" * ((1 << 20) - 100)}, "/translate")

    async def send(count: int) -> float:
        connection = await Connection.open(server.url)
        for _ in range(count):
            connection.writer.write(body)
            head = (await connection.reader.readuntil(b"\r\n\r\n")).lower()
            await connection.reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            if b"connection: close" in head:
                connection = await Connection.open(server.url)
        return server.memory()

    return f"{BODIES} bodies of 1 MiB: {await send(20):.0f} → {await send(BODIES):.0f} MiB"


def row(name: str, load: Load, memory: str) -> str:
    median, slowest, worst = (1000 * load.at(share) for share in (0.5, 0.99, 1.0))
    return f"| {name} | {len(load.times)} | {len(load.errors)} | {median:.0f} | {slowest:.0f} | {worst:.0f} | {memory} |"


async def drive(server: Server, expected: dict[str, str], minutes: float, clients: int) -> bool:
    memory, loads = [f"{server.memory():.0f}"], (Load(), Load())
    texts, context = list(expected), multiprocessing.get_context("spawn")
    counts: multiprocessing.SimpleQueue[Counter[str]] = context.SimpleQueue()
    print(await send_bodies(server), flush=True)
    print("\n| load | requests | lost or wrong | p50 ms | p99 ms | slowest ms | memory MiB |\n|---|---|---|---|---|---|---|")
    begun = time.monotonic()
    for name, load, end in zip(("quiet", "hostile"), loads, (begun + 6 * minutes, begun + 60 * minutes), strict=True):
        tasks = [honest(server.url, number, expected, load, end) for number in range(clients)]
        if name == "hostile":
            context.Process(target=attack_all, args=(server.url, texts, end, counts), daemon=True).start()
            tasks.append(operate(server, end, memory))
        await asyncio.gather(*tasks)
        print(row(name, load, " · ".join([*memory, f"{server.memory():.0f}"])), flush=True)
    reloads = sum(event["event"] == "reloaded" for event in server.events)
    ratio = loads[1].at(0.99) / loads[0].at(0.99)
    print(f"\np99 {ratio:.1f} × the quiet one (goal < 5); {reloads} reloads; attacks: {dict(counts.get())}")
    for error in [error for load in loads for error in load.errors][:5]:
        print(error)
    return not any(load.errors for load in loads)


def hostile(run: str, texts: list[str], minutes: float, clients: int, flags: list[str], cores: int = 0) -> int:
    """Runs everything; returns an exit status. cores: how many only the server uses; 0: all processes share all."""
    found = load_run(run, device="cpu").translate(texts)
    expected = {text: each.text for text, each in zip(texts, found, strict=True)}
    here = sorted(os.sched_getaffinity(0))
    if cores >= len(here):
        raise SystemExit(f"--cores {cores}: this machine has {len(here)}, and the clients need one")
    os.sched_setaffinity(0, here[:cores] or here)  # the server inherits it
    with serving(run, *flags) as server:
        os.sched_setaffinity(0, here[cores:])
        return not asyncio.run(drive(server, expected, minutes, clients))
