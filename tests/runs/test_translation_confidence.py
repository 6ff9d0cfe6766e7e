"""The confidence in translations as they come: in JSON lines, in XLIFF, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft as library
from tests.helpers import labelled_translations, tiny
from weft.errors import ConfigError
from weft.runs.translation_confidence import TOGETHER, judged, load_estimator, question
from weft.runs.translator import load
from weft.tasks.translation.segmenter import Translation


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that translates colours, and one that judges translations of colours."""
    folder = tmp_path_factory.mktemp("confidence")
    words = labelled_translations.WORDS
    rows = [each["source"] for each in labelled_translations.records(300, 5)]
    (folder / "pairs.tsv").write_text("".join(f"{row}\t{' '.join(words[each] for each in row.split())}\n" for row in rows))
    data = str(folder / "pairs.tsv")
    library.train("transformer-tiny", data=data, out=folder / "translator", set={**tiny.SETTINGS, "train.steps": 60})
    data = labelled_translations.write(folder / "quality.jsonl", 100)
    settings = {**labelled_translations.SETTINGS, "train.steps": 20}
    library.train("transformer-tiny", data=data, out=folder / "quality", set=settings)
    return folder / "translator", folder / "quality"


def test_json_lines_have_the_confidence_of_each_text_and_word(
    runs: tuple[Path, Path], tmp_path: Path, weft: tiny.Shell
) -> None:
    translator, estimator = load(runs[0], device="cpu"), load(runs[1], device="cpu")
    lines = ["red green", "", "blue white black"]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    for stdin, arguments in (("\n".join(lines), []), ("", [tmp_path / "in.txt"])):
        out = weft("translate", runs[0], *arguments, "--quality", runs[1], "--json", stdin=stdin)
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["source"] for row in rows] == lines
        for row in rows:
            if not row["source"]:
                assert "confidence" not in row
                continue
            text = translator.translate(row["source"]).text
            expected = estimator.translate(f"{row['source']}\t{text}").document()
            assert (row["text"], row["confidence"], row["words"]) == (text, expected["confidence"], expected["words"])


@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_xliff_has_the_confidence_of_each_unit(version: str, runs: tuple[Path, Path], tmp_path: Path, weft: tiny.Shell) -> None:
    unit = "<trans-unit id='1'><source>red <g id='1'>green</g></source></trans-unit>"
    text = f"<xliff version='1.2'><file source-language='en' target-language='de'><body>{unit}</body></file></xliff>"
    if version == "2.0":
        unit = "<unit id='1'><segment><source>red <pc id='1'>green</pc></source></segment></unit>"
        text = f"<xliff version='2.0' srcLang='en' trgLang='de'><file id='a'>{unit}</file></xliff>"
    (tmp_path / "x.xliff").write_text(text)
    plain = weft("translate", runs[0], tmp_path / "x.xliff")
    found = weft("translate", runs[0], tmp_path / "x.xliff", "--quality", runs[1])
    assert "onfidence" not in plain
    translated = load(runs[0], device="cpu").translate("red green").text
    confidence = load_estimator(runs[1], "cpu").translate(f"red green\t{translated}").confidence  # type: ignore[attr-defined]
    said = f'its:mtConfidence="{confidence:.4f}"' if version == "1.2" else f'subState="weft:confidence-{confidence:.4f}"'
    assert said in found


def test_markup_is_not_judged() -> None:
    marked = Translation("rot <b>gruen</b>", 0.0, runs=[("rot ", False), ("<b>", True), ("gruen", False), ("</b>", True)])
    assert question("red\tgreen", marked) == "red green\trot gruen"
    assert question(" ", marked) == "" and question("red", Translation(" ", 0.0)) == ""


def test_no_translation_waits_for_the_next_input(runs: tuple[Path, Path]) -> None:
    read: list[str] = []

    def answers() -> object:
        for word in labelled_translations.WORDS:
            read.append(word)
            yield Translation(labelled_translations.WORDS[word], 0.0)

    estimator = load_estimator(runs[1], "cpu")
    first = next(judged(estimator, labelled_translations.WORDS, answers(), ready=lambda: False))  # type: ignore[arg-type, type-var]
    assert read == ["red"] and first.quality.confidence > 0 and TOGETHER > 1  # type: ignore[attr-defined]


def test_what_has_no_place_for_a_confidence_is_refused(runs: tuple[Path, Path], tmp_path: Path, weft: tiny.Shell) -> None:
    weft.fails("translate", runs[0], "red", "--quality", runs[1], says=["plain text has no place for a confidence", "--json"])
    weft.fails("translate", runs[0], "red", "--json", "--quality", runs[0], says=["needs a run of the task quality"])
    with pytest.raises(ConfigError, match="its task is translation"):
        load_estimator(runs[0], "cpu")
