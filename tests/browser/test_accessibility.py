"""The pages for everybody: axe-core, borders that can be seen, and an API reference that tells the truth."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

import weft
from tests.helpers.chromium import set_theme, sized, wait
from tests.helpers.serving import Running
from weft.explain.explanation import Explanation
from weft.explain.html_page import page

AXE = Path(sys.prefix) / "clients/node_modules/axe-core/axe.min.js"
"""`make clients` installs it."""

RUN_AXE = "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(({violations}) => done(violations))"
LOOKS = [(theme, width) for theme in ("light", "dark") for width in (1280, 390)]

CONTRASTS = """
const light = ([red, green, blue]) => [red, green, blue].map(value => value / 255)
  .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
const parse = text => text.match(/[\\d.]+/g).map(Number);
const behind = node => {
  const found = parse(getComputedStyle(node).backgroundColor);
  return found[3] === 0 ? behind(node.parentElement) : found;
};
const controls = document.querySelectorAll('button, select, input:not([type=hidden]), textarea, output, .stage');
return [...controls].filter(node => node.checkVisibility()).map(node => {
  const both = [parse(getComputedStyle(node).borderTopColor), behind(node.parentElement)].map(light);
  return [node.id || node.className, (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05)];
});
"""
"""For each control its name and the contrast of its border with what is around it."""

Opening = Callable[[WebDriver], None]


@pytest.fixture
def pages(served: Running, reverse_run: Path, tmp_path: Path) -> dict[str, Opening]:
    """Functions that open each page."""
    file = tmp_path / "page.html"
    found = weft.load(reverse_run).explain("a b c", beam=3, target="c a", run="mine")
    file.write_text(page([found]), encoding="utf-8")

    def translate(browser: WebDriver) -> None:
        browser.get(served.url)
        wait(browser, "document.getElementById('beam').options.length")
        browser.find_element(By.ID, "source").send_keys("a b c")
        wait(browser, "document.querySelectorAll('.pair').length")
        browser.execute_script(
            "document.querySelectorAll('details').forEach(each => { each.open = true; });"
            "showStatus('Wrong.', true); document.querySelectorAll('.pieces')[1].children[0].focus()"
        )

    def reference(browser: WebDriver) -> None:
        browser.get(f"{served.url}/docs")
        wait(browser, "document.querySelectorAll('h3').length > 6")

    def explain(browser: WebDriver) -> None:
        browser.get(file.as_uri())
        wait(browser, "document.querySelector('.panel .stage').children.length")

    def inside(browser: WebDriver) -> None:
        steps = weft.load(reverse_run).explain("a b c", run="mine", inside=True)
        assert isinstance(steps, Explanation)
        file.write_text(page([steps]), encoding="utf-8")
        browser.get(file.as_uri())
        wait(browser, "document.querySelectorAll('.inside .cell').length")

    return {"translate": translate, "reference": reference, "explain": explain, "inside": inside}


def findings(browser: WebDriver) -> list[Any]:
    violations: list[dict[str, Any]] = browser.execute_async_script(RUN_AXE)
    serious = [each for each in violations if each["impact"] in ("critical", "serious")]
    return [(each["id"], each["help"], each["nodes"][0]["html"]) for each in serious]


def looks(browser: WebDriver) -> Iterator[tuple[str, int]]:
    """Shows the page in both themes, on a desktop and on a phone."""
    for theme, width in LOOKS:
        set_theme(browser, theme)
        with sized(browser, width, 800, phone=width < 600):
            yield theme, width
    set_theme(browser, "light")


@pytest.mark.parametrize("name", ["translate", "reference", "explain", "inside"])
def test_axe_finds_nothing_serious(browser: WebDriver, pages: dict[str, Opening], name: str) -> None:
    if not AXE.exists():
        message = "NO TESTS WITH axe: axe-core is not installed; run make clients"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    pages[name](browser)
    browser.execute_script(AXE.read_text("utf-8"))
    for theme, width in looks(browser):
        for view in ("lsm" if width > 1000 else "m") if name == "explain" else " ":
            if name == "explain":
                browser.find_element(By.TAG_NAME, "body").send_keys(view)
            assert findings(browser) == [], (theme, width, view)


@pytest.mark.parametrize("name", ["translate", "explain", "inside"])
def test_borders_can_be_seen(browser: WebDriver, pages: dict[str, Opening], name: str) -> None:
    pages[name](browser)
    for theme in ("light", "dark"):
        set_theme(browser, theme)
        found = browser.execute_script(CONTRASTS)
        assert len(found) > 6 and [each for each in found if each[1] < 3] == [], theme
    set_theme(browser, "light")


def test_the_api_reference_is_complete_and_loads_nothing_from_other_sites(
    browser: WebDriver, served: Running, pages: dict[str, Opening]
) -> None:
    with sized(browser, 390, 800, phone=True):
        pages["reference"](browser)
        assert browser.execute_script("return document.documentElement.scrollWidth <= 390")
    titles = [each.text for each in browser.find_elements(By.TAG_NAME, "h2")]
    assert titles == ["Contents", "JSON API", "LibreTranslate API", "OPUS-CAT API", "Errors", "Limits"]
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "10,000\ncharacters per request (400 beyond it)" in text and "the queue is full; see Retry-After" in text
    names = [each.text for each in browser.find_elements(By.TAG_NAME, "h3")]
    script = "return [...document.querySelectorAll('#contents a')].map(each => !!document.querySelector(each.hash))"
    links = browser.execute_script(script)
    assert all(links) and len(links) == len(names) + 5
    script = "return performance.getEntriesByType('resource').every(each => each.name.startsWith(location.origin))"
    assert browser.execute_script(script)


def test_the_examples_of_the_api_reference_are_true(browser: WebDriver, served: Running, pages: dict[str, Opening]) -> None:
    pages["reference"](browser)
    found = browser.execute_script("return examples('en', 'de', 'reverse')")
    assert len(found) == 8
    for route, (fields, response) in found.items():
        method, path = route.split()
        answer = served.client.request(method, path, json=fields)
        if path == "/v1/reload":
            assert answer.status_code == 403, "this server has no keys"
            continue
        assert answer.status_code == 200, answer.text
        real = answer.text if isinstance(response, str) else answer.json()
        assert shape(real) == shape(response), route


def shape(value: Any) -> Any:
    """The names and types of a response."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return float if isinstance(value, int) else type(value)
