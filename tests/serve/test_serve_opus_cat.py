"""The API of OPUS-CAT, by the requests that its plugins send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.serving import running
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models

PAIR = {"srcLangCode": "en", "trgLangCode": "de", "tokenCode": ""}


def get(shown: Any, name: str, status: int = 200, **parameters: str) -> Any:
    reply = shown.client.get(f"/MTRestService/{name}", params=parameters)
    assert reply.status_code == status, reply.text
    return reply.json() if "json" in reply.headers["content-type"] else reply.text


def test_the_urls_of_the_plugins(served: Any) -> None:
    # Wordfast: TranslateJson?tokenCode=&input={ss}&srcLangCode={sl}&trgLangCode={tl}; the others add modelTag.
    answer = get(served, "TranslateJson", input="a b c", modelTag="", inputIsSingleSentence="true", **PAIR)
    (first, second) = served.client.get("/v1/models").json()
    assert answer == {"translation": "c b a", "model": first["name"], "version": first["version"], "memory": "none"}
    assert get(served, "TranslateJson", input="a b", **(PAIR | {"srcLangCode": "en-US"}))["translation"] == "b a"
    assert get(served, "TranslateJson", input="a", **(PAIR | {"modelTag": second["name"]}))["model"] == second["name"]
    assert get(served, "Translate", input="a b", **PAIR) == get(served, "TranslateStream", input="a b", **PAIR) == "b a"
    posted = served.client.post("/MTRestService/TranslatePost", params={"input": "a b", **PAIR})
    assert posted.json()["translation"] == "b a"
    assert get(served, "ListSupportedLanguagePairs", tokenCode="0") == ["en-de", "fr-de"]
    assert get(served, "GetLanguagePairModelTags", **PAIR) == [first["name"]]
    assert first["version"] in get(served, "CheckModelStatus", modelTag="", **PAIR)
    assert get(served, "Login", userName="a", password="a") == "a"


def test_segments_without_letters_and_with_breaks(served: Any) -> None:
    assert get(served, "TranslateJson", input="12:30", **PAIR)["translation"] == "12:30"
    assert get(served, "TranslateJson", input="", **PAIR)["translation"] == ""
    assert get(served, "TranslateJson", input=" a\nb ", **PAIR)["translation"] == "b a"


def test_segments_that_are_ordered_ahead(served: Any) -> None:
    reply = served.client.post("/MTRestService/PreOrderBatch", params=PAIR, json=["a b", "c", "a b"])
    assert reply.status_code == 200
    assert served.client.post("/MTRestService/PreOrderBatch", params=PAIR, json=["a", 1]).status_code == 400
    assert served.client.post("/MTRestService/PreOrderBatch", params=PAIR, content=b"[").status_code == 400


def test_errors(served: Any) -> None:
    assert "fi is not supported" in get(served, "TranslateJson", 400, input="a", srcLangCode="en", trgLangCode="fi")["error"]
    assert "srcLangCode" in get(served, "TranslateJson", 400, input="a")["error"]
    assert "no model 'x'" in get(served, "TranslateJson", 400, input="a", modelTag="x", **PAIR)["error"]
    assert "text limit" in get(served, "TranslateJson", 400, input="a" * 10_001, **PAIR)["error"]


def test_the_token_is_the_key_and_the_memory_is_named(reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.tsv").write_text("a b c\tx y z\n", encoding="utf-8")
    models = Models([ModelLocation((str(reverse_run),), ("en", "de"))], device="cpu", memories=[str(tmp_path / "memory.tsv")])
    with running(models, keys=frozenset({"secret"})) as shown:
        get(shown, "TranslateJson", 403, input="a", **(PAIR | {"tokenCode": "0"}))
        get(shown, "ListSupportedLanguagePairs", 400)
        get(shown, "Login", 403, userName="a", password="a")
        answer = get(shown, "TranslateJson", input="a b c", **(PAIR | {"tokenCode": "secret"}))
        assert (answer["translation"], answer["memory"]) == ("x y z", "exact")
        fuzzy = get(shown, "TranslateJson", input="a b c d", **(PAIR | {"tokenCode": "secret"}))
        assert fuzzy["memory"] == "fuzzy" and fuzzy["match"]["target"] == "x y z"
        assert fuzzy["translation"].startswith("x y z"), "its beginning is forced"


@pytest.mark.parametrize("name", ["TranslateJson", "TranslatePost"])
def test_the_description_names_the_parameters(served: Any, name: str) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    (operation,) = paths[f"/MTRestService/{name}"].values()
    assert {each["name"] for each in operation["parameters"]} == {
        "input",
        "srcLangCode",
        "trgLangCode",
        "modelTag",
        "tokenCode",
    }
