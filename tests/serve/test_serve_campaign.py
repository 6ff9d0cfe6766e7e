"""The campaign of benchmarks/campaigns/serve_for_hours.py in two seconds: honest clients beside all kinds of hostile ones."""

from __future__ import annotations

import asyncio
import importlib
import math
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _import_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS, BENCHMARKS / "campaigns"):
        monkeypatch.syspath_prepend(str(folder))


def letters(count: int) -> list[str]:
    draw = random.Random(3)
    return list(dict.fromkeys(" ".join(draw.choices("abcdefghij", k=draw.randint(1, 7))) for _ in range(count)))


def test_honest_answers_are_those_of_the_command_line_beside_hostile_clients(
    serve: Any, weft: tiny.Shell, reverse_run: Path, tmp_path: Path
) -> None:
    requests, hostile = (importlib.import_module(name) for name in ("honest_requests", "serve_hostile"))

    def translated(source: Path, out: Path) -> str:
        weft("translate", reverse_run, source, "-o", out, "--device", "cpu")
        return out.read_text("utf-8")

    texts, counts = letters(300), Counter[str]()
    made = requests.requests(texts, tmp_path / "expected", translated)
    shown = serve(Models([ModelLocation((str(reverse_run),), ("en", "de"))], device="cpu"), cache=0)
    port, tally, end = int(shown.url.rpartition(":")[2]), requests.Tally(), time.monotonic() + 2

    async def run() -> None:
        clients = [requests.HttpClient(port, f"127.0.1.{number}") for number in range(1, 5)]
        work = [requests.honest(each, made, tally, random.Random(n), 0.1, end) for n, each in enumerate(clients)]
        attacks = [hostile.attack(kind, shown.url, texts, end, counts, lambda: 4.0) for kind in hostile.ATTACKS]
        await asyncio.gather(*work, *attacks)
        client = requests.HttpClient(port, "127.0.1.9")
        for kind in ("one text", "16 texts", "long text", "file"):  # also if there was no time for one of them
            for request in [each for each in made if each.kind == kind][:4]:
                assert (await requests.answered(client, request))[0] == "ok", kind
        client.close()

    asyncio.run(run())
    assert not tally.errors and tally.outcomes["one text"]["ok"] > 0
    assert {kind.__name__ for kind in hostile.ATTACKS} == counts.keys()


def test_a_wrong_and_a_missing_answer_are_told_apart(served: Any) -> None:
    requests = importlib.import_module("honest_requests")
    port = int(served.url.rpartition(":")[2])

    async def outcome(path: str, expected: str) -> str:
        client = requests.HttpClient(port, "127.0.0.1")
        request = requests.posted(path, {"q": "a b", "source": "en", "target": "de"}, "x", expected, lambda raw: raw.decode())
        try:
            return str((await requests.answered(client, request))[0])
        finally:
            client.close()

    assert asyncio.run(outcome("/translate", '{"translatedText":"b a"}')) == "ok"
    assert asyncio.run(outcome("/translate", '{"translatedText":"a b"}')) == "wrong"
    assert asyncio.run(outcome("/nowhere", "")) == "lost"


def test_periods_of_a_campaign_add_up() -> None:
    hours = importlib.import_module("serve_for_hours")

    def line(period: int, minute: int, growth: float, outcomes: dict[str, int]) -> dict[str, Any]:
        at = minute / 60
        wave = math.sin(2.5 * minute)
        held = {"rss": 400 + growth * at + wave, "pss": 300 + growth * at + wave, "descriptors": 20}
        return {
            "period": period,
            "hours": at,
            "share": 0.2,
            "honest": {"file": outcomes},
            "seconds": [0.01],
            "errors": [],
            "operations": {"kill worker": 1},
            "attacks": {"greedy": 2},
            "memory": [[at, "steady", held]],
        }

    lines = [line(1, minute, 6.0, {"ok": 1}) for minute in range(61)] + [
        line(2, minute, 6.0, {"ok": 1}) for minute in range(31)
    ]
    slope = hours.slopes(lines, "steady", "pss")
    assert slope.per_hour == pytest.approx(6.0, abs=3 * slope.error) and 0 < slope.error < 1.5
    text = hours.report(lines)
    assert "1.50 hours in 2 periods" in text and "| file | 92 | 92 | 0 | 0 | 0 | 0 | 0 |" in text and "'greedy': 184" in text
    assert hours.bad(lines) == 0 and hours.bad([*lines, line(2, 32, 6.0, {"lost": 1, "wrong": 2})]) == 3
