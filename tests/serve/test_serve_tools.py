"""Requests as Weblate and OmegaT send them to LibreTranslate (weblate/machinery/libretranslate.py, LibreTranslate.java)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.serving import running
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models


def test_weblate(served: Any) -> None:
    base = "/"  # the API URL ends with a slash, and paths are put behind it
    codes = [each["code"] for each in served.client.get(f"{base}languages").json()]
    assert {"en", "de"} <= set(codes)
    body = {"api_key": "", "q": ["a b c", "d %1$s"], "source": "en", "target": "de"}
    reply = served.client.post(f"{base}translate", json=body)
    assert reply.status_code == 200
    texts = reply.json()["translatedText"]
    assert texts[0] == "c b a" and texts[1].count("%1$s") == 1
    (model, *_) = served.client.get("/v1/models").json()
    assert reply.headers["Weft-Model"] == model["name"] and reply.headers["Weft-Version"] == model["version"]
    assert reply.headers["Weft-Memory"] == "none, none"


def test_omegat(reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.tsv").write_text("a b c\tx y z\n", encoding="utf-8")
    models = Models([ModelLocation((str(reverse_run),), ("en", "de"))], device="cpu", memories=[str(tmp_path / "memory.tsv")])
    with running(models, keys=frozenset({"secret"})) as shown:
        form = {"q": "a b c", "source": "en", "target": "de"}  # sent as a form, without a key
        reply = shown.client.post("/translate?api_key=secret", data=form)
        assert reply.json() == {"translatedText": "x y z"} and reply.headers["Weft-Memory"] == "exact"
        assert shown.client.post("/translate", data=form).status_code == 400
