"""Fixtures with a real Chromium."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.helpers import chromium as own
from tests.helpers.serving import Running, running, two_models

MISSING = f"NO BROWSER TESTS: {own.MISSING}"


@pytest.fixture(scope="session")
def chromium() -> Iterator[WebDriver]:
    """A headless browser, shared by all tests."""
    with own.chromium() as browser:
        if browser is None:
            warnings.warn(MISSING, stacklevel=1)
            pytest.skip(MISSING)
        yield browser


@pytest.fixture
def browser(chromium: WebDriver) -> Iterator[WebDriver]:
    """The browser, whose console must be empty at the end of the test."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield chromium
    messages: list[dict[str, Any]] = chromium.get_log("browser")
    assert messages == []


@pytest.fixture
def offline(browser: WebDriver) -> Iterator[WebDriver]:
    """The browser without network access."""

    def set_offline(off: bool) -> None:
        conditions = {"offline": off, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    set_offline(True)
    yield browser
    set_offline(False)


@pytest.fixture(scope="session")
def served(reverse_run: Path, other_run: Path) -> Iterator[Running]:
    """A server with two models, shared by all tests."""
    with running(two_models(reverse_run, other_run), hosts=(own.FOREIGN,)) as shown:
        yield shown
