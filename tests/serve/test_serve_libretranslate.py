"""LibreTranslate's behaviour in cases that its clients rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.serve.models import Models, Place, known_code


def test_a_text_in_the_target_language_or_without_letters_is_returned(served: Any) -> None:
    for source, text in (("de", "a b\nc"), ("de-AT", "a b\nc"), ("en", "12:30 – 7!"), ("en", "\n\n")):
        assert served.post("/translate", q=text, source=source, target="de") == {"translatedText": text}
    assert served.post("/translate", q="a b\n12", source="en", target="de") == {"translatedText": "b a\n12"}


def test_alternatives_beyond_the_limit_are_clamped(served: Any) -> None:
    found = served.post("/translate", q="a b c", source="en", target="de", alternatives=999)
    assert 10 < len(found["alternatives"]) <= 15


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        ("EN", {"en", "de"}, "en"),
        ("en-US", {"en", "de"}, "en"),
        ("zh", {"en", "zh-Hans"}, "zh-Hans"),
        ("zh-CN", {"zh-Hans", "zh-Hant"}, "zh-Hans"),
        ("zh_TW", {"zh-Hans", "zh-Hant"}, "zh-Hant"),
        ("zt", {"zh-Hans", "zh-Hant"}, "zh-Hant"),
        ("zh-Hans", {"zh"}, "zh"),
        ("pt", {"pt-BR"}, "pt-BR"),
        ("no", {"nb"}, "nb"),
        ("fr", {"en"}, None),
    ],
)
def test_usual_codes_of_languages_are_known(code: str, known: set[str], found: str | None) -> None:
    assert known_code(code, known) == found


def test_a_third_language_leads_to_the_target(serve: Any, reverse_run: Path) -> None:
    places = [Place((str(reverse_run),), pair) for pair in (("en", "fr"), ("fr", "de"))]
    shown = serve(Models(places, device="cpu"))
    assert shown.post("/translate", q="a b c", source="en", target="de") == {"translatedText": "a b c"}
    assert "not available" in shown.post("/translate", status=400, q="a", source="de", target="en")["error"]
    (languages,) = [each for each in shown.client.get("/languages").json() if each["code"] == "en"]
    assert languages["targets"] == ["de", "fr"]


def test_head_the_specification_and_the_limits(served: Any) -> None:
    answer = served.client.head("/languages")
    assert answer.status_code == 200 and answer.content == b"" and int(answer.headers["content-length"]) > 10
    assert served.client.get("/spec").json() == served.client.get("/openapi.json").json()
    limits = served.client.get("/frontend/settings").json()["limits"]
    assert limits["characters"] == 10_000 and limits["sentences"] == 2_000 and limits["texts"] == 256
