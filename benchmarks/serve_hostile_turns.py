"""Which hostile clients delay honest ones: each kind alone, in turns with quiet times and with controls.

    python benchmarks/serve_hostile_turns.py RUN [--old DIR] [--seconds 6] [--rounds 2] [--data FILE] [--only greedy,all]

Starts a server of this checkout, and with --old one of another. In every round each condition lasts --seconds on each server,
in turn, always with the same honest clients: about 60 requests per second for one text. The conditions:

- quiet: nothing else, before all others and after them;
- the kinds of attacks of serve_hostile.py, each alone, and all of them together;
- honest instead: as many requests for one text per second as all attacks together were, from 64 further addresses;
- burnt: processes that are no clients use as much CPU time as all attacks cost, their senders and the server's work together;
- burnt by senders: the same for the senders alone, which on another machine would take nothing from the server.

The table has percentiles of the honest requests of a turn as their clients see them, and the 99th as the server sees it, from
the end of the headers to the answer: medians over turns, since the load of other programs spoils some of them, and the range.
Both are compared with the quiet turns of the same server. Shares are CPU seconds per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from serve_hostile import ATTACKS, attack
from serve_process import Connection, Load, Server

from weft import load as load_run
from weft.data.formats import open_pairs

DATA = "generated:reverse?count=300&longest=7&seed=5&split=test"
CLIENTS, PAUSE = 24, (0.2, 0.6)
KINDS = {kind.__name__: kind for kind in ATTACKS}
CONTROLS = ("honest instead", "burnt", "burnt by senders")
SHARES: list[Callable[[Turn], float]] = [lambda turn: turn.server, lambda turn: turn.readers, lambda turn: turn.senders]
FORK = multiprocessing.get_context("fork")


@dataclass
class Turn:
    """One condition on one server.

    inside: seconds of the honest requests in the server · server, readers, senders: shares of a core.
    """

    load: Load
    inside: Load
    server: float = 0.0
    readers: float = 0.0
    senders: float = 0.0
    sent: float = 0.0


@dataclass
class Measured:
    """The turns of a server by condition."""

    server: Server
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def share(self, condition: str, what: Callable[[Turn], float]) -> float:
        return mean(what(turn) for turn in self.turns[condition])


def cpu(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its children, also those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks, children = os.sysconf("SC_CLK_TCK"), 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (thread / "children").read_text().split():
                children += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return sum(map(int, fields[11:13])) / ticks, (sum(map(int, fields[13:15])) + children) / ticks


async def honest(url: str, address: str, expected: dict[str, str], load: Load, end: float, pause: tuple[float, float]) -> None:
    """Sends one text after the other and compares the answers."""
    draw, texts = random.Random(address), list(expected)
    await asyncio.sleep(draw.uniform(0, pause[1]))
    connection = await Connection.open(url, address)
    while time.monotonic() < end:
        if connection.closed:
            connection = await Connection.open(url, address)
        text, began = draw.choice(texts), time.monotonic()
        try:
            status, response = await connection.translate({"text": text})
            if status != 200 or json.loads(response)["translations"][0]["text"] != expected[text]:
                load.errors.append(f"{text!r}: {status}, {response[:200]!r}")
        except (OSError, EOFError) as error:
            load.errors.append(f"{text!r}: {error!r}")
            connection = await Connection.open(url, address)
        load.times.append(time.monotonic() - began)
        await asyncio.sleep(draw.uniform(*pause))
    connection.writer.close()


def send(url: str, kinds: list[str], texts: list[str], end: float, seed: int, results: Any) -> None:
    """Runs attacks until `end`; puts how many there were and the CPU time they took."""
    random.seed(seed)
    before, counts = time.process_time(), Counter[str]()

    async def run() -> None:
        await asyncio.gather(*(attack(KINDS[kind], url, texts, end, counts) for kind in kinds))

    asyncio.run(run())
    results.put((counts.total(), time.process_time() - before))


def send_honest(url: str, rate: float, expected: dict[str, str], end: float, results: Any) -> None:
    """Sends `rate` requests per second from 64 addresses."""
    before, load, wait = time.process_time(), Load(), 64 / max(rate, 1e-9)

    async def run() -> None:
        clients = (honest(url, f"127.0.3.{number}", expected, load, end, (0.5 * wait, 1.5 * wait)) for number in range(1, 65))
        await asyncio.gather(*clients)

    asyncio.run(run())
    results.put((len(load.times), time.process_time() - before))


def burn(share: float, end: float, results: Any) -> None:
    """Uses this share of a core, in pieces of ten milliseconds as a scheduler sees them."""
    before, began = time.process_time(), time.monotonic()
    while time.monotonic() < end:
        if time.process_time() - before < share * (time.monotonic() - began):
            sum(range(20_000))
        else:
            time.sleep(0.002)
    results.put((0, time.process_time() - before))


def others(name: str, measured: Measured, expected: dict[str, str], end: float, seed: int, results: Any) -> list[Any]:
    """The processes of a condition beside the honest clients."""
    url, texts = measured.server.url, list(expected)
    if name == "quiet":
        return []
    if name == "honest instead":
        rate = measured.share("all", lambda turn: turn.sent)
        return [FORK.Process(target=send_honest, args=(url, rate, expected, end, results))]
    if name.startswith("burnt"):
        share = measured.share("all", lambda turn: turn.senders)
        if name == "burnt":
            share += sum(
                sign * measured.share(each, lambda t: t.server + t.readers) for each, sign in (("all", 1), ("quiet", -1))
            )
        count = max(1, -int(-share // 1))
        return [FORK.Process(target=burn, args=(share / count, end, results)) for _ in range(count)]
    kinds = [*KINDS] if name == "all" else [name]
    return [FORK.Process(target=send, args=(url, kinds, texts, end, seed, results))]


def take_turn(name: str, measured: Measured, expected: dict[str, str], seconds: float, seed: int) -> None:
    """Runs a condition on a server."""
    turn, results, end = Turn(Load(), Load()), FORK.Queue(), time.monotonic() + seconds
    processes = others(name, measured, expected, end, seed, results)
    before, measured.server.answered = cpu(measured.server.pid), []
    for process in processes:
        process.start()

    async def run() -> None:
        url = measured.server.url
        await asyncio.gather(
            *(honest(url, f"127.0.1.{number}", expected, turn.load, end, PAUSE) for number in range(1, CLIENTS + 1))
        )

    asyncio.run(run())
    after, found = cpu(measured.server.pid), [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    turn.server, turn.readers = ((now - then) / seconds for now, then in zip(after, before, strict=True))
    turn.senders, turn.sent = sum(each[1] for each in found) / seconds, sum(each[0] for each in found) / seconds
    measured.turns.setdefault(name, []).append(turn)
    turn.inside.times = [seconds for client, seconds in measured.server.answered if client.startswith("127.0.1.")]
    measured.server.answered = None
    time.sleep(1.0)  # what was abandoned ends


def table(measured: Measured) -> str:
    """A row for each condition."""
    text = "| condition | requests | lost or wrong | p50 ms | p99 ms | of turns | ÷ quiet | p99 ms in the server | ÷ quiet "
    text += "| server, readers, senders |\n|---|---|---|---|---|---|---|---|---|---|\n"
    whole, inside = ([each.at(0.99) for each in loads(measured.turns["quiet"], name)] for name in ("load", "inside"))
    for name, turns in measured.turns.items():
        of_clients, of_server = loads(turns, "load"), [each.at(0.99) for each in loads(turns, "inside")]
        p50, p99 = ([1000 * each.at(share) for each in of_clients] for share in (0.5, 0.99))
        count, errors = sum(len(each.times) for each in of_clients), sum(len(each.errors) for each in of_clients)
        shares = " · ".join(f"{measured.share(name, each):.2f}" for each in SHARES)
        text += f"| {name} | {count} | {errors} | {median(p50):.0f} | {median(p99):.0f} | {min(p99):.0f} to {max(p99):.0f} "
        text += f"| {median(p99) / median(whole) / 1000:.1f} "
        text += f"| {1000 * median(of_server):.0f} | {median(of_server) / median(inside):.1f} | {shares} |\n"
    return text


def loads(turns: list[Turn], name: str) -> list[Load]:
    return [getattr(turn, name) for turn in turns]


def start(checkout: str, run: str, options: list[str]) -> Server:
    """A server of a checkout."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(checkout).resolve()), before)))
    try:
        return Server(run, "--device", "cpu", *options)
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--old", help="another checkout, whose server takes turns with that of this one")
    parser.add_argument("--data", default=DATA, help="pairs whose sources are sent")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="conditions beside quiet, separated by commas (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    options, more = parser.parse_known_args()
    texts = list(dict.fromkeys(source for source, _ in open_pairs(options.data)))[:300]
    answers = load_run(options.run, device="cpu").translate(texts)
    expected = {text: each.text for text, each in zip(texts, answers, strict=True)}
    names = options.only.split(",") if options.only else [*KINDS, "all", *CONTROLS]
    checkouts = {"old": options.old} if options.old else {}
    checkouts["new"] = str(Path(__file__).parents[1])
    with ExitStack() as stack:
        servers = {}
        for label, checkout in checkouts.items():
            servers[label] = Measured(start(checkout, options.run, more))
            stack.callback(servers[label].server.end)
        for number in range(options.rounds):
            for name in ["quiet", *names, "quiet"]:
                for measured in servers.values():
                    take_turn(name, measured, expected, options.seconds, options.seed + number)
    for label, measured in servers.items():
        print(f"\n{label}: {subprocess.getoutput(f'git -C {checkouts[label]} describe --always --dirty')}\n\n{table(measured)}")
        for error in [error for turns in measured.turns.values() for turn in turns for error in turn.load.errors][:3]:
            print(error)
    sys.exit(any(turn.load.errors for each in servers.values() for turns in each.turns.values() for turn in turns))


if __name__ == "__main__":
    main()
