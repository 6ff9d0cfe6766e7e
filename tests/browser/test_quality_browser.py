"""The server's page with a run of the task quality: the confidence in a translation and its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

import weft as library
from tests.helpers import labelled_translations
from tests.helpers.chromium import wait
from tests.helpers.serving import running
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models


@pytest.fixture
def estimator(tmp_path: Path) -> Path:
    data = labelled_translations.write(tmp_path / "quality.jsonl", 60)
    library.train("transformer-tiny", data=data, out=tmp_path / "run", set={**labelled_translations.SETTINGS, "train.steps": 2})
    return tmp_path / "run"


def test_words_are_shaded_by_doubt(browser: WebDriver, reverse_run: Path, estimator: Path) -> None:
    models = Models(
        [ModelLocation((str(reverse_run),), ("en", "de"))], device="cpu", estimators=[ModelLocation((str(estimator),))]
    )
    with running(models) as served:
        (found,) = served.translate(["a b c"])
        browser.get(served.url)
        wait(browser, "document.getElementById('beam').options.length")
        browser.find_element(By.ID, "source").send_keys("a b c")
        wait(browser, "document.querySelectorAll('.judged .word').length === 3")
        words = browser.find_elements(By.CSS_SELECTOR, ".judged .word")
        assert [word.text for word in words] == [word["text"] for word in found["words"]]
        for shown, word in zip(words, found["words"], strict=True):
            doubt = float(browser.execute_script("return arguments[0].style.getPropertyValue('--doubt')", shown))
            assert doubt == pytest.approx(1 - word["confidence"])
            assert ("doubtful" in str(shown.get_attribute("class"))) == (word["tag"] == "BAD")
        assert browser.find_element(By.CSS_SELECTOR, ".pair .score").text == f"confidence {round(100 * found['confidence'])} %"
