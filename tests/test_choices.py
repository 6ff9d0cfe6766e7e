"""docs/choices.md: nothing that a configuration can name is missing there, and every command of the page accepts its list."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
import torch

from tests.helpers.documents import ROOT, blocks, check_sets, commands, parse, weft_arguments
from weft.attention.full import FullAttention
from weft.cli.options import LISTS
from weft.config.plugins import KINDS
from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.layers import ABSOLUTE_POSITIONS, CELLS, RELATIVE_POSITIONS
from weft.layers.embeddings_and_rotary_positions import PositionKind
from weft.layers.recurrent import CellKind
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CHOICES = script("choices")


def test_the_page_is_up_to_date() -> None:
    assert CHOICES.PAGE.read_text("utf-8") == CHOICES.page(), "run `python docs/choices.py`"


def test_a_figure_stands_beside_its_part() -> None:
    for name, choice in CHOICES.CHOICES.items():
        for measured in choice.measured:
            found = measured.figures()
            assert any(found.get(kind) for kind in CHOICES.parts(name)), (name, measured)
    (scores,) = CHOICES.CHOICES["mixers"].measured
    assert scores.figures()["convolution"] == "37.21"
    with pytest.raises(AssertionError, match=r"results\.md: no speed"):
        replace(scores, column="speed").figures()


def test_every_table_is_listed() -> None:
    """Those that options name in the code, and those that packages may extend."""
    named = {
        path
        for file in (ROOT / "weft").rglob("*.py")
        for path in re.findall(r'(?:Among|NameIn)\("(weft[\w.]*:[A-Z_]+)"', file.read_text("utf-8"))
    }
    listed = {each.table for each in LISTS.values()}
    both = {"weft.attention.mixers:SELF", "weft.attention:CROSS"}  # attentions and mixers together, and with multistep
    assert (named | {path for paths in KINDS.values() for path in paths}) - listed == both
    assert len(named) > 15


def test_values_described_in_words_are_those_of_their_options() -> None:
    assert set(CELLS) == set(get_args(CellKind))
    assert set(ABSOLUTE_POSITIONS) == set(get_args(PositionKind))
    assert {"none", *RELATIVE_POSITIONS} == set(get_args(get_type_hints(FullAttention.__init__)["position"]))


PARTS = [(name, kind) for name in LISTS for kind in CHOICES.parts(name)]


@pytest.mark.parametrize(("name", "kind"), PARTS, ids=["-".join(each) for each in PARTS])
def test_the_command_of_a_list_accepts_every_part(name: str, kind: str) -> None:
    choice = CHOICES.CHOICES[name]
    (block,) = blocks(f"```sh\n{choice.with_part(kind)}\n```\n", "a command")
    (words,) = commands(block)
    arguments: Any = weft_arguments(words)
    assert parse(arguments) == 0
    if name == "generators":
        (data,) = (word for word in arguments if word.startswith("generated:"))
        assert list(open_pairs(re.sub("count=[0-9]+", "count=2", data)))
    if "translate" in arguments:  # without a run, settings are checked on top of a recipe
        arguments = ["train", "transformer-tiny", *arguments[arguments.index("--set") :]]
    check_sets(arguments)
    if name in ("attentions", "mixers", "patterns", "positions", "cells"):
        sets = arguments[arguments.index("--set") + 1 :]
        with torch.device("meta"):
            build_model(load_config(choice.recipe, sets).model, Sizes(50, 50, shared=True))


def test_a_part_has_a_description() -> None:
    assert [(name, kind) for name in LISTS for kind, text in CHOICES.parts(name).items() if len(text) < 10] == []
