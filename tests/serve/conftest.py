"""A server in the test process, with tiny models that reverse letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.serving import Running, Slow, running, two_models
from weft.serve.served_models import Models


@pytest.fixture(scope="session")
def models(reverse_run: Path, other_run: Path) -> Models:
    return two_models(reverse_run, other_run)


@pytest.fixture(scope="session")
def served(models: Models) -> Iterator[Running]:
    """A server with default settings, shared by all tests; none may change it."""
    with running(models) as shown:
        yield shown


@pytest.fixture
def serve(models: Models) -> Iterator[Callable[..., Running]]:
    """Starts servers with given settings or models."""
    with ExitStack() as stack:
        yield lambda own=None, **settings: stack.enter_context(running(own or models, **settings))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow(monkeypatch)
    with made.pool:
        yield made
        made.go.set()  # also after a failed test, so that no client waits
