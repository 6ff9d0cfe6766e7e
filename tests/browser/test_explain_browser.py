"""The page of `weft explain`, opened from disk in an offline browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import weft
from tests.helpers.chromium import wait
from weft.explain.explanation import Explanation, Side
from weft.explain.html_page import page
from weft.runs.translator import Translator

INK = """[...document.querySelectorAll('canvas.map')].every(
    map => map.getContext('2d').getImageData(0, 0, map.width, map.height).data.some(value => value > 0))"""


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run)


def show(browser: WebDriver, folder: Path, explanations: list[Explanation]) -> None:
    file = folder / "page.html"
    file.write_text(page(explanations), encoding="utf-8")
    browser.get(file.as_uri())
    wait(browser, "document.querySelector('.panel .stage').children.length")


def press(browser: WebDriver, key: str) -> None:
    browser.find_element(By.TAG_NAME, "body").send_keys(key)


def all_of(browser: WebDriver, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def message(browser: WebDriver) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".message").text


def test_the_page_works_offline_without_console_messages(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    show(offline, tmp_path, [translator.explain("a b c", beam=3, run="mine")])
    assert [each.text for each in all_of(offline, ".text")] == ["a b c", "c b a"]
    assert [each.text for each in all_of(offline, ".token")] == ["c", "b", "a", "end"]
    assert offline.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert offline.execute_script(f"return {INK}")
    assert len(all_of(offline, ".thumb")) == 4, "mean, max and two heads"
    assert len(all_of(offline, ".tree g")) == len(translator.explain("a b c", beam=3).tree)


def test_the_heat_map_has_a_scale_and_elides_long_labels(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    found = translator.explain("a b c", beam=2)
    found.source.tokens[0] = "x" * 60
    show(offline, tmp_path, [found])
    offline.execute_script(
        "window.written = []; const draw = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (...given) { written.push(given[0]); draw.apply(this, given); }"
    )
    offline.find_element(By.CSS_SELECTOR, "canvas.map").send_keys(Keys.ARROW_RIGHT)
    written = offline.execute_script("return window.written")
    weights = [float(text) for text in written if re.fullmatch(r"0|\d\.\d\d", text)]
    assert 0 in weights and 0 < max(weights) <= 1 and max(weights) / 4 == pytest.approx(sorted(set(weights))[1], abs=0.01)
    assert any(text.startswith("xxx") and "…" in text for text in written), written


def test_the_page_works_with_the_keyboard(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    show(offline, tmp_path, [translator.explain("a b c", beam=2), translator.explain("d e", beam=2)])
    offline.find_element(By.CSS_SELECTOR, "canvas.map").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert message(offline).startswith("c → c: ")
    press(offline, "s")
    wait(offline, "document.querySelector('.steps')")
    assert message(offline).startswith("step 1 of 4: c ← c")
    offline.find_element(By.CSS_SELECTOR, ".steps").send_keys(Keys.ARROW_RIGHT)
    assert message(offline).startswith("step 2 of 4: b ← b")
    press(offline, "l")
    wait(offline, "document.querySelectorAll('.row span').length == 8")
    for row, names in ((".tokens", "c b"), (".thumbs", "mean max"), (".row", "a b")):
        (stop,) = all_of(offline, f"{row}:first-child [tabindex='0'], {row} [tabindex='0']")[:1]
        assert len(all_of(offline, f"{row} [tabindex='0']")) == len(all_of(offline, row)), "a row is one tab stop"
        stop.send_keys(Keys.ARROW_RIGHT)
        assert f"{stop.text} {offline.switch_to.active_element.text}" == names
    assert message(offline).startswith("b: b ") and offline.switch_to.active_element.accessible_name == message(offline)
    all_of(offline, ".thumb")[2].send_keys(Keys.ENTER)
    wait(offline, "document.activeElement.matches('.thumb:nth-child(3)[aria-pressed=true]')")
    press(offline, "n")
    wait(offline, "document.querySelector('.text').textContent == 'd e'")
    press(offline, "t")
    assert offline.find_element(By.TAG_NAME, "html").get_attribute("data-theme") == "light"
    press(offline, "t")
    dark = offline.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert dark == "rgb(21, 23, 28)"


def test_two_runs_are_side_by_side_and_share_settings(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    show(offline, tmp_path, [translator.explain("a b c", run="one"), translator.explain("a b c", target="c a", run="two")])
    one, two = all_of(offline, ".panel")
    assert one.location["y"] == two.location["y"]
    assert one.location["x"] < two.location["x"]
    assert "c b a" in [cell.text for cell in two.find_elements(By.TAG_NAME, "td")]
    press(offline, "l")
    wait(offline, "document.querySelectorAll('.lines').length == 2")


def test_right_to_left_text(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    found = translator.explain("a b c")
    names = ["٣", "مارس", "١٩٩٩", "end"]
    found.source = Side(" ".join(names[:3]), names, [(place, place + 1) for place in range(4)], names, rtl=True)
    show(offline, tmp_path, [found])
    assert all_of(offline, ".text")[0].get_attribute("dir") == "rtl"
    press(offline, "l")
    wait(offline, "document.querySelector('.row')")
    first, *_, last = all_of(offline, ".row:first-child span")
    assert first.text == "٣"
    assert first.location["x"] > last.location["x"]


def test_tokens_are_joined_to_words(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    found = translator.explain("a b c")
    found.source = Side("ab c", ["a", "b", "c", "end"], [(0, 2), (2, 3), (3, 4)], ["ab", "c", "end"])
    show(offline, tmp_path, [found])
    press(offline, "w")
    wait(offline, "document.querySelector('button[aria-pressed=true]:last-child').textContent == 'words'")
    offline.find_element(By.CSS_SELECTOR, "canvas.map").send_keys(Keys.ARROW_DOWN)
    weight = found.joined(found.views("cross")[0]).mean(0)[1, 0]
    name, shown = message(offline).split(": ")
    assert name == "b → ab"
    assert float(shown) == pytest.approx(weight, abs=0.01)


def test_two_hundred_tokens_stay_usable(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    text = " ".join("abcdefg"[place % 7] for place in range(199))
    show(offline, tmp_path, [translator.explain(text, target=text)])
    canvas = offline.find_element(By.CSS_SELECTOR, "canvas.map")
    assert canvas.size["width"] >= 800
    assert len(all_of(offline, "*")) < 3000
    for key in "lsm":
        press(offline, key)
    wait(offline, "document.querySelector('canvas.map')")


def test_no_text_becomes_markup(offline: WebDriver, translator: Translator, tmp_path: Path) -> None:
    found = translator.explain("a b")
    nasty = "</script><img src=x onerror=document.title='caught'>"
    found.source = Side(nasty, [nasty, "b", "end"], [(0, 1), (1, 2), (2, 3)], [nasty, "b", "end"])
    found.run = nasty
    show(offline, tmp_path, [found])
    for key in "lsm":
        press(offline, key)
    assert offline.title == "weft explain"
    assert all_of(offline, "img") == []
    assert all_of(offline, ".text")[0].text == nasty
