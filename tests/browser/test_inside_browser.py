"""The steps of a prediction on the page of `weft explain --inside`, in an offline browser, by mouse and by keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

import weft
from tests.helpers.chromium import set_theme, sized, wait
from weft.explain.explanation import Explanation
from weft.explain.html_page import Section, page, static_page

WEIGHTS = "decoder.layers.0.cross.weights"


@pytest.fixture(scope="module")
def explanation(reverse_run: Path) -> Explanation:
    found = weft.load(reverse_run).explain("a b c", inside=True)
    assert isinstance(found, Explanation) and found.inside is not None
    return found


def show(browser: WebDriver, folder: Path, text: str) -> None:
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    browser.get(file.as_uri())
    wait(browser, "document.querySelectorAll('.inside .cell').length")


def all_of(browser: WebDriver, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, f".inside {selector}")


def message(browser: WebDriver) -> str:
    return all_of(browser, ".message")[0].text


def numbers(text: str) -> list[float]:
    return [float(each.replace("−", "-")) for each in re.findall(r"−?\d+(?:\.\d+)?", text)]


def title(browser: WebDriver) -> str:
    return all_of(browser, ".formula b")[0].text


def press_button(browser: WebDriver, name: str) -> None:
    next(each for each in all_of(browser, ".controls button") if each.text == name).click()


def test_a_cell_shows_its_formula_and_where_it_comes_from(offline: WebDriver, explanation: Explanation, tmp_path: Path) -> None:
    show(offline, tmp_path, page([explanation]))
    assert explanation.inside is not None
    assert title(offline) == "weights", "it opens at the weights of the first cross-attention"
    step, scores = explanation.inside[WEIGHTS], explanation.inside[WEIGHTS].operands["scores"]
    assert not isinstance(scores, float)
    cell = all_of(offline, "[role=grid] tbody tr:nth-child(2) .cell")[2]
    ActionChains(offline).move_to_element(cell).perform()
    name, formula, value = message(offline).split(" = ")
    assert name == "weights[b, c]"
    assert float(value) == pytest.approx(step.values[0, 1, 2], abs=1e-3)
    above, *below = numbers(formula)
    assert above == pytest.approx(scores.values[0, 1, 2], rel=1e-3, abs=2e-3)
    assert below == pytest.approx(scores.values[0, 1].tolist(), rel=1e-3, abs=2e-3)
    lit = offline.execute_script("return [...document.querySelectorAll('.lit')].map(cell => cell.textContent)")
    assert [number for text in lit for number in numbers(text)] == below, "the row of the scores is marked"


def test_steps_heads_tokens_and_layers_are_chosen(offline: WebDriver, explanation: Explanation, tmp_path: Path) -> None:
    show(offline, tmp_path, page([explanation]))
    assert explanation.inside is not None
    press_button(offline, "|←")
    assert title(offline) == "ids" and all_of(offline, "tbody .cell")[0].text.isdecimal()
    press_button(offline, "next →")
    assert title(offline) == "vectors" and "of the table" in message(offline)
    Select(all_of(offline, "[aria-label='block or layer']")[0]).select_by_visible_text("decoder, layer 1")
    Select(all_of(offline, "[aria-label='part']")[0]).select_by_index(2)
    queries = next(each for each in all_of(offline, ".stepnames button") if each.text == "weights")
    queries.click()
    Select(all_of(offline, "[aria-label='head']")[0]).select_by_visible_text("2")
    Select(all_of(offline, "[aria-label='output token']")[0]).select_by_visible_text("3: a")
    row = [each.text for each in all_of(offline, "[role=grid] tr.output .cell")]
    expected = explanation.inside["decoder.layers.0.mixer.attention.weights"].values[1, 2]
    assert [number for text in row for number in numbers(text)] == pytest.approx(expected.tolist(), abs=1e-3)
    link = all_of(offline, ".sources .link")[0]
    link.click()
    assert title(offline) == "masked scores", "the name of an operand leads to its step"


def test_the_keyboard_is_enough(offline: WebDriver, explanation: Explanation, tmp_path: Path) -> None:
    show(offline, tmp_path, page([explanation]))
    (stop,) = all_of(offline, "[role=grid] [tabindex='0']")
    offline.execute_script("arguments[0].focus()", stop)
    first = message(offline)
    ActionChains(offline).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN).perform()
    assert message(offline).startswith("weights[b, b] = ") and message(offline) != first
    assert len(all_of(offline, "[role=grid] [tabindex='0']")) == 1, "the table is one tab stop"
    assert offline.execute_script("return document.querySelector('.inside .message').getAttribute('aria-live')") == "polite"
    ActionChains(offline).send_keys("f").perform()
    assert title(offline) == "context"
    ActionChains(offline).send_keys("b").perform()
    assert title(offline) == "weights"
    ActionChains(offline).send_keys(" ").perform()
    assert all_of(offline, ".controls button")[-1].text == "stop"
    wait(offline, "document.querySelector('.inside .formula b').textContent === 'context'")
    press_button(offline, "stop")


def test_wide_models_show_some_channels_with_statistics(offline: WebDriver, explanation: Explanation, tmp_path: Path) -> None:
    show(offline, tmp_path, page([explanation]))
    assert explanation.inside is not None
    press_button(offline, "|←")
    press_button(offline, "next →")
    assert len(all_of(offline, "[role=grid] tbody tr:first-child .cell")) == 16
    found = [each.text for each in all_of(offline, "[role=grid] tbody tr:first-child .statistic")]
    vector = explanation.inside["encoder.front.vectors"].values[0]
    expected = [float((vector**2).sum() ** 0.5), vector.mean(), vector.std()]
    assert [numbers(each)[0] for each in found] == pytest.approx(expected, abs=2e-3)


def test_long_texts_and_several_models_fit(offline: WebDriver, reverse_run: Path, tmp_path: Path) -> None:
    text = " ".join("abcdefg"[place % 7] for place in range(150))
    found = weft.load(reverse_run).explain(text, target=text, inside=True)
    assert isinstance(found, Explanation)
    shown = page([found] * 4)
    assert len(shown) < 5_000_000
    show(offline, tmp_path, shown)
    assert len(all_of(offline, "*")) < 30_000


def test_other_tasks_show_steps_too_and_text_stays_text(offline: WebDriver, explanation: Explanation, tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=document.title='caught'>"
    show(offline, tmp_path, static_page([Section("run", nasty, "<p>why</p>", explanation.inside)]))
    assert offline.title == "weft explain" and offline.find_elements(By.TAG_NAME, "img") == []
    assert "exp(" in message(offline)
    assert "<script" not in static_page([Section("run", "a", "<p>why</p>")])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(
    offline: WebDriver, explanation: Explanation, tmp_path: Path, theme: str
) -> None:
    with sized(offline, 390, 800, phone=True):
        set_theme(offline, theme)
        show(offline, tmp_path, page([explanation]))
        assert offline.execute_script("return document.documentElement.scrollWidth <= 390")
        set_theme(offline, "light")
