"""Limits of the server, and its robustness against malformed requests."""

from __future__ import annotations

import gc
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from tests.helpers.serving import Slow, connected, post, wait_for
from weft.decoding.search_loop import Cancellation
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.translation.predictor import TranslationPredictor


def test_a_full_queue_says_when_to_retry(serve: Any, slow: Slow) -> None:
    shown = serve(queue=3)
    first = slow.pool.submit(shown.translate, "a b", model="reverse")
    assert slow.began.wait(30)
    second = slow.pool.submit(shown.translate, ["c d", "e f", "g h"], model="reverse")
    wait_for(lambda: shown.server.service.batcher.length == 3)
    answer = shown.client.post("/translate", json={"q": "i j", "source": "en", "target": "de"})
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1 and "waiting" in answer.json()["error"]
    slow.go.set()
    assert first.result()[0]["text"] == "b a"
    assert [each["text"] for each in second.result()] == ["d c", "f e", "h g"]
    assert shown.translate("i j", model="reverse")


def test_waiting_texts_are_batched_within_the_token_budget(serve: Any, slow: Slow) -> None:
    shown = serve(batch_tokens=12, slice=1e6)  # the test itself makes batches slow
    texts = [f"{a} {b}" for a, b in zip("abcdefg", "ijklmno", strict=True)]
    first = slow.pool.submit(shown.translate, "q r", model="reverse")
    assert slow.began.wait(30)
    rest = [slow.pool.submit(shown.translate, text, model="reverse") for text in texts]
    other = slow.pool.submit(shown.translate, "a b", model="reverse", beam=2, n_best=2)
    wait_for(lambda: shown.server.service.batcher.length == 8)
    slow.go.set()
    assert all(each.result() for each in [first, other, *rest])
    assert sorted(map(len, slow.batches)) == [1, 1, 3, 4]
    assert "alternatives" in other.result()[0]


def test_a_timeout_removes_texts_from_the_queue(serve: Any, slow: Slow) -> None:
    shown = serve(timeout=0.3)
    asked = [
        slow.pool.submit(shown.client.post, "/v1/translate", json={"text": text, "model": "reverse"}) for text in ("a", "b")
    ]
    assert {each.result().status_code for each in asked} == {504}
    wait_for(lambda: shown.server.service.batcher.length == 0)
    slow.go.set()
    assert shown.translate("c d", model="reverse")[0]["text"] == "d c"


def test_texts_of_a_disconnected_client_are_dropped(serve: Any, slow: Slow) -> None:
    shown = serve()
    first = slow.pool.submit(shown.translate, "a b", model="reverse")
    assert slow.began.wait(30)
    with connected(shown) as line:
        line.sendall(post(b'{"text": "c d", "model": "reverse"}'))
        wait_for(lambda: shown.server.service.batcher.length == 1)
    wait_for(lambda: shown.server.service.batcher.length == 0)
    slow.go.set()
    assert first.result()
    assert [text for batch in slow.batches for text in batch] == ["a b"]
    wait_for(lambda: any(each.get("status") == 499 for each in shown.lines))


def test_a_running_text_is_stopped_when_its_client_leaves_and_is_not_cached(serve: Any, slow: Slow) -> None:
    shown = serve(window=0.2)
    batcher = shown.server.service.batcher
    with connected(shown) as line:
        line.sendall(post(b'{"text": "c d", "model": "reverse"}'))
        other = slow.pool.submit(shown.translate, "a b", model="reverse")
        assert slow.began.wait(30)
        assert [slow.wanted[0](row) for row in range(len(slow.batches[0]))] == [True] * len(slow.batches[0])
    gone = slow.batches[0].index("c d")
    wait_for(lambda: not slow.wanted[0](gone))
    slow.go.set()
    assert other.result()[0]["text"] == "b a"
    assert [ask.text for ask in batcher.cache] == ["a b"]


def test_one_bad_text_fails_alone(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TranslationPredictor.run

    def run(predictor: Any, parts: Any, control: Cancellation | None = None) -> Any:
        if any(part.text == "bad" for part in parts):
            raise RuntimeError("no")
        return real(predictor, parts, control)

    monkeypatch.setattr(TranslationPredictor, "run", run)
    shown = serve(window=0.05)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(shown.client.post, "/v1/translate", json={"text": text, "model": "reverse"})
            for text in ("a b", "bad", "c d")
        ]
        answers = [each.result() for each in asked]
    assert [each.status_code for each in answers] == [200, 500, 200]
    assert answers[1].json() == {"error": "internal error"}
    wait_for(lambda: any("RuntimeError" in each.get("error", "") for each in shown.lines))


def test_a_reloaded_model_is_freed(serve: Any, slow: Slow, reverse_run: Path) -> None:
    """An answer of the old model that arrives after the reload must not keep it alive in the cache."""
    shown = serve(Models([ModelLocation((str(reverse_run),))], device="cpu"), keys=frozenset({"key"}))
    key, old = {"Authorization": "Bearer key"}, ref(shown.server.service.models.served[0])
    asked = slow.pool.submit(shown.translate, "a b", headers=key)
    assert slow.began.wait(30)
    assert shown.client.post("/v1/reload", headers=key).status_code == 200
    slow.go.set()
    assert asked.result()[0]["text"] == "b a"
    assert shown.translate("c d", headers=key)[0]["text"] == "d c"  # the model's thread still refers to its last batch
    slow.wanted.clear()
    wait_for(lambda: gc.collect() >= 0 and old() is None, times=20)


def test_keys(serve: Any) -> None:
    shown = serve(keys=frozenset({"one", "two"}))
    asked = {"q": "a b", "source": "en", "target": "de"}
    assert shown.post("/translate", **asked, api_key="two") == {"translatedText": "b a"}
    assert shown.post("/translate", **asked, headers={"Authorization": "Bearer one"}) == {"translatedText": "b a"}
    assert "Invalid API key" in shown.post("/translate", status=403, **asked, api_key="three")["error"]
    assert "send an API key" in shown.post("/detect", status=400, q="a")["error"]
    shown.post("/v1/translate", status=403, text="a", model="reverse", headers={"X-API-Key": "on"})
    assert shown.client.get("/metrics").status_code == 400
    assert shown.client.get("/metrics", params={"api_key": "one"}).status_code == 200
    assert shown.client.get("/health").status_code == 200
    assert shown.client.get("/frontend/settings").json()["keyRequired"] is True


def test_rates_are_limited_per_key(serve: Any) -> None:
    shown = serve(keys=frozenset({"one", "two"}), rate=2)
    asked = {"q": "a b", "source": "en", "target": "de"}
    for _ in range(2):
        shown.post("/translate", **asked, api_key="one")
    answer = shown.client.post("/translate", json={**asked, "api_key": "one"})
    assert answer.status_code == 429 and 1 <= int(answer.headers["retry-after"]) <= 31
    shown.post("/translate", **asked, api_key="two")


def test_other_sites_need_permission(served: Any, serve: Any) -> None:
    asked = {"headers": {"Origin": "https://one.example", "Access-Control-Request-Method": "POST"}}
    assert "access-control-allow-origin" not in served.client.options("/translate", **asked).headers
    open_to_one = serve(origins=("https://one.example",))
    answer = open_to_one.client.options("/translate", **asked)
    assert answer.headers["access-control-allow-origin"] == "https://one.example"
    # DNS rebinding: a site may point its own name at this machine.
    assert served.client.get("/health", headers={"Host": "evil.example"}).status_code == 400
    assert served.client.get("/health", headers={"Host": "localhost:1"}).status_code == 200
    assert "default-src 'self'" in served.client.get("/").headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/etc/passwd", "//etc/passwd", "/static/"]
)
def test_no_path_leads_to_other_files(served: Any, path: str) -> None:
    assert served.client.get(path).status_code == 404


def test_logs_contain_texts_only_on_request(serve: Any) -> None:
    quiet, open_ = serve(), serve(log_text=True)
    for shown in (quiet, open_):
        shown.translate("x y z", model="reverse")
        wait_for(lambda s=shown: any(each["event"] == "request" for each in s.lines))
    line = next(each for each in quiet.lines if each["event"] == "request")
    assert line["route"] == "/v1/translate" and line["status"] == 200 and line["characters"] == 5 and line["model"] == "reverse"
    assert "x y z" not in json.dumps(quiet.lines) and "x y z" in json.dumps(open_.lines)


def test_metrics_are_in_prometheus_format(serve: Any) -> None:
    shown = serve()
    shown.translate(["a b", "c d"], model="reverse")
    lines = shown.client.get("/metrics").text.splitlines()
    assert "weft_texts_total 2.0" in lines and 'weft_requests_total{route="/v1/translate",status="200"} 1.0' in lines
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


# --- malformed requests -------------------------------------------------------------------------------------------------


def answer(line: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received and (part := line.recv(65536)):
        received += part
    return received


def test_large_and_slow_bodies_are_refused(serve: Any) -> None:
    shown = serve(body=1000, arrive=0.3)
    with connected(shown) as line:
        line.sendall(post(b"{", length=10_000))
        assert answer(line).startswith(b"HTTP/1.1 413")
    with connected(shown) as line:
        line.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        line.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n3e8\r\n" + b" " * 1000 + b"\r\n")
        assert answer(line).startswith(b"HTTP/1.1 413")
    with connected(shown) as line:
        line.sendall(post(b"{", length=100))
        assert answer(line).startswith(b"HTTP/1.1 408")
    assert shown.translate("a b", model="reverse")[0]["text"] == "b a"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000,
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        post(b'{"text": "a b"', length=1000),
        post(b"\x00" * 500),
    ],
)
def test_the_server_survives_malformed_requests(served: Any, sent: bytes) -> None:
    with connected(served) as line, suppress(OSError):  # the server may close the connection early
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
        while line.recv(65536):
            pass
    assert served.client.get("/health").json() == {"status": "ok"}


def test_silent_connections_are_closed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.serve.http_protocol.HEADERS_WITHIN", 0.2)
    shown = serve()
    with connected(shown) as silent, connected(shown) as slow:
        slow.sendall(b"GET /health HTT")
        assert silent.recv(1) == slow.recv(1) == b""
    assert shown.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/explain", "/translate", "/detect", "/suggest"])
def test_unpaired_surrogates_are_refused_in_every_field(served: Any, path: str) -> None:
    fields = ("text", "q", "s", "source", "target", "model", "format", "prefix", "alternatives", "other\ud800")
    for field in fields:
        body = {"text": "a", "q": "a", "s": "b", "source": "en", "target": "de", field: "x\ud800"}
        for sent in (body, {name: value for name, value in body.items() if name in ("text", "source", "target", field)}):
            answer = served.client.post(path, content=json.dumps(sent), headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400, 403, 422), (field, answer.text)


def test_an_error_says_no_more_than_a_line(served: Any) -> None:
    long = "x\n" * 250_000
    for body in ({"text": "a", long: 1}, {"text": "a", "source": long, "target": "de"}, {"text": "a", "model": long}):
        for path in ("/v1/translate", "/v1/explain", "/translate"):
            answer = served.client.post(path, json={"q": "a", **body})
            assert answer.status_code in (400, 422) and len(answer.content) < 1000 and "\\n" not in answer.text
    many = {f"field {number}": 1 for number in range(10_000)}
    assert len(served.client.post("/v1/translate", json={"text": "a", **many}).content) < 1000
    named = served.client.post("/translate", content=b"a", headers={"Content-Type": "x" * 20_000})
    assert named.status_code == 415 and len(named.content) < 1000


@pytest.mark.parametrize("content", ["a\n" * 500_000, "".join(f"{n:x} a\n" for n in range(120_000)), "1\n" * 500_000])
def test_files_of_very_many_lines_are_refused_before_the_server_makes_queries(
    served: Any, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    received, readers = list[Any](), served.server.service.readers
    real, made = readers.do, list[Any]()

    async def do(*arguments: Any, **options: Any) -> Any:
        received.append(result := await real(*arguments, **options))
        return result

    monkeypatch.setattr(readers, "do", do)
    monkeypatch.setattr("weft.serve.libretranslate_api.TranslationQuery", lambda *_, **__: made.append(1))
    form = {"files": {"file": ("x.txt", content[: 1 << 19].encode())}, "data": {"source": "en", "target": "de"}}
    answer = served.client.post("/translate_file", **form)
    assert answer.status_code == 400 and "this server takes at most" in answer.json()["error"]
    assert not received and not made
    texts = [content[:6_000]] * 60
    answer = served.client.post("/translate", json={"q": texts, "source": "en", "target": "de"})
    assert answer.status_code == 400 and not received and not made


def test_a_file_may_repeat_lines(served: Any) -> None:
    form = {"files": {"file": ("x.txt", b"a b\n1\n" * 3_000)}, "data": {"source": "en", "target": "de"}}
    place = served.client.post("/translate_file", **form).json()["translatedFileUrl"]
    assert served.client.get(place).content == b"b a\n1\n" * 3_000
