"""LibreTranslate's behaviour in cases that its clients rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.serve import request_documents
from weft.serve.languages import known_code
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models


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
    locations = [ModelLocation((str(reverse_run),), pair) for pair in (("en", "fr"), ("fr", "de"))]
    shown = serve(Models(locations, device="cpu"))
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


def upload(shown: Any, name: str, content: bytes, status: int = 200, target: str = "de") -> Any:
    form = {"source": "en", "target": target}
    answer = shown.client.post("/translate_file", files={"file": (name, content)}, data=form)
    assert answer.status_code == status, answer.text
    if status != 200:
        return answer.json()["error"]
    url = answer.json()["translatedFileUrl"]
    assert url.startswith(shown.url)
    found = shown.client.get(url)
    assert found.headers["content-disposition"].startswith("attachment")
    return found.content


SRT = b"1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>a b c</i>\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\na b\r\n"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt", b"\xef\xbb\xbfa b\n\nc d e\n1 2", b"b a\n\ne d c\n1 2"),
        ("x.HTML", b"<p>a b</p>\n<p>c <b>d</b></p>", None),
        ("x.srt", SRT, SRT.replace(b"a b c", b"c b a").replace(b"\r\na b\r\n", b"\r\nb a\r\n")),
    ],
)
def test_files_are_translated(served: Any, name: str, content: bytes, expected: bytes | None) -> None:
    found = upload(served, name, content)
    assert found == expected if expected else (b"<p>b a</p>" in found and found.count(b"<b>") == 1)


def test_files_have_limits(serve: Any) -> None:
    shown = serve(characters=20, body=5000)
    assert "not supported" in upload(shown, "x.exe", b"a b", 400)
    assert "UTF-8" in upload(shown, "x.txt", b"a \xff", 400)
    assert "text limit (20)" in upload(shown, "x.txt", b"a b c d e f g h i j k l", 400)
    assert "larger" in upload(shown, "x.txt", b"a\n" * 3000, 413)
    assert "Word document" in upload(shown, "x.docx", b"a b", 400)
    assert upload(shown, "x.txt", b"a b", target="en") == b"a b"
    for name in ("x.txt", "0" * 32 + ".txt", "..%2f..%2fetc%2fpasswd"):
        assert shown.client.get(f"/download_file/{name}").status_code == 404
    assert "missing file" in shown.post("/translate_file", status=400, source="en", target="de")["error"]


def test_what_libraries_say_about_a_request_is_a_line_of_the_log(serve: Any, capfd: pytest.CaptureFixture[str]) -> None:
    shown = serve()
    form = b'--x\r\nContent-Disp[osition: form-data; name="q"\r\n\r\na b\r\n--x--\r\n'
    answer = shown.client.post("/translate_file", content=form, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 400
    assert any(line["event"] == "warning" and "invalid character" in line["message"] for line in shown.lines)
    assert "invalid character" not in capfd.readouterr().err


def test_translated_files_of_every_kind_can_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside files that another process has just deleted. The oldest are deleted, whatever their suffix."""
    store = request_documents.FileStore(tmp_path)
    (tmp_path / f"{'0' * 32}.txt").symlink_to(tmp_path / "deleted")
    names = [store.put(b"a", suffix) for suffix in request_documents.suffixes()]
    assert [store.get(name) for name in names] == [b"a"] * len(names)
    monkeypatch.setattr(request_documents, "TOTAL", 0)
    store.put(b"b", ".md")
    assert not any((tmp_path / name).exists() for name in names)


def test_suggestions_are_kept_if_the_operator_wants_them(serve: Any, served: Any, tmp_path: Path) -> None:
    body = {"q": "a b", "s": "b ä", "source": "en", "target": "de"}
    served.post("/suggest", status=403, **body)
    shown = serve(suggestions=str(tmp_path / "suggested.jsonl"))
    assert shown.post("/suggest", **body) == {"success": True}
    shown.post("/suggest", status=400, q="a")
    assert json.loads((tmp_path / "suggested.jsonl").read_text(encoding="utf-8")) == body
    assert shown.client.get("/frontend/settings").json()["suggestions"] is True


def test_deep_translator_works(served: Any) -> None:
    deep_translator = pytest.importorskip("deep_translator")
    client = deep_translator.LibreTranslator(source="en", target="de", api_key="none", custom_url=f"{served.url}/")
    assert client.translate("a b c") == "c b a"
    assert client.translate_batch(["a b", "c d"]) == ["b a", "d c"]
