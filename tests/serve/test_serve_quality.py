"""A server with a run of the task quality: the confidence in each answer and word, for the models of its languages."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft as library
from tests.helpers import labelled_translations
from tests.helpers.serving import running
from tests.helpers.tiny import Shell, once
from weft.errors import ConfigError
from weft.runs.translation_confidence import load_estimator
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models


@pytest.fixture(scope="module")
def estimator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that judges translations; it has not seen these languages."""

    def make(folder: Path) -> None:
        data = labelled_translations.write(folder.with_suffix(".jsonl"), 60)
        settings = {**labelled_translations.SETTINGS, "train.steps": 5}
        library.train("transformer-tiny", data=data, out=folder, set=settings)

    return once(tmp_path_factory.mktemp("served") / "quality", make)


def location(run: Path, source: str = "en", target: str = "de") -> ModelLocation:
    return ModelLocation((str(run),), (source, target))


def test_answers_have_the_confidence_in_texts_and_words(reverse_run: Path, estimator: Path) -> None:
    models = Models([location(reverse_run)], device="cpu", estimators=[ModelLocation((str(estimator),))])
    expected = load_estimator(estimator, "cpu").translate("a b c\tc b a").document()  # type: ignore[union-attr]
    with running(models) as served:
        for _ in range(2):  # the second answers come from the cache
            found, blank = served.translate(["a b c", ""])
            assert found["text"] == "c b a" and found["confidence"] == expected["confidence"]
            assert found["words"] == expected["words"] and [word["text"] for word in found["words"]] == ["c", "b", "a"]
            assert "confidence" not in blank
        unit = "<trans-unit id='1'><source>a b c</source></trans-unit>"
        text = f"<xliff version='1.2'><file source-language='en' target-language='de'><body>{unit}</body></file></xliff>"
        assert f'its:mtConfidence="{expected["confidence"]:.4f}"' in served.translate(text, format="xliff")[0]["text"]
        form = {"files": {"file": ("x.xliff", text)}, "data": {"source": "en", "target": "de"}}
        file = served.client.post("/translate_file", **form).json()["translatedFileUrl"]
        assert "its:mtConfidence" in served.client.get(file).text
        assert [model["name"] for model in served.client.get("/v1/models").json()] == [models.served[0].name]


def test_an_estimator_is_for_the_models_of_its_languages(reverse_run: Path, estimator: Path) -> None:
    both = [location(reverse_run), location(reverse_run, "fr", "de")]
    first, second = Models(both, device="cpu", estimators=[location(estimator, "fr", "de")]).served
    assert first.estimator is None and second.estimator is not None


def test_another_run_is_no_estimator(reverse_run: Path, weft: Shell) -> None:
    with pytest.raises(ConfigError, match="needs a run of the task quality"):
        Models([location(reverse_run)], device="cpu", estimators=[location(reverse_run)])
    weft.fails("serve", reverse_run, "--quality", reverse_run, says=["needs a run of the task quality"])
