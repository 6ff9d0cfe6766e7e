"""The server's page in a real browser: typing, links between words, languages and options, errors, explanations."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

from tests.helpers.chromium import FOREIGN, sized, wait
from tests.helpers.serving import Running, Slow, wait_for


def by_id(browser: WebDriver, name: str) -> WebElement:
    return browser.find_element(By.ID, name)


def open_page(browser: WebDriver, url: str) -> None:
    browser.get(url)
    wait(browser, "document.getElementById('beam').options.length")


def type_in(browser: WebDriver, served: Running, text: str, expected: str) -> None:
    open_page(browser, served.url)
    by_id(browser, "source").send_keys(text)
    wait_for_target(browser, expected)


def wait_for_target(browser: WebDriver, expected: str) -> None:
    wait(browser, f"document.getElementById('target').textContent === {expected!r} && !document.querySelector('.old')")


def weights(browser: WebDriver, row: int) -> list[float]:
    """The highlight strength of each piece in a row."""
    script = f"""return [...document.querySelectorAll('.pieces')[{row}].children].map(
        piece => Number(getComputedStyle(piece).getPropertyValue('--weight') || 0))"""
    return list(browser.execute_script(script))


def test_text_is_translated_while_typing_and_hovering_shows_attention(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    assert weights(browser, 0) == [0.0] * 4
    words = browser.find_elements(By.CSS_SELECTOR, ".pieces + .pieces .piece")
    assert [word.text for word in words] == ["c", "b", "a"]
    ActionChains(browser).move_to_element(words[0]).perform()
    marked = weights(browser, 0)
    assert max(marked) == 1 and marked.index(1) == 2
    assert [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".linked")] == ["c"], "the link is also underlined"
    assert browser.find_element(By.CLASS_NAME, "links").text.startswith("c: c ")
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert weights(browser, 0) == [0.0] * 4


def test_a_row_of_words_is_one_tab_stop_after_explain_and_names_its_links(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    rows = browser.find_elements(By.CSS_SELECTOR, ".pieces")
    assert [(each.aria_role, each.accessible_name) for each in rows] == [("listbox", "Text"), ("listbox", "Translation")]
    assert [len(each.find_elements(By.CSS_SELECTOR, "[tabindex='0']")) for each in rows] == [1, 1]
    browser.execute_script("document.querySelector('button.explain').focus()")
    words = []
    for key in (Keys.TAB, Keys.ARROW_RIGHT, Keys.END, Keys.TAB, Keys.ARROW_RIGHT, Keys.HOME, Keys.ARROW_UP, Keys.TAB):
        browser.switch_to.active_element.send_keys(key)
        words.append(browser.switch_to.active_element.text)
    assert words == ["a", "b", "end", "c", "b", "c", "c", "c"]
    assert browser.switch_to.active_element.accessible_name.startswith("c: c ")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("role") != "option"


def test_languages_models_and_beams_can_be_switched(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    assert [each.text for each in Select(by_id(browser, "from")).options] == ["Detect language", "English (en)", "French (fr)"]
    Select(by_id(browser, "beam")).select_by_value("4")
    wait(browser, "document.querySelectorAll('.alternatives li').length === 3")
    Select(by_id(browser, "from")).select_by_visible_text("French (fr)")
    expected = served.translate("a b c", model="other", beam=4)[0]["score"]
    wait(browser, f"document.querySelector('.tools .score').textContent === 'score ' + ({expected}).toFixed(3)")
    assert by_id(browser, "source").get_attribute("lang") == "fr"


def test_the_language_is_detected_and_told_to_the_browser(browser: WebDriver, served: Running) -> None:
    open_page(browser, served.url)
    Select(by_id(browser, "from")).select_by_value("auto")
    for text, code, name in (("the of and to in", "en", "English"), ("de la le et les des", "fr", "French")):
        by_id(browser, "source").clear()
        by_id(browser, "source").send_keys(text)
        wait(browser, f"document.getElementById('source').lang === '{code}' && document.querySelectorAll('.pair').length")
        assert Select(by_id(browser, "from")).first_selected_option.text == f"Detected: {name} ({code})"
    assert [by_id(browser, "target").get_attribute(name) for name in ("lang", "dir")] == ["de", "ltr"]
    directions = browser.execute_script("return ['ar', 'und', 'x'].map(code => script(code).dir)")
    assert directions == ["rtl", "auto", "auto"]
    assert by_id(browser, "target").accessible_name == "Translation" and by_id(browser, "source").accessible_name == "Text"


def test_prefix_and_glossary(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    browser.execute_script("document.getElementById('options').open = true")
    by_id(browser, "prefix").send_keys("b")
    expected = served.translate("a b c", model="reverse", prefix="b")[0]["text"]
    wait_for_target(browser, expected)
    by_id(browser, "prefix").clear()
    by_id(browser, "glossary").send_keys("a = h\nz = x\nb = !b")
    glossary = {"a": "h", "z": "x", "b": "!b"}
    expected = served.translate("a b c", model="reverse", glossary=glossary)[0]["text"]
    wait_for_target(browser, expected)
    assert "h" in expected and "b" not in expected
    by_id(browser, "glossary").send_keys("\nd")
    wait(browser, "document.querySelector('#status.problem')")
    assert by_id(browser, "status").text == "The glossary line “d” is not a term, = and its translation."


def test_errors_are_sentences(browser: WebDriver, served: Running) -> None:
    open_page(browser, served.url)
    seen = []
    answers = (
        "Promise.reject(new TypeError('Failed to fetch'))",
        "Promise.resolve(new Response('<html>', {status: 502}))",
        "Promise.resolve(Response.json({error: 'too many requests'}, {status: 429, headers: {'Retry-After': '60'}}))",
    )
    for answer in answers:
        browser.execute_script(f"document.getElementById('status').textContent = ''; window.fetch = () => {answer}")
        by_id(browser, "source").send_keys("a")
        wait(browser, "document.getElementById('status').textContent")
        seen.append(by_id(browser, "status").text)
    assert seen == [
        "The server does not answer: it may be down, or this device offline.",
        "The server's answer cannot be read; its status is 502.",
        "Too many requests. The page tries again in 60 s.",
    ]
    script = "return document.getElementById('time').closest('output, [role=status], [aria-live]')"
    assert browser.execute_script(script) is None, "times are not announced"


def test_typing_cancels_what_was_asked_before(browser: WebDriver, served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    open_page(browser, served.url)
    by_id(browser, "source").send_keys("g f e")
    try:
        assert slow.began.wait(30) and slow.wanted[0](0)
        by_id(browser, "source").send_keys(" d")
        wait_for(lambda: not slow.wanted[0](0))
    finally:
        slow.go.set()
    by_id(browser, "source").send_keys(" c")
    wait_for_target(browser, "c d e f g")


def test_copying_works_over_plain_http(browser: WebDriver, served: Running) -> None:
    open_page(browser, served.url.replace("127.0.0.1", FOREIGN))
    assert browser.execute_script("return !window.isSecureContext && navigator.clipboard === undefined")
    by_id(browser, "source").send_keys("a b c\n\nd e")
    wait_for_target(browser, "c b a\n\ne d")
    by_id(browser, "copy").click()
    assert by_id(browser, "status").text == "Copied."
    by_id(browser, "clear").click()
    by_id(browser, "source").send_keys(Keys.CONTROL, "v")
    assert by_id(browser, "source").get_property("value") == "c b a\n\ne d"


def test_typed_markup_stays_text(browser: WebDriver, served: Running) -> None:
    open_page(browser, served.url)
    by_id(browser, "source").send_keys("<img src=x onerror=alert(1)>\n\na b")
    wait(browser, "document.querySelectorAll('.pair').length === 2")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert by_id(browser, "target").get_property("textContent").split("\n")[1:] == ["", "b a"]


def test_the_explanation_opens_and_runs_its_script(browser: WebDriver, served: Running) -> None:
    type_in(browser, served, "a b c", "c b a")
    first = browser.current_window_handle
    browser.find_element(By.CSS_SELECTOR, "button.explain").click()
    WebDriverWait(browser, 20).until(lambda driver: len(driver.window_handles) == 2)
    browser.switch_to.window(next(each for each in browser.window_handles if each != first))
    wait(browser, "document.querySelectorAll('canvas.map').length")
    assert [each.get_attribute("lang") for each in browser.find_elements(By.CLASS_NAME, "text")] == ["en", "de"]
    browser.close()
    browser.switch_to.window(first)


def test_the_page_fits_on_a_phone(browser: WebDriver, served: Running) -> None:
    with sized(browser, 360, 700, phone=True):
        open_page(browser, served.url)
        by_id(browser, "source").send_keys("a b c d e f g")
        wait(browser, "document.querySelectorAll('.pair').length")
        assert browser.execute_script("return document.documentElement.scrollWidth <= 360")


def test_a_file_is_translated_and_offered_for_download(browser: WebDriver, served: Running, tmp_path: Path) -> None:
    open_page(browser, served.url)
    by_id(browser, "files").find_element(By.TAG_NAME, "summary").click()
    wait(browser, "document.getElementById('file-hint').textContent.includes('.html')")
    file = tmp_path / "page.html"
    file.write_text("<p>a b c</p>\n<p>d <b>e</b> f</p>", encoding="utf-8")
    by_id(browser, "file").send_keys(str(file))
    wait(browser, "!document.getElementById('translated-file').hidden")
    link = by_id(browser, "translated-file")
    assert link.text == "Download page.de.html"
    assert "<p>c b a</p>" in served.client.get(str(link.get_attribute("href"))).text
    (tmp_path / "x.exe").write_bytes(b"a")
    by_id(browser, "file").send_keys(str(tmp_path / "x.exe"))
    wait(browser, "document.getElementById('file-status').textContent.includes('not supported')")
    assert not link.is_displayed()
    browser.get_log("browser")  # the refusal
