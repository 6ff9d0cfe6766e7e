"""A real Chromium controlled from Python, for browser tests and screenshots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

MISSING = "chromium and chromedriver are not installed; apt-get install chromium chromium-driver"
"""Names the Debian packages."""

FOREIGN = "weft.test"
"""A name of this machine that browsers do not trust: pages over plain HTTP are no secure context there."""

OPTIONS = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "window-size=1200,900"),
    f"host-resolver-rules=MAP {FOREIGN} 127.0.0.1",
)


@contextmanager
def chromium() -> Iterator[WebDriver | None]:
    """Starts a headless browser; yields None if it is not installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        yield None
        return
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in OPTIONS:
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def sized(browser: WebDriver, width: int, height: int, *, phone: bool = False) -> Iterator[None]:
    """Sets the size of the page inside this context. phone: emulate a phone with two device pixels per CSS pixel."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def set_theme(browser: WebDriver, name: str) -> None:
    """Makes the system's theme light or dark."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})


def wait(browser: WebDriver, condition: str) -> None:
    """Waits until a JavaScript condition is true on the page."""
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(f"return {condition}"))
