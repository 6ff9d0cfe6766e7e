"""A real Chromium for tests of pages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import chromium as own
import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

MISSING = f"NO BROWSER TESTS: {own.MISSING}"


@pytest.fixture(scope="session")
def chromium() -> Iterator[WebDriver]:
    """A browser without a window, shared by all tests."""
    with own.chromium() as browser:
        if browser is None:
            warnings.warn(MISSING, stacklevel=1)
            pytest.skip(MISSING)
        yield browser


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
