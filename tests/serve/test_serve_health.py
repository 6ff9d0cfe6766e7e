"""The model's thread: health, restarts, and what answers may contain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.serving import wait_for
from weft.tasks.translation.predictor import TranslationPredictor


def test_health_tests_the_models(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = serve()
    assert shown.client.get("/health").json() == {"status": "ok"}

    message = "secret text"

    def fail(*_: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(TranslationPredictor, "run", fail)
    monkeypatch.setattr("weft.serve.service.RECENT", 0.0)
    shown.server.service.health._last = (float("-inf"), [])
    answer = shown.client.get("/health")
    assert answer.status_code == 503 and answer.json()["error"] == "reverse: RuntimeError; other: RuntimeError"
    shown.post("/v1/translate", status=500, text="x y z", model="reverse")
    wait_for(lambda: any(each.get("status") == 500 for each in shown.lines))
    assert message not in json.dumps(shown.lines) and "x y z" not in json.dumps(shown.lines)


def test_a_dead_thread_is_replaced(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = serve()
    real = TranslationPredictor.run

    def run(predictor: Any, parts: Any, control: Any = None) -> Any:
        if any(part.text == "end" for part in parts):
            raise SystemExit
        return real(predictor, parts, control)

    monkeypatch.setattr(TranslationPredictor, "run", run)
    shown.post("/v1/translate", status=500, text="end", model="reverse")
    assert shown.translate("a b", model="reverse")[0]["text"] == "b a"
    assert "weft_worker_restarts_total 1.0" in shown.client.get("/metrics").text
    assert any("starting another" in each["event"] for each in shown.lines)


def test_attention_is_bounded_and_rounded(serve: Any) -> None:
    shown = serve(cells=1000)
    (found,) = shown.translate("a b", model="reverse", attention=True)
    weights = [value for layer in found["attention"].values() for head in layer for row in head for value in row]
    assert weights and all(value == round(value, 4) for value in weights)
    refused = shown.post("/v1/translate", status=400, text=["a b c d e f g"] * 9, model="reverse", attention=True)
    assert "exceed the limit of 1,000" in refused["error"] and "alignment" in refused["error"]
    assert shown.translate(["a b c d e f g"] * 9, model="reverse", alignment=True)[8]["alignment"]


def test_terms_that_do_not_fit_are_named_and_cost_no_score(served: Any) -> None:
    (found,) = served.translate("a b", model="reverse", use=["h i j k l m"], max_length=3)
    assert found["unmet"] == ["h i j k l m"] and found["score"] > -1000
    (found,) = served.translate("a b", model="reverse", use=["h"])
    assert "unmet" not in found
    assert "temperature" in served.post("/v1/translate", status=422, text="a", sample=True, temperature=0)["error"]


@pytest.mark.parametrize("page", ["<![foo[", "<![CDATA[x]]>", "<script>a b", "a <b", "<p>a b<!-- c", "&#xD800; a"])
def test_broken_html_is_answered(served: Any, page: str) -> None:
    assert served.post("/translate", q=page, source="en", target="de", format="html")["translatedText"]
