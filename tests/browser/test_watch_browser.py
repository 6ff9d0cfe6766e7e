"""The page of `weft watch` in a real browser: curves, samples, news, keyboard, phone, both themes, axe, and a new run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.browser.test_accessibility import AXE, CONTRASTS, LOOKS, findings
from tests.helpers.chromium import set_theme, sized, wait
from tests.helpers.watching import KEY, Watching, watching, write_run, write_steps
from weft.training.log import Log
from weft.watch.processes import Processes


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, Log]:
    settings = {"train.clip": 2.0}
    return {"first": write_run(tmp_path / "first"), "second": write_run(tmp_path / "second", 6, settings, finished=True)}


@pytest.fixture
def shown(browser: WebDriver, tmp_path: Path, logs: dict[str, Log]) -> Iterator[Watching]:
    with watching(tmp_path) as found:
        yield found
        browser.get("about:blank")  # before the server ends, which the page would notice


def open_page(browser: WebDriver, shown: Watching, key: str = KEY) -> None:
    browser.get("about:blank")  # a page of the same address would only change its fragment
    browser.get(f"{shown.url}/#key={key}")
    wait(
        browser,
        "document.querySelectorAll('#charts svg .curve').length >= 4 && document.querySelectorAll('#samples td').length",
    )


def texts(browser: WebDriver, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
    return list(browser.execute_script(script, selector))


def test_curves_samples_differences_and_news(browser: WebDriver, shown: Watching, logs: dict[str, Log]) -> None:
    open_page(browser, shown)
    assert browser.current_url == f"{shown.url}/", "the key does not stay in the address"
    assert sorted(texts(browser, "#runs td:nth-child(2)")) == ["first", "second"]
    labels = [each.get_attribute("aria-label") for each in browser.find_elements(By.CSS_SELECTOR, "#charts svg[role=img]")]
    assert len(labels) == 4 and "first 1.25" in str(labels[0]) and "second" in str(labels[1])
    assert texts(browser, "#differences td") == [
        "train.clip",
        *(["1.0", "2.0"] if "first" in texts(browser, "#differences th")[1] else ["2.0", "1.0"]),
    ]
    browser.find_element(By.XPATH, "//table[@id='runs']//button[text()='first']").click()
    wait(browser, "document.getElementById('detail-title').textContent === 'first'")
    assert texts(browser, "#samples td")[:3] == ["a <b>dog</b>", "ein Hund", "ein Hund 4"], "texts are no markup"
    write_steps(logs["first"], range(5, 7))
    wait(browser, "document.querySelector('#samples td:nth-child(3)').textContent === 'ein Hund 6'")
    Select(browser.find_element(By.ID, "sample-step")).select_by_visible_text("2")
    wait(browser, "document.querySelector('#samples td:nth-child(3)').textContent === 'ein Hund 2'")
    assert "as suits the data" in texts(browser, "#notes")[0]


def test_a_run_that_is_not_ticked_has_no_curve(browser: WebDriver, shown: Watching) -> None:
    open_page(browser, shown)
    browser.find_element(By.CSS_SELECTOR, "[aria-label='Curves of second']").send_keys(Keys.SPACE)
    wait(browser, "document.querySelectorAll('#charts figure:nth-child(2) .curve').length === 1")
    assert not browser.find_element(By.ID, "differences").is_displayed()


def test_the_focus_stays_while_news_come(browser: WebDriver, shown: Watching, logs: dict[str, Log]) -> None:
    open_page(browser, shown)
    browser.execute_script("[...document.querySelectorAll('#runs button')].find(each => each.textContent === 'first').focus()")
    write_steps(logs["first"], range(5, 6))
    wait(browser, "[...document.querySelectorAll('#runs td')].some(each => each.textContent === '5 of 8')")
    assert browser.switch_to.active_element.text == "first"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, "document.getElementById('detail-title').textContent === 'first'")


def test_news_leave_what_somebody_uses_in_its_place(browser: WebDriver, shown: Watching, logs: dict[str, Log]) -> None:
    """Elements that were there stay: a button that is being pressed, a list that is open, a text that is selected."""
    open_page(browser, shown)
    browser.find_element(By.XPATH, "//table[@id='runs']//button[text()='second']").click()
    wait(browser, "document.getElementById('detail-title').textContent === 'second'")
    kept = ("#runs button", "#runs input", "#samples td", "#sample-step option", "#settings td", "#recipe option")
    browser.execute_script("window.before = arguments[0].map(each => document.querySelector(each))", list(kept))
    rows = texts(browser, "#runs td:nth-child(2)")
    write_steps(logs["first"], range(5, 6))
    wait(browser, "[...document.querySelectorAll('#runs td')].some(each => each.textContent === '5 of 8')")
    script = "return arguments[0].map((each, place) => document.querySelector(each) === window.before[place])"
    assert dict(zip(kept, browser.execute_script(script, list(kept)), strict=True)) == dict.fromkeys(kept, True)
    assert texts(browser, "#runs td:nth-child(2)") == rows


def test_charts_say_what_their_axes_are(browser: WebDriver, shown: Watching) -> None:
    open_page(browser, shown)
    titles = texts(browser, "#charts figcaption")
    assert titles == [
        "loss: validation strong, training faint",
        "validation bleu",
        "learning rate",
        "speed (tokens per second)",
    ]
    assert all("step" in texts(browser, f"#charts figure:nth-child({number}) svg text") for number in range(1, 5))
    scale = "const found = ticks(...arguments); return found.map(short)"
    assert browser.execute_script(scale, 0.106, 1.401, 5) == ["0.2", "0.4", "0.6", "0.8", "1", "1.2", "1.4"]
    assert browser.execute_script(scale, 0, 0.002, 5) == ["0", "0.0005", "0.001", "0.0015", "0.002"]
    with sized(browser, 390, 800, phone=True):
        size = "const text = document.querySelector('#charts text'); return text.getBoundingClientRect().height"
        assert browser.execute_script(size) >= 10, "numbers can be read on a phone"
        outputs = browser.execute_script(
            "return [...document.querySelectorAll('#samples td')].map(each => each.getBoundingClientRect().right)"
        )
        assert max(outputs) <= 390, "no output lies outside of the screen"


def test_a_wrong_key_is_said_and_can_be_corrected(browser: WebDriver, shown: Watching) -> None:
    browser.get("about:blank")
    browser.get(f"{shown.url}/#key=wrong")
    wait(browser, "document.getElementById('status').textContent === 'Invalid API key.'")
    field = browser.find_element(By.ID, "key")
    assert field.is_displayed()
    field.clear()
    field.send_keys(KEY, Keys.ENTER)
    wait(browser, "document.querySelectorAll('#runs tbody tr').length === 2")
    wait(browser, "document.getElementById('status').textContent === ''")
    browser.get_log("browser")  # the refusals


def test_without_control_there_is_nothing_to_press(browser: WebDriver, tmp_path: Path, logs: dict[str, Log]) -> None:
    with watching(tmp_path, control=False, keys=()) as shown:
        browser.get("about:blank")
        browser.get(f"{shown.url}/")
        browser.execute_script("sessionStorage.clear()")
        browser.get(f"{shown.url}/")
        wait(browser, "document.querySelectorAll('#charts svg').length && document.querySelectorAll('#samples td').length")
        for hidden in ("train", "compare", "try", "key"):
            assert not browser.find_element(By.ID, hidden).is_displayed()
        assert texts(browser, "#buttons button") == []
        browser.get("about:blank")


def test_a_file_is_uploaded_checked_and_trained_on(
    browser: WebDriver, shown: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    monkeypatch.setattr(Processes, "_start", lambda self, name, words: orders.append((name, words)))
    open_page(browser, shown)
    file = tmp_path / "my pairs.tsv"
    file.write_text("a dog\tein Hund\n" * 30)
    browser.find_element(By.ID, "upload").send_keys(str(file))
    wait(browser, "!document.getElementById('report').hidden")
    report = browser.find_element(By.ID, "report").text
    assert report.startswith("30 pairs, 29 with a finding.") and "29 duplicate: " in report and "a dog | ein Hund" in report
    assert "for example: " in report and " 0 %" not in report
    assert browser.find_element(By.ID, "name").get_property("value") == "my-pairs"
    recipes = [option.text for option in Select(browser.find_element(By.ID, "recipe")).options]
    assert any(text.startswith("auto: ") for text in recipes) and len(recipes) > 20
    browser.find_element(By.ID, "start").click()
    wait(browser, "document.getElementById('order-status').textContent.startsWith('my-pairs is starting')")
    ((name, words),) = orders
    assert name == "my-pairs" and words[:2] == ["train", "auto"] and words[2].endswith("/uploads/my-pairs.tsv")
    browser.find_element(By.ID, "data").clear()
    browser.find_element(By.ID, "data").send_keys("/nowhere.tsv")
    browser.find_element(By.ID, "check").click()
    wait(browser, "document.querySelector('#order-status.problem')")
    browser.get_log("browser")  # the refusal


def test_axe_finds_nothing_and_the_page_fits(browser: WebDriver, shown: Watching) -> None:
    open_page(browser, shown)
    if not AXE.exists():
        warnings.warn("NO TESTS WITH axe: axe-core is not installed; run make clients", stacklevel=1)
        pytest.skip("axe-core is not installed")
    browser.execute_script(AXE.read_text("utf-8"))
    browser.execute_script(
        "document.querySelectorAll('details').forEach(each => { each.open = true; }); showStatus('Wrong.', true)"
    )
    for theme, width in LOOKS:
        set_theme(browser, theme)
        with sized(browser, width, 800, phone=width < 600):
            assert findings(browser) == [], (theme, width)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            borders = [each for each in browser.execute_script(CONTRASTS) if each[1] < 3 and each[0] not in ("",)]
            assert borders == [], theme
    set_theme(browser, "light")
