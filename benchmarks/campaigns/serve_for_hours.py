"""Hours of honest and hostile load on two servers: every honest answer must be that of `weft translate`.

    python benchmarks/campaigns/serve_for_hours.py RUN --hours 1.5 --results FILE [--share 0.25] [--seed 1]
    python benchmarks/campaigns/serve_for_hours.py --report FILE

RUN is a small model that reverses letters (see docs/results.md). A call adds a period to FILE, one line per minute, so several
calls add up to the hours wanted, and a period that ended early counts as far as it came. --report adds all of them up.

- `steady` is one process. Its models are reloaded, its reader processes are killed, and its memory is measured.
- `killed` has two workers and a process for the model. Every minute or so one of them is killed (`kill -9`), or all are
  reloaded or replaced by a new server (SIGUSR2), or a worker is left with few file descriptors or with 32 MiB for ten seconds.

nginx with deploy/nginx.conf is in front of each; half of the honest clients go through it. Honest clients send single texts,
lists, long texts and files, each from an address of its own. Hostile clients are those of benchmarks/serve_hostile.py. Their
pauses grow until everything together, also what the clients take, uses --share of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from honest_requests import HttpClient, Tally, honest, requests, translated
from processes_from_outside import Limit, all_processes, cpu_seconds, held, kill
from serve_hostile import ATTACKS, attack
from serve_process import Server
from slopes import Slope, pooled, slope

from tests.helpers.nginx import nginx
from weft.data.formats import open_pairs

TEXTS = "generated:reverse?count=500&longest=7&seed=5&split=test"
PROXIED = ("--prefix", "/weft", "--proxy", "127.0.0.1", "--allowed-host", "translate.example")
SERVERS = {"steady": ("--cache", "1", "--threads", "1"), "killed": ("--workers", "2", "--model-process", "--threads", "1")}
CLIENTS = 3
"""Honest clients of each server, directly and through the proxy."""

WARM_UP = 0.1
"""Hours of a period before its memory counts for the slope."""

OPERATIONS = {"steady": {"reload": 1, "reader": 3}} | {
    "killed": {"worker": 4, "model": 2, "reader": 3, "reload": 2, "replace": 1, "descriptors": 2, "memory": 2}
}
"""Events that happen to a server, with the weight of each."""


class Pace:
    """The factor of all pauses, shared with the process of the hostile clients, which follows the CPU time that all take."""

    def __init__(self, share: float) -> None:
        self.share, self._value = share, multiprocessing.get_context("spawn").Value("d", 4.0)
        self._before: tuple[float, dict[int, float]] | None = None

    def __call__(self) -> float:
        return float(self._value.value)

    @property
    def value(self) -> Any:
        return self._value

    def follow(self, pids: list[int]) -> float:
        """Adapts the factor to the CPU time since the last call; returns the share of a core that was used."""
        now, seconds = time.monotonic(), dict[int, float]()
        for pid in pids:
            with suppress(OSError):
                seconds[pid] = cpu_seconds(pid)
        before, self._before = self._before, (now, seconds)
        if before is None:
            return 0.0
        used = sum(each - before[1].get(pid, each) for pid, each in seconds.items()) / (now - before[0])
        self._value.value = min(200.0, max(1.0, self._value.value * min(2.0, max(0.5, used / self.share))))
        return used


def attack_servers(urls: list[str], texts: list[str], seed: int, pace: Any, end: float, counts: Any) -> None:
    """Runs all kinds of attacks on all servers in this process until `end`."""
    random.seed(seed)

    async def run() -> None:
        found = Counter[str]()
        attacks = [attack(kind, url, texts, end, found, lambda: float(pace.value)) for kind in ATTACKS for url in urls]
        await asyncio.gather(*attacks, report(found))

    async def report(found: Counter[str]) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(5)
            counts.put(dict(found))
            found.clear()

    asyncio.run(run())


async def operate(name: str, server: Server, draw: random.Random, pause: float, done: Counter[str], end: float) -> None:
    """Does something to a server now and then."""
    weights = OPERATIONS[name]
    while time.monotonic() + 20 < end:
        await asyncio.sleep(draw.uniform(0.5 * pause, 1.5 * pause))
        what = draw.choices([*weights], [*weights.values()])[0]
        if what in ("reload", "replace"):
            os.kill(server.pid, signal.SIGHUP if what == "reload" else signal.SIGUSR2)
            done[f"{name}: {what}"] += 1
            await asyncio.sleep(20 if what == "replace" else 0)
        elif what in ("descriptors", "memory"):
            await squeeze(server, what, draw, done)
        elif did := kill(server.pid, what, draw):
            done[f"{name}: {did}"] += 1


async def squeeze(server: Server, kind: str, draw: random.Random, done: Counter[str]) -> None:
    """Leaves a worker with few descriptors or little memory for ten seconds, beside 40 idle connections."""
    workers = [pid for pid, role in all_processes(server.pid).items() if role == "worker"]
    if not workers:
        return
    with suppress(OSError):
        limit = Limit(draw.choice(workers), kind)
        idle = [await asyncio.open_connection(*address(server), local_addr=("127.0.2.9", 0)) for _ in range(40)]
        await asyncio.sleep(10)
        limit.restore()
        for _, writer in idle:
            writer.close()
        done[f"killed: {kind}"] += 1


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@contextmanager
def servers(run: str, folder: Path) -> Iterator[tuple[dict[str, Server], dict[str, int]]]:
    """Both servers, and the ports of the proxies in front of them."""
    with ExitStack() as stack:
        started, ports = dict[str, Server](), dict[str, int]()
        for name, options in SERVERS.items():
            started[name] = Server(f"en-de={run}", "--device", "cpu", *PROXIED, *options)
            stack.callback(started[name].end)
            (folder / name).mkdir()
            ports[name] = stack.enter_context(nginx(folder / name, started[name].url))
        yield started, ports


class Period:
    """One call: runs the load, and writes a line per minute to the file of results."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self.options, self.number, self.seed = options, number, options.seed + number
        self.tally, self.done, self.attacks = Tally(), Counter[str](), Counter[str]()
        self.memory: list[tuple[float, str, dict[str, float]]] = []
        self.shares: list[float] = []
        self.pace = Pace(options.share)
        self.began = time.monotonic()

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            texts = list(dict.fromkeys(source for source, _ in open_pairs(TEXTS)))
            made = requests(texts, folder / "expected", partial(translated, self.options.run))
            with servers(self.options.run, folder) as (started, ports):
                asyncio.run(self._run(texts, made, started, ports))

    async def _run(self, texts: list[str], made: list[Any], started: dict[str, Server], ports: dict[str, int]) -> None:
        self.began = time.monotonic()
        end = self.began + 3600 * self.options.hours
        context = multiprocessing.get_context("spawn")
        counts = context.SimpleQueue()
        urls = [server.url for server in started.values()]
        process = context.Process(
            target=attack_servers, args=(urls, texts, self.seed, self.pace.value, end, counts), daemon=True
        )
        process.start()
        clients = [
            HttpClient(port, f"127.0.1.{number}", tls=tls, prefix="/weft", host="translate.example")
            for name, server in started.items()
            for tls, port in ((False, address(server)[1]), (True, ports[name]))
            for number in range(1 + 10 * tls, 1 + 10 * tls + CLIENTS)
        ]
        work = [
            honest(client, made, self.tally, random.Random(f"{self.seed} {number}"), self.options.pause, end)
            for number, client in enumerate(clients)
        ]
        for (name, server), pause in zip(started.items(), (90.0, 60.0), strict=True):
            work.append(operate(name, server, random.Random(f"{self.seed} {name}"), pause * self.options.scale, self.done, end))
        await asyncio.gather(*work, self._watch(started, process.pid or 0, counts, end))
        process.join(10)

    async def _watch(self, started: dict[str, Server], attackers: int, counts: Any, end: float) -> None:
        """Measures memory and CPU time, and writes what happened since the last line."""
        turn = 0
        while (now := time.monotonic()) < end:
            await asyncio.sleep(min(15.0 * self.options.scale, max(0.0, end - now)) + 0.1)
            pids = [os.getpid(), attackers]
            for name, server in started.items():
                processes = all_processes(server.pid)
                pids += processes
                hours = (time.monotonic() - self.began) / 3600
                self.memory.append((hours, name, asdict(held(processes))))
                self.memory.append((hours, f"{name}: main process", asdict(held({server.pid: "main"}))))
            self.shares.append(self.pace.follow(pids))
            while not counts.empty():
                self.attacks.update(counts.get())
            turn += 1
            if turn % 4 == 0 or time.monotonic() >= end:
                self._write()

    def _write(self) -> None:
        """Appends a line and begins the next one."""
        line = {
            "period": self.number,
            "seed": self.seed,
            "hours": (time.monotonic() - self.began) / 3600,
            "share": sum(self.shares) / max(1, len(self.shares)),
            "pace": self.pace(),
            "honest": self.tally.outcomes,
            "seconds": [round(each, 4) for each in self.tally.seconds],
            "errors": self.tally.errors[:20],
            "operations": self.done,
            "attacks": self.attacks,
            "memory": self.memory,
        }
        with open(self.options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.tally.outcomes.clear()
        for each in (self.tally.seconds, self.tally.errors, self.memory, self.shares):
            each.clear()
        self.done.clear()
        self.attacks.clear()


def read(results: str) -> list[dict[str, Any]]:
    """The lines of a file of results; the last one may be incomplete."""
    lines = []
    if Path(results).exists():
        for line in Path(results).read_text("utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return lines


def slopes(lines: list[dict[str, Any]], name: str, what: str, warm_up: float = WARM_UP) -> Slope | None:
    """The slope over all periods, each after its warm-up, from the means of minutes."""
    found = []
    for period in sorted({line["period"] for line in lines}):
        minutes = [
            [(hours, held[what]) for hours, each, held in line["memory"] if each == name and hours >= warm_up]
            for line in lines
            if line["period"] == period
        ]
        means = [[sum(values) / len(some) for values in zip(*some, strict=True)] for some in minutes if some]
        if each := slope([hours for hours, _ in means], [value for _, value in means]):
            found.append(each)
    return pooled(found)


def total(lines: list[dict[str, Any]], key: str) -> Counter[str]:
    return sum((Counter(line[key]) for line in lines), Counter[str]())


def report(lines: list[dict[str, Any]]) -> str:
    """The findings of all periods, in words and tables."""
    hours = {line["period"]: line["hours"] for line in lines}
    kinds: dict[str, Counter[str]] = {}
    for line in lines:
        for kind, outcomes in line["honest"].items():
            kinds.setdefault(kind, Counter()).update(outcomes)
    seconds = sorted(each for line in lines for each in line["seconds"])
    share = sum(line["share"] for line in lines) / len(lines)
    text = f"{sum(hours.values()):.2f} hours in {len(hours)} periods, {share:.2f} of a core on average\n\n"
    text += "| request | sent | answered at once | after a 503 | on a new connection | cut | lost | wrong |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for kind, found in kinds.items():
        numbers = [found[each] for each in ("ok", "repeated after 503", "reopened", "cut", "lost", "wrong")]
        text += f"| {kind} | {found.total()} | " + " | ".join(map(str, numbers)) + " |\n"
    if seconds:
        at = [1000 * seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.99, 1.0)]
        text += f"\nhonest p50 {at[0]:.0f} ms, p99 {at[1]:.0f} ms, slowest {at[2]:.0f} ms\n"
    text += f"\nhostile requests: {dict(total(lines, 'attacks'))}\noperations: {dict(total(lines, 'operations'))}\n\n"
    text += "| memory of | first MiB | last MiB | slope, MiB | descriptors, last |\n|---|---|---|---|---|\n"
    for name in dict.fromkeys(each for line in lines for _, each, _ in line["memory"]):
        some = [held for line in lines for _, each, held in line["memory"] if each == name]
        fitted = slopes(lines, name, "pss") or "too short"
        text += f"| {name} | {some[0]['pss']:.0f} | {some[-1]['pss']:.0f} | {fitted} | {some[-1]['descriptors']} |\n"
    return text + "".join(f"\n{error}" for line in lines for error in line["errors"][:3])


def bad(lines: list[dict[str, Any]]) -> int:
    """Honest requests that were lost or wrong."""
    return sum(each[name] for line in lines for each in line["honest"].values() for name in ("lost", "wrong") if name in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a trained run")
    parser.add_argument("--hours", type=float, default=1.0, help="length of the period to add")
    parser.add_argument("--results", default="serve_for_hours.jsonl", help="file to add the period to")
    parser.add_argument("--report", metavar="FILE", help="only report what this file has")
    parser.add_argument("--share", type=float, default=0.25, help="the share of a core that all processes may use")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two requests of an honest client")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies pauses between operations and measurements")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.report:
        print(report(read(options.report)))
        return
    if not options.run:
        parser.error("RUN is missing")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers as well
    number = 1 + max((line["period"] for line in read(options.results)), default=0)
    Period(options, number).run()
    mine = [line for line in read(options.results) if line["period"] == number]
    print(report(mine))
    sys.exit(bool(bad(mine)))


if __name__ == "__main__":
    main()
