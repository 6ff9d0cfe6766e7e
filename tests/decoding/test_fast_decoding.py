"""decode.fast: one switch for settings that are faster and keep the texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import weft as package
from tests.helpers import tiny
from weft.config.sections import DecodeSection
from weft.data.formats import open_pairs
from weft.decoding.decoding_options import FAST, resolve_options
from weft.serve.served_models import Models, parse_location

CPU = torch.device("cpu")


def test_fast_compiles_on_a_cpu_and_changes_no_precision() -> None:
    said: list[str] = []
    found = resolve_options(DecodeSection(fast=True), CPU, warn=said.append)
    assert found.config.compile and found.precision == "float32" and not found.config.shortlist
    assert said[0] == f"decode.fast: {FAST['cpu'][1]}"
    assert resolve_options(DecodeSection(fast=True, precision="int8"), CPU).precision == "int8", "what is set explicitly stays"
    assert not resolve_options(DecodeSection(), CPU).config.compile


@pytest.mark.parametrize("beam", [1, 4])
def test_fast_texts_are_the_same(reverse_run: Path, beam: int) -> None:
    translator = package.load(reverse_run, device="cpu")
    lines = [source for source, _ in open_pairs(tiny.generated("reverse", 200, "test"))]
    slow, fast = ([each.text for each in translator.translate(lines, beam=beam, fast=fast)] for fast in (False, True))
    assert sum(map(str.__eq__, slow, fast)) >= 198


def test_the_flag_is_the_setting_and_says_what_it_does(weft: tiny.Shell, reverse_run: Path) -> None:
    for flag in (["--fast"], ["--set", "decode.fast=true"]):
        assert weft("translate", reverse_run, *flag, stdin="a b c\n") == "c b a\n"
        assert weft.err.count(f"weft: decode.fast: {FAST['cpu'][1]}") == 1
    assert weft("translate", reverse_run, stdin="a b c\n") == "c b a\n" and not weft.err


def test_a_server_is_fast_unless_told_otherwise(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr("weft.cli.serve._run", lambda settings, run, opening: given.append(opening["fast"]))
    weft("serve", "RUN")
    weft("serve", "RUN", "--no-fast")
    assert given == [True, False]


def test_a_server_can_be_fast(reverse_run: Path) -> None:
    for fast in (True, False):
        [served] = Models([parse_location(f"en-de={reverse_run}")], device="cpu", fast=fast).served
        assert served.translator.config.decode.fast is fast
