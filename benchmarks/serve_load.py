"""Measures a server under load on this machine: sentences per second with and without batching of requests.

    python benchmarks/serve_load.py RUN [--data FILE] [--clients 64] [--seconds 60] [--beam 4] [--no-fast]
    python benchmarks/serve_load.py RUN --fuzz | --same 200 | --single 200 | --hostile [--minutes 30] [--cores 2]

Starts `weft serve` twice, without a cache: with its defaults, and with --batch-tokens 0, which decodes every text alone. Each
client keeps one connection and requests one sentence after the other. The table gives sentences per second, the median and the
99th percentile of response times, errors, and the server's memory after a fifth of the time and at the end. Then the first
server gets SIGTERM under load, and must answer every request it has accepted. --fuzz sends requests that schemathesis generates
from the server's OpenAPI description (make clients, or pip install schemathesis), --cases of them per operation, and checks
that the responses match the description. --same N translates N sentences by the command line, in Python and by the server,
which gets all of them at once, and compares texts and scores. --single N measures single requests of one client, one after
the other. --hostile is described in serve_hostile.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from serve_hostile import hostile
from serve_process import Connection, Load, Server, serving

from weft import load
from weft.data.formats import open_pairs

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
DATES = "generated:dates?count=20000&seed=9&split=test"


async def client(url: str, texts: list[str], number: int, body: dict[str, object], end: float, load: Load) -> None:
    """Requests one text after the other until the time is up."""
    connection, turn = await Connection.open(url), number
    while (began := time.monotonic()) < end:
        try:
            status, response = await connection.translate({**body, "text": texts[(turn * 7919) % len(texts)]})
            if status != 200:
                load.errors.append(f"{status}: {response[:200]!r}")
        except (OSError, EOFError) as error:
            load.errors.append(repr(error))
            connection = await Connection.open(url)
        load.times.append(time.monotonic() - began)
        turn += 64
    connection.writer.close()


async def drive(server: Server, texts: list[str], options: argparse.Namespace) -> Load:
    """Runs all clients for the given time, after a short warm-up."""
    load, body = Load(), {} if options.beam is None else {"beam": options.beam}
    await client(server.url, texts, 0, body, time.monotonic() + 0.2, Load())
    end = time.monotonic() + options.seconds
    early = asyncio.create_task(record_early_memory(server, load, options.seconds))
    await asyncio.gather(*(client(server.url, texts, number, body, end, load) for number in range(options.clients)))
    early.cancel()
    load.memory.append(server.memory())
    return load


async def record_early_memory(server: Server, load: Load, seconds: float) -> None:
    await asyncio.sleep(seconds / 5)
    load.memory.append(server.memory())


def terminate_under_load(server: Server, texts: list[str], clients: int) -> str:
    """Sends SIGTERM under load; says whether every accepted request was answered."""
    answered: list[int] = []

    def request(number: int) -> None:
        for turn in range(100_000):
            text = texts[(number + turn * clients) % len(texts)]
            try:
                answered.append(httpx.post(f"{server.url}/v1/translate", json={"text": text}, trust_env=False).status_code)
            except httpx.TransportError:
                return

    threads = [threading.Thread(target=request, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    last = server.end()
    for thread in threads:
        thread.join()
    wrong = sum(status != 200 for status in answered)
    return f"SIGTERM under load: {last['taken']} requests accepted, {last['answered']} answered; {wrong} error responses"


def single(run: str, texts: list[str], beam: int | None, flags: list[str]) -> None:
    """Measures requests of one client, one after the other."""
    body = {} if beam is None else {"beam": beam}

    async def request_all(url: str) -> Load:
        connection, load = await Connection.open(url), Load()
        for text in texts:
            began = time.monotonic()
            status, response = await connection.translate({**body, "text": text})
            load.times.append(time.monotonic() - began)
            if status != 200:
                load.errors.append(f"{status}: {response[:200]!r}")
        return load

    with serving(run, *flags) as server:
        load = asyncio.run(request_all(server.url))
    print("| requests | p50 ms (goal 80) | p99 ms (goal 150) | slowest ms | errors |\n|---|---|---|---|---|")
    median, slow, slowest = (1000 * load.at(share) for share in (0.5, 0.99, 1.0))
    print(f"| {len(texts)} | {median:.0f} | {slow:.0f} | {slowest:.0f} | {len(load.errors)} |")


def fuzz(server: Server, cases: int) -> int:
    """Runs schemathesis on the server's OpenAPI description; returns an exit status."""
    program = shutil.which("schemathesis") or shutil.which("schemathesis", path=Path(sys.prefix) / "fuzz" / "bin")
    if program is None:
        raise SystemExit("schemathesis is not installed: run make clients, or pip install schemathesis")
    command = [program, "run", f"{server.url}/openapi.json", "--max-examples", str(cases), "--checks", CHECKS]
    command += ["--request-timeout", "60"]
    with tempfile.TemporaryDirectory() as folder:  # it writes its findings to the current folder
        done = subprocess.run(command, cwd=folder)
    healthy = httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    print(f"still serving: {'yes' if healthy else 'NO'}")
    return done.returncode or not healthy


def same_everywhere(run: str, texts: list[str], beam: int | None) -> bool:
    """Whether the command line, Python and the server give the same texts, with one client per text for the server."""
    options = {} if beam is None else {"beam": beam}
    python = [(each.text, each.score) for each in load(run, device="cpu").translate(texts, **options)]
    command = [sys.executable, "-m", "weft", "translate", run, "--json", "--device", "cpu"]
    flags = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run([*command, *flags], input="\n".join(texts) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    shell = [(each["text"], each["score"]) for each in map(json.loads, done.stdout.splitlines())]

    async def request(url: str, text: str) -> tuple[str, float]:
        status, body = await (await Connection.open(url)).translate({**options, "text": text})
        best = json.loads(body)["translations"][0] if status == 200 else {"text": f"{status}: {body!r}", "score": 0.0}
        return best["text"], best["score"]

    async def request_all(url: str) -> list[tuple[str, float]]:
        return await asyncio.gather(*(request(url, text) for text in texts))

    with serving(run, "--device", "cpu") as server:
        served = asyncio.run(request_all(server.url))
    for name, answers in (("command line", shell), ("server", served)):
        equal = sum(one[0] == other[0] for one, other in zip(python, answers, strict=True))
        difference = max(abs(one[1] - other[1]) for one, other in zip(python, answers, strict=True))
        print(f"{name} and Python: {equal} of {len(texts)} texts are the same; scores differ by {difference:.1e} at most")
    first, *others = ([text for text, _ in answers] for answers in (python, shell, served))
    return all(other == first for other in others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", default=DATES, help="pairs whose sources are sent (default: generated dates)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--beam", type=int, default=None)
    parser.add_argument("--same", type=int, default=0, help="only compare this many sentences from all three")
    parser.add_argument("--fuzz", action="store_true", help="only send the requests of schemathesis")
    parser.add_argument("--cases", type=int, default=60, help="cases of schemathesis per operation")
    parser.add_argument("--single", type=int, default=0, help="only measure this many single requests")
    parser.add_argument("--hostile", action="store_true", help="honest and hostile clients together")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long --hostile lasts")
    parser.add_argument("--cores", type=int, default=0, help="cores for the server of --hostile alone (default: all share)")
    parser.add_argument("--device", default="auto", help="of the servers")
    parser.add_argument("--no-fast", action="store_true", help="start the servers with --no-fast")
    options = parser.parse_args()
    flags = ["--device", options.device, *["--no-fast"] * options.no_fast]
    if options.fuzz:
        with serving(options.run) as server:
            sys.exit(fuzz(server, options.cases))
    texts = list(dict.fromkeys(source for source, _ in open_pairs(options.data)))[:20_000]
    if options.same:
        sys.exit(not same_everywhere(options.run, texts[: options.same], options.beam))
    if options.hostile:
        sys.exit(hostile(options.run, texts[:500], options.minutes, options.clients, flags, options.cores))
    if options.single:
        single(options.run, texts[: options.single], options.beam, flags)
        return
    print("| server | sentences/s | p50 ms | p99 ms | errors | memory MiB |\n|---|---|---|---|---|---|")
    rates = []
    for name, more in (("requests batched", ()), ("one text at a time", ("--batch-tokens", "0"))):
        with serving(options.run, *more, *flags) as server:
            load = asyncio.run(drive(server, texts, options))
            print(load.row(name, options.seconds), flush=True)
            rates.append(len(load.times))
            if load.errors:
                print(f"first error: {load.errors[0]}", file=sys.stderr)
            if not more:
                ending = terminate_under_load(server, texts, 16)
    print(f"\n{rates[0] / max(1, rates[1]):.1f} × as many sentences; {ending}")


if __name__ == "__main__":
    main()
