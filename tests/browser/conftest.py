"""A real Chromium for tests of pages. Debian's packages chromium and chromium-driver bring what is needed."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

MISSING = "NO BROWSER TESTS: there is no chromium and chromedriver here; apt-get install chromium chromium-driver"


@pytest.fixture(scope="session")
def chromium() -> Iterator[WebDriver]:
    """A browser without a window, shared by all tests."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        warnings.warn(MISSING, stacklevel=1)
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium: WebDriver) -> Iterator[WebDriver]:
    """The browser, which must have said nothing on its console when the test is over."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield chromium
    said: list[dict[str, Any]] = chromium.get_log("browser")
    assert said == []


@pytest.fixture
def offline(browser: WebDriver) -> Iterator[WebDriver]:
    """The same without any network."""

    def set_offline(off: bool) -> None:
        conditions = {"offline": off, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    set_offline(True)
    yield browser
    set_offline(False)
