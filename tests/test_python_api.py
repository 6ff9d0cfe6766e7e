"""The functions of the package: what the command line does, from Python."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import weft
from tests.helpers import tiny
from weft.errors import ConfigError

TEST = tiny.generated("reverse", 30, "test")


def test_a_run_is_evaluated_as_on_the_command_line(reverse_run: Path) -> None:
    found = weft.evaluate(reverse_run, TEST, beam=2)
    assert not isinstance(found, dict)
    document = found.document()
    assert "BLEU" in str(document) and str(reverse_run) in str(document)
    compared = weft.evaluate(reverse_run, [TEST], against=reverse_run, beam=2)
    assert not isinstance(compared, dict) and compared.document() != document


@pytest.mark.parametrize("imported", [False, True])
def test_an_input_is_explained(imported: bool, reverse_run: Path) -> None:
    """Also if the package of the same name is imported, which becomes the attribute."""
    if imported:
        importlib.import_module("weft.explain.html_page")
    explained = weft.explain(reverse_run, "a b c", influence=False)
    assert "<svg" in explained._repr_html_() or "<img" in explained._repr_html_()


def test_models_are_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--budget soon"):
        weft.compare("transformer-tiny", data=TEST, valid=TEST, budget="soon", out=tmp_path)
    with pytest.raises(ConfigError, match="there is no training data"):
        weft.compare(["transformer-tiny"], slot="model.encoder_self", kinds=["full"], budget="2-steps", out=tmp_path)


def test_all_public_names_exist() -> None:
    assert {"compare", "evaluate", "explain", "load", "train"} <= set(dir(weft))
    for name in weft.__all__:
        assert getattr(weft, name) is not None
