"""The server's page in a real browser: typing, hovering, models and beams, alternatives, explanations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import sized, wait
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait
from serving import Running, running, two_models


@pytest.fixture(scope="module")
def served(reverse_run: Path, other_run: Path) -> Iterator[Running]:
    with running(two_models(reverse_run, other_run)) as shown:
        yield shown


def type_in(browser: WebDriver, served: Running, text: str, expected: str) -> None:
    browser.get(served.url)
    wait(browser, "document.getElementById('model').options.length")
    browser.find_element(By.ID, "source").send_keys(text)
    wait(browser, f"document.getElementById('target').textContent === {expected!r}")


def weights(browser: WebDriver, row: int) -> list[float]:
    """The highlight strength of each piece in a row."""
    script = f"""return [...document.querySelectorAll('.pieces')[{row}].children].map(
        piece => Number(getComputedStyle(piece).getPropertyValue('--weight') || 0))"""
    return list(browser.execute_script(script))


def test_text_is_translated_while_typing_and_hovering_shows_attention(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    wait(browser, "document.querySelectorAll('.pieces').length === 2")
    assert weights(browser, 0) == [0.0] * 4
    words = browser.find_elements(By.CSS_SELECTOR, ".pieces:nth-child(2) .piece")
    assert [word.text.strip() for word in words] == ["c", "b", "a"]
    ActionChains(browser).move_to_element(words[0]).perform()
    marked = weights(browser, 0)
    assert max(marked) == pytest.approx(0.75) and sum(each > 0 for each in marked) >= 1
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert weights(browser, 0) == [0.0] * 4


def test_models_and_beams_can_be_switched(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    Select(browser.find_element(By.ID, "beam")).select_by_value("4")
    wait(browser, "document.querySelectorAll('.alternatives li').length === 3")
    Select(browser.find_element(By.ID, "model")).select_by_value("other")
    expected = served.translate("a b c", model="other", beam=4)[0]["score"]
    wait(browser, f"document.querySelector('.tools span').textContent === 'score ' + ({expected}).toFixed(3)")


def test_typed_markup_stays_text(browser: WebDriver, served: Running) -> None:
    browser.get(served.url)
    wait(browser, "document.getElementById('model').options.length")
    browser.find_element(By.ID, "source").send_keys("<img src=x onerror=alert(1)>\n\na b")
    wait(browser, "document.querySelectorAll('.pair').length === 2")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.find_element(By.ID, "target").get_property("textContent").split("\n")[1:] == ["", "b a"]


def test_the_explanation_opens_and_runs_its_script(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    wait(browser, "document.querySelector('button.explain')")
    first = browser.current_window_handle
    browser.find_element(By.CSS_SELECTOR, "button.explain").click()
    WebDriverWait(browser, 20).until(lambda driver: len(driver.window_handles) == 2)
    browser.switch_to.window(next(each for each in browser.window_handles if each != first))
    wait(browser, "document.querySelectorAll('canvas.map').length")
    browser.close()
    browser.switch_to.window(first)


def test_the_page_fits_on_a_phone(browser: WebDriver, served: Running) -> None:
    with sized(browser, 360, 700, phone=True):
        browser.get(served.url)
        wait(browser, "document.getElementById('model').options.length")
        browser.find_element(By.ID, "source").send_keys("a b c d e f g")
        wait(browser, "document.querySelectorAll('.pair').length")
        assert browser.execute_script("return document.documentElement.scrollWidth <= 360")


def test_the_api_reference_loads_nothing_from_other_sites(browser: WebDriver, served: Running) -> None:
    browser.get(f"{served.url}/docs")
    wait(browser, "document.querySelectorAll('h3').length > 6")
    assert browser.execute_script(
        "return performance.getEntriesByType('resource').every(each => each.name.startsWith(location.origin))"
    )
