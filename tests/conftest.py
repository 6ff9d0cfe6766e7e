"""What tests share: a cache of their own, trained models, and the command line."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers import pictures, tiny


def pytest_configure() -> None:
    """Without a GPU, saves a seventh of the time of small tests: seeding formats the stack for devices that are not there."""
    if not torch.cuda.is_available():
        torch.manual_seed = torch.default_generator.manual_seed


MARKED = {
    "browser/": pytest.mark.browser,
    "learn/": pytest.mark.slow,
    "contract/test_planted_bugs": pytest.mark.slow,
    "serve/test_serve_clients": pytest.mark.clients,
    "serve/test_serve_deployment": pytest.mark.clients,
}
"""Beginnings of paths below this folder, and the marker of the tests there. Files that end in _cuda.py need a GPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in _marks_of(item.path):
            item.add_marker(mark)


@functools.cache
def _marks_of(path: Path) -> list[pytest.MarkDecorator]:
    """The markers of the tests in a file."""
    here = Path(__file__).parent
    file = path.relative_to(here).as_posix() if here in path.parents else ""
    gpu = [pytest.mark.gpu] if file.endswith("_cuda.py") else []
    return gpu + [mark for begin, mark in MARKED.items() if file.startswith(begin)]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules and test items live until the end


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of this test run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_cache(shared_folder: Path) -> Iterator[None]:
    """Tests neither read nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Trainings leave out `results.png`; `pictures.drawn` is for tests of it."""
    with pictures.left_out():
        yield


@pytest.fixture(scope="session")
def reverse_run(shared_folder: Path) -> Path:
    """A run that reverses up to seven letters, almost always rightly. Not to be changed: copy it first."""
    return tiny.once(shared_folder / "reverse", tiny.train)


@pytest.fixture(scope="session")
def other_run(shared_folder: Path) -> Path:
    """A worse run on the same data from another seed."""
    return tiny.once(shared_folder / "other", lambda out: tiny.train(out, settings={"train.steps": 150, "train.seed": 2}))


@pytest.fixture
def weft(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tiny.Shell:
    """The command line, in this process."""
    return tiny.Shell(capsys, monkeypatch)
