"""The documentation site: one command builds it without warnings, it needs no network, and its search finds things."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from tests.helpers.chromium import MISSING, chromium, wait
from tests.helpers.documents import ROOT
from weft.version import VERSION

pytest.importorskip("sphinx", reason="the site needs the extra `docs`")

PAGES = {str(file.relative_to(ROOT / "docs").with_suffix("")) for file in (ROOT / "docs").rglob("*.md")}
LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src"}
"""Elements that load a resource, with the attribute that names it."""


class Resources(HTMLParser):
    """Collects what a page loads. A link to another page loads nothing until somebody clicks on it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in LOADING and given.get(LOADING[tag]):
            self.found.append(given[LOADING[tag]] or "")


def resources(page: Path) -> list[str]:
    parser = Resources()
    parser.feed(page.read_text("utf-8"))
    return parser.found


@pytest.fixture(scope="session")
def site(shared_folder: Path) -> Path:
    """The site, built as `make docs` does: a warning is an error."""
    folder = shared_folder / "site"
    with open(folder.with_suffix(".lock"), "w") as lock:  # one process builds, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "searchindex.js").exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    arguments = re.search(r"-m sphinx (.*) docs docs/_build/html", (ROOT / "Makefile").read_text("utf-8"))
    assert arguments is not None
    command = [sys.executable, "-m", "sphinx", *arguments[1].split(), "-d", str(folder) + "-doctrees", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_every_page_is_part_of_the_site(site: Path) -> None:
    assert {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")} >= PAGES
    index = (site / "index.html").read_text("utf-8")
    assert {name for name in PAGES - {"index"} if f'href="{name}.html"' not in index} == set()


def test_a_built_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for resource in resources(page):
            assert not re.match(r"(https?:)?//", resource), f"{page.name} loads {resource}"
            if not resource.startswith(("data:", "#")):
                assert (page.parent / resource.partition("?")[0]).exists(), f"{page.name}: {resource} is missing"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text("utf-8")), sheet


def test_the_search_index_and_the_reference_are_complete(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    for name in ("troubleshoot", "mechan", "translat"):
        assert name in index
    reference = (site / "api.html").read_text("utf-8")
    for name in ("weft.train", "weft.load", "weft.Translator.translate", "weft.Generator.generate", "weft.errors.DataError"):
        assert f'id="{name}"' in reference
    assert "data.vocabulary" in reference


def test_the_reference_lists_the_facts_of_parts_with_their_values(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text("utf-8"))
    for name, values in (
        ("weights_sum", "one, at most one, None"),
        ("cuda_graph_safe", "False, True"),
        ("inference_kind", "search, continue, forward"),
        ("accepts", "frozenset[str]"),
    ):
        assert re.search(rf"\n{name}\n+{re.escape(values)}\n", text), name
    assert "performer\ncausal, cross, encoder\nNone" in re.sub(r"\n+", "\n", text)


def test_formulas_are_typeset_without_scripts(site: Path) -> None:
    page = (site / "mechanisms.html").read_text("utf-8")
    written = re.findall(r"^```math\n", (ROOT / "docs" / "mechanisms.md").read_text("utf-8"), re.MULTILINE)
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == len(written) > 30
    assert "\\frac" not in page and "MathJax" not in page


def test_figures_on_a_white_ground_are_marked_for_the_dark_theme(site: Path) -> None:
    drawn = re.findall(r'<img[^>]*class="drawing"[^>]*>', (site / "mechanisms.html").read_text("utf-8"))
    assert len(drawn) == len(list((ROOT / "docs" / "images" / "mechanisms").glob("*.png")))
    chapters = [file.read_text("utf-8") for file in (site / "course").glob("[0-9]*.html")]
    drawn = [name for text in chapters for name in re.findall(r'<img[^>]*class="drawing"[^>]*_images/([\w-]+\.png)', text)]
    assert set(drawn) >= {file.name for file in (ROOT / "docs" / "images" / "course").glob("*.png")}
    assert 'class="drawing"' not in (site / "serving.html").read_text("utf-8"), "screenshots keep their colours"


def test_code_is_copied_without_prompts_and_outputs(site: Path) -> None:
    with chromium() as browser:
        if browser is None:
            pytest.skip(MISSING)
        for page, expected in (
            ("first-ten-minutes", "git clone ADDRESS weft\ncd weft\n"),
            ("start", "python3 -m venv .venv && source .venv/bin/activate\npip install"),
        ):
            browser.get((site / f"{page}.html").as_uri())
            browser.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text }")
            button = browser.find_element(By.CSS_SELECTOR, "div.highlight button.copy")
            browser.execute_script("arguments[0].click()", button)
            wait(browser, "window.copied !== undefined")
            copied = browser.execute_script("return window.copied")
            assert copied.startswith(expected) and f"weft {VERSION}" not in copied and "Copy" not in copied


def test_links_to_the_repository_lead_to_pages(site: Path) -> None:
    assert 'href="contributing.html' in (site / "architecture.html").read_text("utf-8")
    assert 'href="architecture.html#one-attention-interface"' in (site / "contributing.html").read_text("utf-8")


def test_search_and_both_themes_work_from_disk(site: Path) -> None:
    with chromium() as browser:
        if browser is None:
            pytest.skip(MISSING)
        browser.get((site / "search.html").as_uri() + "?q=shortlist")
        wait(browser, "document.querySelectorAll('#search-results li').length > 1")
        assert browser.find_elements(By.CSS_SELECTOR, "#search-results a[href*='.html']")
        colours, filters = [], []
        for theme in ("light", "dark"):
            emulated = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
            browser.get((site / "results.html").as_uri())
            colours.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "a page is too wide"
            filters.append(browser.execute_script("return getComputedStyle(document.querySelector('img.drawing')).filter"))
        assert colours[0] != colours[1]
        assert filters[0] == "none" and "invert" in filters[1]
        entries = browser.get_log("browser")  # type: ignore[no-untyped-call]
        assert not [entry for entry in entries if entry["level"] == "SEVERE"], entries
