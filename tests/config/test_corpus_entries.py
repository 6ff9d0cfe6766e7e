"""Entries of data.train in braces: their names of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from weft.config.corpus_entries import TrainingCorpus, absolute
from weft.data.formats import open_pairs


def test_an_encoding_is_named_with_each_file(tmp_path: Path) -> None:
    entry = TrainingCorpus.model_validate({"files": ["a.tsv#2,3", "a.en,a.de"], "encoding": "cp1252"})
    assert entry.files == ["a.tsv@cp1252#2,3", "a.en@cp1252,a.de@cp1252"] and entry.encoding is None
    assert TrainingCorpus.model_validate(entry.model_dump()) == entry
    with pytest.raises(ValidationError, match="there is no encoding 'nonsense'"):
        TrainingCorpus(files=["a.tsv"], encoding="nonsense")
    (tmp_path / "a.tsv").write_bytes("Straße\tü\n".encode("cp1252"))
    placed = absolute("a.tsv@cp1252#2,1", tmp_path)
    assert list(open_pairs(placed)) == [("ü", "Straße")]
