"""Takes the screenshots of the documentation, with the same browser as the tests.

    python docs/screenshots.py RUN "sentence" [--rnn RUN] [--languages en-de] [--beam 4] [--out docs/images]
    python docs/screenshots.py --site docs/_build/html [--out docs/images]
    python docs/screenshots.py --watch runs [--out docs/images]

RUN is a trained run, for instance `transformer-small` on Multi30k; --site is the folder that `make docs` has built; --watch a
folder with two or more runs on the same data. Needs the Debian packages chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers.chromium import MISSING, chromium, set_theme, sized, wait
from tests.helpers.serving import running
from tests.helpers.watching import watching
from weft import load
from weft.explain.html_page import page
from weft.serve.served_models import Models, parse_location

COLOURS = 128
"""Palette size. The pages have few colours, and a palette reduces a file to a third."""


SITE = (
    ("site-light.png", "start.html", "start", "light", 1280, 800),
    ("site-dark.png", "mechanisms.html", "how-to-read-this-page", "dark", 1280, 800),
    ("site-phone.png", "results.html", "summary", "dark", 390, 800),
)
"""Screenshots of the documentation site: picture, page, section, theme, width, height."""


WATCH = (
    ("watch.png", "light", 1280, 1240),
    ("watch-dark.png", "dark", 1280, 1240),
    ("watch-phone.png", "dark", 390, 1120),
)
"""Screenshots of the page of `weft watch`: picture, theme, width, height."""

SERVER = (
    ("serve.png", "", "light", 1100, 720),
    ("serve-dark.png", "", "dark", 1100, 720),
    ("serve-phone.png", "", "light", 390, 1120),
    ("api-phone.png", "docs", "dark", 390, 1120),
)
"""Screenshots of the server's pages: picture, path, theme, width, height."""


def save_screenshot(browser: WebDriver, file: Path) -> None:
    """Saves a screenshot of the browser with a reduced palette."""
    image = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def capture_explanation(browser: WebDriver, run: str, text: str, beam: int, out: Path) -> None:
    """The page of `weft explain`, opened from disk: the heat map in the light theme, the lines in the dark one."""
    found = load(run, device="cpu").explain(text, beam=beam, run=Path(run).name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page([found]), encoding="utf-8")
        browser.get(file.as_uri())
        for name, picture, key in (("light", "explain.png", "m"), ("dark", "explain-dark.png", "l")):
            set_theme(browser, name)
            browser.find_element(By.TAG_NAME, "body").send_keys(key, ".")
            wait(browser, "document.querySelector('.panel .stage').children.length")
            with sized(browser, 1100, 1000):
                save_screenshot(browser, out / picture)
    set_theme(browser, "light")


def capture_inside(browser: WebDriver, run: str, text: str, out: Path, rnn: str | None) -> None:
    """The steps of a prediction: weights in the light theme and on a phone, the gates of a recurrent run in the dark one."""
    shots = [("inside.png", "light", 1100, 620, "weights", run), ("inside-phone.png", "light", 390, 900, "weights", run)]
    if rnn is not None:
        shots.append(("inside-dark.png", "dark", 1100, 760, "update gate", rnn))
    for picture, theme, width, height, step, folder in shots:
        set_theme(browser, theme)
        with tempfile.TemporaryDirectory() as pages, sized(browser, width, height, phone=width < 600):
            file = Path(pages) / "page.html"
            file.write_text(page([load(folder, device="cpu").explain(text, run=Path(folder).name, inside=True)]), "utf-8")
            browser.get(file.as_uri())
            wait(browser, "document.querySelectorAll('.inside .cell').length")
            browser.execute_script(SHOW_STEP, step)
            save_screenshot(browser, out / picture)
    set_theme(browser, "light")


SHOW_STEP = """
const next = () => [...document.querySelectorAll('.inside .controls button')].find(each => each.textContent.startsWith('next'));
const at = () => document.querySelector('.inside .formula b').textContent;
for (let i = 0; i < 500 && at() !== arguments[0]; i++) next().click();
const cells = document.querySelectorAll('.inside [role=grid] tbody tr')[2].querySelectorAll('.cell');
cells[Math.min(5, cells.length - 1)].focus();
document.querySelector('.inside').scrollIntoView();
"""
"""Goes to the next step of this name, and points at a cell."""


def capture_server(browser: WebDriver, run: str, languages: str, text: str, beam: int, out: Path) -> None:
    """The page of `weft serve --fast` with a highlighted word, and its API reference."""
    with running(Models([parse_location(f"{languages}={run}")], device="cpu", fast=True)) as served:
        for picture, path, theme, width, height in SERVER:
            set_theme(browser, theme)
            with sized(browser, width, height, phone=width < 600):
                browser.get(f"{served.url}/{path}")
                if path:
                    wait(browser, "document.querySelectorAll('h3').length")
                else:
                    translate(browser, text, beam)
                save_screenshot(browser, out / picture)
    set_theme(browser, "light")


def translate(browser: WebDriver, text: str, beam: int) -> None:
    """Types a text into the server's page, shows its alternatives, and points at a word."""
    wait(browser, "document.getElementById('beam').options.length")
    Select(browser.find_element(By.ID, "beam")).select_by_value(str(beam))
    browser.find_element(By.ID, "source").send_keys(text)
    wait(browser, f"document.querySelectorAll('.alternatives li').length === {beam - 1}")
    browser.execute_script("document.querySelector('.alternatives').open = true; document.activeElement.blur()")
    words = browser.find_elements(By.CSS_SELECTOR, ".pieces + .pieces .piece")
    ActionChains(browser).move_to_element(words[2 * len(words) // 3]).perform()


def capture_watch(browser: WebDriver, runs: Path, out: Path) -> None:
    """The page of `weft watch`: the runs, their curves, and the samples of the first one."""
    with watching(runs, control=False, keys=()) as shown:
        for picture, theme, width, height in WATCH:
            set_theme(browser, theme)
            with sized(browser, width, height, phone=width < 600):
                browser.get(shown.url)
                wait(browser, "document.querySelectorAll('#charts svg').length >= 4 && document.querySelector('#samples td')")
                browser.execute_script("document.getElementById('folder').textContent = 'runs'")
                save_screenshot(browser, out / picture)
    set_theme(browser, "light")


def capture_site(browser: WebDriver, site: Path, out: Path) -> None:
    """Pages of the documentation site, opened from disk: light, dark, and on a phone."""
    for picture, name, section, theme, width, height in SITE:
        set_theme(browser, theme)
        with sized(browser, width, height, phone=width < 600):
            browser.get(f"{site.resolve().as_uri()}/{name}")
            browser.execute_script("document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", section)
            save_screenshot(browser, out / picture)
    set_theme(browser, "light")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="run folder")
    parser.add_argument("text", nargs="?", help="sentence to translate")
    parser.add_argument("--site", type=Path, help="folder of the built documentation")
    parser.add_argument("--watch", type=Path, help="folder of runs for the page of weft watch")
    parser.add_argument("--rnn", help="a recurrent run on the same data, whose gates are shown")
    parser.add_argument("--languages", default="en-de", help="source and target language")
    parser.add_argument("--beam", type=int, default=4, choices=(2, 4))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    options = parser.parse_args()
    if not (options.site or options.watch or options.text):
        parser.error("give a run and a sentence, --site or --watch")
    with chromium() as browser:
        if browser is None:
            raise SystemExit(MISSING)
        if options.site:
            capture_site(browser, options.site, options.out)
        if options.watch:
            capture_watch(browser, options.watch, options.out)
        if options.run:
            capture_explanation(browser, options.run, options.text, options.beam, options.out)
            capture_inside(browser, options.run, options.text, options.out, options.rnn)
            capture_server(browser, options.run, options.languages, options.text, options.beam, options.out)


if __name__ == "__main__":
    main()
