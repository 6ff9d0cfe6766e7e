"""What an operator sees: request ids, metrics, the size of the cache, and the description of the API."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.serving import wait_for
from weft.serve.bounded_cache import BoundedCache, bytes_of
from weft.serve.prometheus import FOLDER


def test_the_log_names_each_request_its_client_and_its_key(serve: Any) -> None:
    shown = serve(keys=frozenset({"secret"}))
    answer = shown.client.post("/translate", json={"q": "a", "api_key": "secret"}, headers={"X-Request-ID": "from-proxy.1"})
    assert answer.headers["x-request-id"] == "from-proxy.1"
    other = shown.client.get("/languages", headers={"X-Request-ID": "not an id"}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", other)
    wait_for(lambda: sum(each["event"] == "request" for each in shown.lines) == 2)
    first, second = [each for each in shown.lines if each["event"] == "request"]
    assert (first["id"], first["client"], first["key"]) == ("from-proxy.1", "127.0.0.1", "option 1")
    assert (second["id"], second["client"]) == (other, "127.0.0.1") and "key" not in second


def test_an_internal_error_is_logged_with_the_id_that_the_client_got(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = serve()
    monkeypatch.setattr("weft.serve.libretranslate_api.detect_language", lambda *_: 1 / 0)
    answer = shown.client.post("/detect", json={"q": "a"})
    assert answer.status_code == 500
    wait_for(lambda: any(each["event"] == "error" for each in shown.lines))
    assert [each["id"] for each in shown.lines if each["event"] == "error"] == [answer.headers["x-request-id"]]


def test_metrics_show_batches_queues_routes_and_the_cache(serve: Any) -> None:
    shown = serve()
    shown.translate(["a b", "c d", "e f"], model="reverse")
    lines = shown.client.get("/metrics").text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert found['weft_batch_sentences_sum{model="reverse"}'] == "3.0"
    assert found['weft_queue_seconds_count{model="reverse"}'] == "3.0"
    assert float(found['weft_batch_seconds_sum{model="reverse"}']) > 0
    assert found['weft_request_seconds_count{route="/v1/translate"}'] == "1.0"
    assert float(found["weft_cache_bytes"]) > 1000 and found["weft_failed_reloads_total"] == "0.0"


COUNTING = """
from weft.serve.prometheus import Metrics
import sys
metrics = Metrics()
metrics.add_gauge("models", "models in memory", lambda: 3)
for route in sys.argv[1:]:
    metrics.count(texts=2)
    metrics.request(route, 200, 0.02)
metrics.refresh_gauges()
print(metrics.text())
"""


def test_metrics_of_several_processes_are_added(tmp_path: Path) -> None:
    def text(*routes: str) -> str:
        command, environment = [sys.executable, "-c", COUNTING, *routes], {**os.environ, FOLDER: str(tmp_path)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    text("/a")
    lines = text("/a", "/b").splitlines()
    assert "weft_texts_total 6.0" in lines and 'weft_requests_total{route="/a",status="200"} 2.0' in lines
    assert 'weft_request_seconds_bucket{le="0.025",route="/b"} 1.0' in lines
    assert lines.count("# TYPE weft_texts_total counter") == 1 and "# HELP weft_texts_total texts decoded" in lines
    assert "weft_models 6.0" in lines


def test_the_cache_is_bounded_by_bytes(serve: Any) -> None:
    shown = serve(cache=20_000)
    cache = shown.server.service.batcher.cache
    for number in range(20):
        shown.translate(f"a b {number}", model="reverse")
        assert 0 < cache.used <= 20_000
    assert 1 < len(cache) < 20
    kept = BoundedCache[int, str](10, lambda key, value: len(value))
    for key, value in ((1, "aaaa"), (2, "bbbb"), (1, "cccc"), (3, "dd"), (4, "e" * 11)):
        kept[key] = value
    assert list(kept.items()) == [(2, "bbbb"), (1, "cccc"), (3, "dd")] and kept.used == 10
    kept[5] = "f"
    assert list(kept) == [1, 3, 5] and kept.used == 7
    assert bytes_of(["a" * 1000, {"b": "c" * 1000}]) > 2000


def test_the_description_says_where_the_key_goes(serve: Any, served: Any) -> None:
    closed = serve(keys=frozenset({"k"})).client.get("/openapi.json").json()
    schemes = closed["components"]["securitySchemes"]
    assert closed["paths"]["/translate"]["post"]["security"] == [{name: []} for name in schemes]
    assert {} in served.client.get("/openapi.json").json()["paths"]["/translate"]["post"]["security"]
    assert "security" not in closed["paths"]["/health"]["get"]


def test_limits_of_characters_hold_for_each_text(serve: Any) -> None:
    shown = serve(characters=10)
    assert len(shown.post("/translate", q=["a b c d"] * 3, source="en", target="de")["translatedText"]) == 3
    shown.post("/translate", status=400, q=["a", "a b c d e f"], source="en", target="de")
    shown.post("/v1/translate", status=400, text="a", prefix="a b c d e f", model="reverse")
    assert len(shown.translate(["a b c d"] * 200, model="reverse", prefix=["a"] * 200)) == 200


def test_many_large_bodies_leave_no_memory_behind(serve: Any) -> None:
    shown = serve(body=200_000)
    body = b'{"q": "%s"}' % (b"x" * 150_000)

    def send(times: int) -> int:
        for _ in range(times):
            httpx.post(f"{shown.url}/translate", content=body, headers={"content-type": "application/json"}, trust_env=False)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = send(5)
        assert send(20) - before < 10 * len(body)  # the server may still hold the last one or two
    finally:
        tracemalloc.stop()
