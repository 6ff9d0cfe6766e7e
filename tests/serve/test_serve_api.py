"""Responses of the server: the LibreTranslate API with its Python client, and the JSON API."""

from __future__ import annotations

import json
import re
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from tests.helpers import tiny
from weft import load
from weft.errors import ConfigError
from weft.serve.languages import languages_of
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models, parse_location
from weft.tasks.translation.glossary import Terms


def sentences(count: int, seed: int = 1) -> list[str]:
    random = Random(seed)
    return [" ".join(random.choices(string.ascii_lowercase[:20], k=random.randint(1, 7))) for _ in range(count)]


def test_the_python_client_of_libretranslate_works(served: Any) -> None:
    client = LibreTranslateAPI(served.url)
    assert client.translate("a b c", "en", "de") == "c b a"
    assert [(each["code"], each["targets"]) for each in client.languages()] == [("en", ["de"]), ("de", []), ("fr", ["de"])]
    assert client.languages()[0]["name"] == "English"
    found = client.detect("the dog and the cat are in the house")
    assert found[0]["language"] == "en" and found[0]["confidence"] > 80


def test_translate_takes_json_forms_and_lists(served: Any) -> None:
    fields = {"q": "a b c", "source": "en", "target": "de"}
    for body in ({"json": fields}, {"data": fields}, {"files": {name: (None, value) for name, value in fields.items()}}):
        assert served.client.post("/translate", **body).json() == {"translatedText": "c b a"}
    assert served.post("/translate", **{**fields, "q": ["a b", "c d", ""]}) == {"translatedText": ["b a", "d c", ""]}
    assert served.post("/translate", **{**fields, "q": "a b\n\n c d \r\n"})["translatedText"] == "b a\n\nd c\r\n"
    assert served.post("/translate", **{**fields, "source": "auto", "q": "the and of"})["detectedLanguage"]["language"] == "en"


def test_alternatives_are_the_rest_of_the_n_best(served: Any, reverse_run: Path) -> None:
    found = served.post("/translate", q=["a b c", "d e"], source="en", target="de", alternatives=3)
    expected = load(reverse_run).translate(["a b c", "d e"], n_best=4)
    assert found["alternatives"] == [[other.text for other in each.alternatives] for each in expected]
    assert len(found["alternatives"][0]) == 3


def test_html_keeps_its_markup_and_translations_are_escaped(served: Any) -> None:
    page = (
        '<!DOCTYPE html><p class="x">a b <b>c d</b> e f<br/>\n'
        '<!-- g h --><code>a &amp; b</code><span translate="no">a b</span></p>'
    )
    expected = page.replace("a b <b>c d</b> e f", "f e <b>d c</b> b a")
    assert served.post("/translate", q=page, source="en", target="de", format="html")["translatedText"] == expected
    assert served.translate([page, "<p>a b</p>"], model="reverse", format="html")[0]["text"] == expected
    found = served.post("/v1/translate", status=400, text=page, model="reverse", format="html", attention=True)
    assert "a document has no prefix" in found["error"]


def test_sentences_are_translated_one_by_one_and_alignments_joined(served: Any) -> None:
    one, other = served.translate(["a b c!", "d e f!"], model="reverse", alignment=True)
    (both,) = served.translate("a b c! d e f!", model="reverse", alignment=True)
    assert both["text"] == f"{one['text']} {other['text']}"
    aligned, rows = both["alignment"], len(one["alignment"]["target"])
    assert len(aligned["weights"]) == len(aligned["target"]) == rows + len(other["alignment"]["target"])
    columns = len(one["alignment"]["source"])
    assert [row[:columns] for row in aligned["weights"][:rows]] == one["alignment"]["weights"]
    assert not any(any(row[columns:]) for row in aligned["weights"][:rows])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"source": "en", "target": "de"}, 400, "missing q"),
        ({"q": "a", "target": "de"}, 400, "missing source"),
        ({"q": "a", "source": "en"}, 400, "missing target"),
        ({"q": "a", "source": "xx", "target": "de"}, 400, "xx is not supported"),
        ({"q": "a", "source": "en", "target": "fr"}, 400, "fr is not available as a target language from en"),
        ({"q": 3, "source": "en", "target": "de"}, 400, "q must be"),
        ({"q": ["a", 3], "source": "en", "target": "de"}, 400, "q must be"),
        ({"q": "a", "source": "en", "target": "de", "format": "pdf"}, 400, "format"),
        ({"q": "a", "source": "en", "target": "de", "format": ["text"]}, 400, "format"),
        ({"q": "a", "source": "en", "target": "de", "alternatives": -1}, 400, "alternatives"),
        ({"q": "a\ud800", "source": "en", "target": "de"}, 400, "Unicode"),
        ({"q": "a " * 6000, "source": "en", "target": "de"}, 400, "exceeds text limit"),
    ],
)
def test_errors_have_the_format_of_libretranslate(served: Any, body: dict[str, Any], status: int, says: str) -> None:
    found = served.post("/translate", status=status, **body)
    assert list(found) == ["error"] and says in found["error"]


@pytest.mark.parametrize("raw", [b"{", b"[1]", b'"x"', b"[" * 100_000, b"\xff\xfe", b"1" * 5000])
def test_malformed_bodies_are_refused(served: Any, raw: bytes) -> None:
    for path in ("/translate", "/detect", "/v1/translate"):
        answer = served.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422) and list(answer.json()) == ["error"]


def test_health_settings_schema_and_models(served: Any) -> None:
    assert served.client.get("/health").json() == {"status": "ok"}
    settings = served.client.get("/frontend/settings").json()
    assert settings["charLimit"] == 10_000 and settings["keyRequired"] is False
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    schema = served.client.get("/openapi.json").json()
    assert {"/translate", "/v1/translate", "/languages", "/detect", "/health"} <= set(schema["paths"])
    fields = schema["components"]["schemas"]["TranslateRequest"]["properties"]
    assert fields["model"]["anyOf"][0]["enum"] == ["reverse", "other"]
    assert fields["source"]["anyOf"][0]["enum"] == ["auto", "en", "fr"]
    body = schema["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["source"]["enum"] == ["auto", "en", "fr"] and body["properties"]["target"]["enum"] == ["de"]
    assert served.client.get("/nothing").json() == {"error": "Not Found"}
    models = served.client.get("/v1/models").json()
    assert [(each["name"], each["source"], each["target"]) for each in models] == [
        ("reverse", "en", "de"),
        ("other", "fr", "de"),
    ]


def test_many_clients_get_the_same_as_python_and_the_command_line(served: Any, reverse_run: Path, weft: tiny.Shell) -> None:
    """Text and score of a sentence do not depend on its batch, for several beam sizes."""
    texts = sentences(200)
    before = _count(served, "weft_batches_total")
    for options in ({}, {"beam": 3, "n_best": 2}):
        expected = load(reverse_run, device="cpu").translate(texts, **options)
        flags = [f"--set={name}={value}" for name, value in options.items()]
        said = weft("translate", reverse_run, "--json", *flags, stdin="\n".join(texts) + "\n").splitlines()
        assert [json.loads(line)["text"] for line in said] == [each.text for each in expected]
        assert [json.loads(line)["score"] for line in said] == pytest.approx([each.score for each in expected], abs=1e-5)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda text, o=options: served.translate(text, model="reverse", **o)[0], texts))
        assert [each["text"] for each in found] == [each.text for each in expected]
        assert [each["tokens"] for each in found] == [each.tokens for each in expected]
        assert [each["score"] for each in found] == pytest.approx([each.score for each in expected], abs=1e-5)
    assert _count(served, "weft_batches_total") - before < 2 * len(texts)


def test_search_options(served: Any, reverse_run: Path) -> None:
    translator = load(reverse_run, device="cpu")
    (found,) = served.translate("a b c", model="reverse", prefix="c", n_best=3, beam=4)
    expected = translator.translate("a b c", prefix="c", n_best=3, beam=4)
    assert found["text"] == expected.text and found["text"].startswith("c")
    assert [each["text"] for each in found["alternatives"]] == [each.text for each in expected.alternatives]
    samples = served.translate(["a b c"] * 2, model="reverse", sample=True, temperature=3.0, seed=5, n_best=4)
    again = translator.translate("a b c", sample=True, temperature=3.0, seed=5, n_best=4)
    assert samples[0] == samples[1] and samples[0]["text"] == again.text
    (full,) = served.translate("a b c", model="reverse", attention=True, alignment=True)
    layer = next(name for name in full["attention"] if ".cross" in name)
    assert len(full["attention"][layer][0]) == len(full["tokens"]) == 4
    aligned = full["alignment"]
    assert "".join(aligned["target"]) == "c b a" and len(aligned["weights"]) == 3
    assert "".join(aligned["source"]) == "a b c" and aligned["source"][-1] == ""
    assert {len(row) for row in aligned["weights"]} == {len(aligned["source"])} == {4}


def test_terms_are_used_and_avoided(served: Any, reverse_run: Path) -> None:
    (found,) = served.translate("a b c", model="reverse", use=["h", "e f"])
    assert "h" in found["text"].split() and "e f" in found["text"]
    (other,) = served.translate("a b c", model="reverse", avoid=["b"])
    assert "b" not in other["text"].split()
    expected = load(reverse_run).translate("a b c", terms=Terms(("h", "e f")))
    assert found["text"] == expected.text and found["score"] == pytest.approx(expected.score, abs=1e-5)
    answer = served.post("/v1/translate", status=400, text="a", model="reverse", use=["ÄÖ"])
    assert "'ÄÖ'" in answer["error"]
    first, second = served.translate(["a b c", "d e"], model="reverse", glossary={"A": "h", "c": "! b", "z": "k"})
    assert "h" in first["text"].split() and "b" not in first["text"].split() and second["text"] == "e d"
    served.post("/v1/translate", status=422, text="a", model="reverse", glossary={"a": "!"})
    assert (
        "exceeds text limit"
        in served.post(
            "/v1/translate",
            status=400,
            text="a",
            model="reverse",
            glossary={f"{place}" * 100: "b" * 200 for place in range(100)},
        )["error"]
    )


def test_the_source_language_is_detected(served: Any) -> None:
    for text, code in (("the of and to", "en"), ("de la le et les", "fr")):
        assert served.post("/v1/translate", text=text, source="auto", target="de")["source"] == code
    served.post("/v1/translate", status=400, text="the", source="auto")
    served.post("/v1/translate", status=400, text="the", source="auto", target="xx")


def test_a_browser_gets_errors_as_a_page(served: Any) -> None:
    browser = {"Accept": "text/html,*/*;q=0.8"}
    answer = served.client.post("/v1/explain", data={"text": "a", "model": "<b>"}, headers=browser)
    assert answer.status_code == 400 and answer.headers["content-type"].startswith("text/html")
    assert "There is no model &#x27;&lt;b&gt;&#x27;; choose one of: reverse, other." in answer.text
    assert 'href="../static/page.css"' in answer.text
    assert 'href="./static/page.css"' in served.client.get("/nothing", headers=browser).text
    assert served.client.get("/nothing", headers={"Accept": "*/*"}).json() == {"error": "Not Found"}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"text": "a"}, 400, "several models"),
        ({"text": "a", "model": "none"}, 400, "choose one of: reverse, other"),
        ({"text": "a", "model": "reverse", "beam": 99}, 400, "limit of 16"),
        ({"text": "a", "model": "reverse", "beam": 0}, 422, "beam"),
        ({"text": "a", "model": "reverse", "beem": 2}, 422, "beem"),
        ({"text": {"premise": "a"}, "model": "reverse"}, 422, "text: Input should be a valid string, or: Input should be"),
        ({"text": "a\nb", "model": "reverse"}, 400, "one line"),
        ({"text": ["a", "b"], "model": "reverse", "prefix": ["a", "b", "c"]}, 400, "2 texts and 3 prefixes"),
        ({"text": "a", "model": "reverse", "use": ["b"], "sample": True}, 400, "sample"),
        ({"text": ["a"] * 300, "model": "reverse"}, 400, "300 texts"),
    ],
)
def test_invalid_requests_are_explained(served: Any, body: dict[str, Any], status: int, says: str) -> None:
    assert says in served.post("/v1/translate", status=status, **body)["error"]


def test_a_repeated_text_comes_from_the_cache(serve: Any) -> None:
    shown = serve()
    first = shown.translate(["a b", "c d"], model="reverse")
    assert shown.translate(["a b", "c d", "a b"], model="reverse") == [*first, first[0]]
    assert (_count(shown, "weft_texts_total"), _count(shown, "weft_cache_hits_total")) == (2, 2)
    shown.translate("a b", model="reverse", beam=2)
    assert _count(shown, "weft_texts_total") == 3


def test_models_are_reloaded_without_interruption(reverse_run: Path, tmp_path: Path, other_run: Path, serve: Any) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(other_run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    shown = serve(Models([ModelLocation((str(folder),))], device="cpu"), keys=frozenset({"key"}))
    key = {"Authorization": "Bearer key"}

    def ask(text: str) -> Any:
        return httpx.post(f"{shown.url}/v1/translate", json={"text": text}, headers=key, timeout=30, trust_env=False)

    before = ask("a b c d e").json()["translations"][0]["score"]
    shutil.copy2(reverse_run / "model.safetensors", folder)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, text) for text in sentences(40)]
        assert shown.client.post("/v1/reload").status_code == 400
        assert shown.client.post("/v1/reload", headers=key).status_code == 200
        assert {each.result().status_code for each in answers} == {200}
    assert ask("a b c d e").json()["translations"][0]["score"] != before
    (folder / "model.safetensors").write_bytes(b"broken")
    assert shown.client.post("/v1/reload", headers=key).status_code == 400
    assert ask("f g").status_code == 200


def test_languages_come_from_the_command_line_the_configuration_or_the_files(reverse_run: Path) -> None:
    assert parse_location("en-de=runs/a") == ModelLocation(("runs/a",), ("en", "de"))
    assert parse_location("zh-Hans:en=a,b") == ModelLocation(("a", "b"), ("zh-Hans", "en"))
    with pytest.raises(ConfigError, match="not a language pair"):
        parse_location("english-german=runs/a")
    config = load(reverse_run).config
    assert languages_of(config) == ("und", "und")
    config = config.replaced({"data.train": ["data/train.en.gz,data/train.de.gz"]})
    assert languages_of(config) == ("en", "de")
    assert languages_of(config.replaced({"data.target_language": "gsw"})) == ("en", "gsw")
    messages: list[str] = []
    models = Models(
        [ModelLocation((str(reverse_run),)), ModelLocation((str(reverse_run),))], device="cpu", warn=messages.append
    )
    assert [model.name for model in models.served] == ["reverse", "reverse-2"] and "not known" in messages[0]


def _count(shown: Any, name: str) -> int:
    text = shown.client.get("/metrics").text
    return int(re.search(rf"^{name} (\d+)\.0$", text, re.MULTILINE).group(1))  # type: ignore[union-attr]


def test_the_explanation_page_is_sandboxed(served: Any) -> None:
    for body in ({"json": {"text": "a b c", "model": "reverse"}}, {"data": {"text": "a b c", "model": "reverse", "beam": "2"}}):
        answer = served.client.post("/v1/explain", **body)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
        assert "sandbox allow-scripts" in answer.headers["content-security-policy"] and "<script" in answer.text
    assert "text" in served.post("/v1/explain", status=422, model="reverse")["error"]


def test_sentences_are_explained_one_by_one_beside_the_queue(serve: Any) -> None:
    shown = serve(window=0.0)
    answer = shown.client.post("/v1/explain", json={"text": "a b c! d e f!", "model": "reverse"})
    assert answer.status_code == 200 and "d e f" in answer.text
    assert "weft_batches_total 0.0" in shown.client.get("/metrics").text
    refused = shown.post("/v1/explain", status=400, text="a " * 900, model="reverse")
    assert "too long to be explained" in refused["error"]
    assert shown.client.post("/v1/explain", json={"text": " ", "model": "reverse"}).status_code in (200, 400)


def test_equal_explanations_may_be_requested_at_once(serve: Any) -> None:
    shown = serve(window=0.2)
    with ThreadPoolExecutor(3) as pool:
        body = {"text": "a b c", "model": "reverse"}
        answers = [pool.submit(shown.client.post, "/v1/explain", json=body) for _ in range(3)]
        assert {each.result().status_code for each in answers} == {200}
