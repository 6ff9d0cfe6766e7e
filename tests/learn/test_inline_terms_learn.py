"""A model that was trained with terms shown inline follows them, where the text alone does not decide."""

from __future__ import annotations

import random
from pathlib import Path

import weft as package
from tests.helpers import tiny
from weft.runs.translator import load
from weft.tasks.translation.glossary import Terms


def test_a_word_with_two_translations(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = []
    for _ in range(2000):
        words = ["a", *chance.choices("bcde", k=chance.randint(1, 4))]
        chance.shuffle(words)
        rows.append((" ".join(words), " ".join(words).replace("a", chance.choice("pq"))))
    file, glossary = tmp_path / "train.tsv", tmp_path / "terms.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    glossary.write_text("a\tp\na\tq\n", encoding="utf-8")
    data = {"files": str(file), "copies": {"terms": 0.9, "glossary": str(glossary)}}
    package.train(
        "transformer-tiny", data=[data], valid=str(file), out=tmp_path / "run", set={**tiny.SETTINGS, "train.steps": 250}
    )
    translator = load(tmp_path / "run", device="cpu")
    texts = ["b a c", "d e a", "a b b c"]
    for term in "pq":
        terms = [Terms(use=(term,), sources=(("a", term),))] * len(texts)
        found = [each.text for each in translator.stream(texts, terms=terms, term_use="inline")]
        assert found == [text.replace("a", term) for text in texts]
