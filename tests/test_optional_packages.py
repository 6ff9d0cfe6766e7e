"""Packages that only some commands need: without them everything else works, and what needs them names the extra."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.language_names import SOURCE, names
from tests.helpers import pictures, tiny
from weft.data.column_checks_and_listed_files import _header
from weft.data.formats import open_pairs
from weft.data.language_names import FILE, language_names
from weft.errors import DataError
from weft.explain.html_page import png


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment with nothing but the core: neither matplotlib nor Babel can be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("matplotlib", "babel", "PIL")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("matplotlib", "babel", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_run_says_once_that_there_is_no_picture(bare: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pictures.drawn():
        tiny.train(tmp_path / "run", settings={"train.steps": 4, "train.validate_every": 2})
    said = capsys.readouterr().err
    assert said.count("there will be no results.png") == 1 and "pip install 'weft-seq2seq[plots]'" in said
    assert (tmp_path / "run" / "results.csv").exists() and not (tmp_path / "run" / "results.png").exists()


def test_a_picture_that_is_asked_for_names_the_extra(bare: None, reverse_run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    weft.fails("explain", reverse_run, "a b", "-o", tmp_path / "map.png", says=["matplotlib", "weft-seq2seq[plots]"])
    weft.fails("bench", reverse_run, "--profile", tmp_path / "p.png", says=["p.png", "weft-seq2seq[plots]"])
    weft("explain", reverse_run, "a b", "-o", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text("utf-8"), "a page needs neither package"


def test_dates_name_the_extra_and_other_generated_data_need_none(bare: None) -> None:
    with pytest.raises(DataError, match=r"babel.*weft-seq2seq\[dates\]"):
        open_pairs("generated:dates")
    assert open_pairs("generated:reverse").digest()


def test_headings_are_known_without_babel(bare: None) -> None:
    assert _header(["Englisch", "Deutsch"]) and _header(["en", "hsb"]) and not _header(["Hallo", "Welt"])


def test_names_of_languages_are_those_of_babel() -> None:
    if json.loads(FILE.read_text("utf-8"))["source"] != SOURCE:
        pytest.skip("they were made from another version of Babel")
    assert {language: dict(language_names(language)) for language in names()} == names()


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3), (3, 5, 4)])
def test_png_files_are_read_by_others(shape: tuple[int, ...]) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(np.array(Image.open(io.BytesIO(png(pixels)))), pixels)
