"""Files that are damaged in ways that a campaign of bad input found: each gets a sentence, and none a traceback.

`benchmarks/campaigns/bad_input.py` is the campaign.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import yaml_document
from weft.data.array_files import read_array, read_arrays
from weft.data.corpus import Corpus
from weft.data.file_formats.gettext_catalog import Plurals
from weft.data.formats import open_pairs, read_records
from weft.data.json_text import read_json
from weft.data.phrases.phrase_table import PhraseTable
from weft.data.phrases.phrase_translation import PhraseTranslator
from weft.data.sentence_pairs import prepare_pairs
from weft.data.sentence_splitting import SentenceCounts
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.tokenizers.word_character_byte import ByteTokenizer, WordTokenizer
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import read_vectors
from weft.errors import ConfigError, DataError, InputError, RunError, WeftError
from weft.file_access import why_unreadable
from weft.runs.run_folder import records, remember_plan
from weft.runs.trained_model import check_text
from weft.serve.access_control import read_keys
from weft.tasks.classification.data import Labels
from weft.tasks.pairs.data import FIELDS
from weft.tasks.quality.calibration import Calibration
from weft.tasks.reading.data import open_passages
from weft.tasks.tagging.data import Lexicon, Vocabulary
from weft.tasks.translation.documents import open_file
from weft.tasks.two_texts import read_two_texts
from weft.training import checkpoint
from weft.watch.run_reader import RunReader
from weft_studies.answering.data import read_story

DEEP, DIGITS = "[" * 100_000, "9" * 5000
HALF = '"\\ud800"'
"""Half of a surrogate pair, as JSON and YAML write it."""


SMALL = ("a.tsv", "a.csv", "a.jsonl", "a.tmx", "a.po", "a.xlf", "a.zip", "a.tsv.gz", "a.tsv.bz2", "a.tsv.xz")
"""Names of files that are read as pairs."""


def pairs(file: Path) -> object:
    return list(open_pairs(f"{file}#en,de" if file.suffix == ".zip" else str(file)))


def read_utf16(file: Path) -> object:
    return list(open_pairs(f"{file}@utf-16"))


def marks(file: Path) -> object:
    tokenizer = WordTokenizer()
    tokenizer.train(["a b"], 10)
    tokenizer.save(file.with_name("tokenizer.json"))
    return load_extended(file.parent, {"kind": "words"})


def lexicon(file: Path) -> object:
    return Lexicon.load(file, Vocabulary(1, False, 100))


PLAIN: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "half a pair": ("a.jsonl", pairs, f'{{"source": {HALF}, "target": "b"}}', r"line 1: .ud800 is half of a surrogate pair"),
    "half a pair inside": ("a.jsonl", pairs, f'{{"text": "a", "x": [{{"y": {HALF}}}]}}', "half of a surrogate pair"),
    "UTF-16 without its mark": ("a.tsv", read_utf16, "a\tb\n", "not valid utf-16.*BOM"),
    "unknown encoding": ("a.tmx", pairs, "<?xml version='1.0' encoding='UTF-0.5'?><tmx/>", "not well-formed XML"),
    "plural form of 5000 digits": ("a.po", pairs, f'msgid "a"\nmsgid_plural "b"\nmsgstr[{DIGITS}] "c"\n', "line 3"),
    "SQuAD of numbers": (
        "a.json",
        lambda file: list(open_passages(str(file))),
        '{"data": [{"paragraphs": [{"context": 1, "qas": [{"question": true, "answers": [{"text": "a"}]}]}]}]}',
        "not a file in the format of SQuAD",
    ),
    "vectors with a size of 5000 digits": ("a.vec", read_vectors, f"1 {DIGITS}\nb\n", "expected a word"),
    "vectors with a size in other digits": ("a.vec", read_vectors, "² ²\n", "line 1"),
    "key with a rate of 5000 digits": ("a.txt", lambda file: read_keys([], str(file)), f"k rate={DIGITS}", "rate is a number"),
    "labels that are no texts": ("labels.json", Labels.load, '{"labels": [{"a": 1}, 2]}', "does not hold labels"),
    "labels whose texts are numbers": (
        "labels.json",
        Labels.load,
        '{"labels": ["a"], "texts": {"a": 5}}',
        "does not hold labels",
    ),
    "labels far too deep": ("labels.json", Labels.load, DEEP, "does not hold labels"),
    "words without counts": ("words.json", lexicon, '{"words": [["a", "x", "Y"]]}', "does not hold words"),
    "words in lists": ("words.json", lexicon, '{"words": [[["a"], 1, []], 5]}', "does not hold words"),
    "calibration far too deep": ("calibration.json", lambda file: Calibration.load(file.parent), DEEP, "does not hold"),
    "marks that are a number": ("marks.json", marks, '{"marks": 7, "needs_tag": true}', "added tokens cannot be read"),
    "marks that are a list": ("marks.json", marks, "[]", "added tokens cannot be read"),
    "units that are lists": (
        "tokenizer.json",
        WordTokenizer.load,
        json.dumps({"tokenizer": "WordTokenizer", "options": WordTokenizer().options(), "units": [["a"]]}),
        "not a file of WordTokenizer",
    ),
    "units far too deep": ("tokenizer.json", WordTokenizer.load, DEEP, "not a file of WordTokenizer"),
    "phrase without a translation": ("a.tsv", PhraseTable.read, "a\tb\t0.5\nc\n", "line 2: this is no phrase"),
    "phrase with text for a number": ("a.tsv", PhraseTable.read, "a\tb\tx\n", "line 1: this is no phrase"),
    "phrases without languages": ("phrases.json", lambda file: PhraseTranslator.load(file.parent), "[1, 2]", "two languages"),
    "vectors without words": (
        "words.json",
        lambda file: MappedVectors.load(file.parent),
        '{"source": 1}',
        "two lists of words",
    ),
    "state in a list": ("a.json", read_json, "[]", "must hold a JSON object"),
    "state far too deep": ("a.json", read_json, DEEP, "not JSON"),
    "plan of runs": ("plan.json", lambda file: remember_plan(file.parent, {"folds": 2}, "folds"), "{", "restore it"),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_malformed_text_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    name, read, text, reason = PLAIN[kind]
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(WeftError, match=reason):
        read(tmp_path / name)


@pytest.mark.parametrize("text", ['{"premise": ' + DEEP, f'{{"premise": {HALF}, "hypothesis": "b"}}', "{"])
def test_inputs_in_json_get_a_sentence(text: str) -> None:
    with pytest.raises(DataError, match=r"not valid JSON|surrogate"):
        read_two_texts(text, FIELDS)
    with pytest.raises(DataError, match=r"not valid JSON|surrogate"):
        read_story(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["source", "target", "text", "label"]), inner),
    max_leaves=6,
)


@given(JSON, st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_json_value_is_a_pair_or_gets_a_sentence(value: object, escaped: bool) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.jsonl"
        file.write_bytes(json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))
        with suppress(WeftError):
            assert all(each.encode() is not None for pair in open_pairs(str(file)) for each in pair)


@given(st.binary(max_size=60), st.sampled_from(SMALL))
@settings(max_examples=120, deadline=None)
def test_any_bytes_are_read_or_get_a_sentence(content: bytes, name: str) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        with suppress(WeftError):
            pairs(Path(folder) / name)


def test_whole_surrogate_pairs_are_characters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "\\ud83d\\ude00", "target": "b"}\n')
    assert list(open_pairs(str(tmp_path / "a.jsonl"))) == [("😀", "b")]
    assert next(read_records(tmp_path / "a.jsonl"))[0]["source"] == check_text("😀", "text") == "😀"


def test_texts_and_settings_with_half_a_pair_are_refused() -> None:
    with pytest.raises(InputError, match=r"texts\[0\] has half of a surrogate pair"):
        check_text("a \ud800", "texts[0]")
    for read in (yaml_document.value, yaml_document.read):
        with pytest.raises(ConfigError, match="half of a surrogate pair"):
            read(f"a: {HALF}", "config.yaml")


@pytest.mark.parametrize("spec", ["a\0b.tsv", "a\0*.tsv", "a.tsv#1,\0", "a\0.en,a.de"])
def test_a_name_with_a_null_character_is_refused(spec: str) -> None:
    with pytest.raises(DataError, match="no null character"):
        open_pairs(spec)
    assert why_unreadable(spec) == "there is no such file"


def test_a_plural_rule_that_divides_by_zero_for_one_is_that_of_english() -> None:
    rule = Plurals("Plural-Forms: nplurals=2; plural=n % (n - 1);")
    assert (rule.one, rule.many) == (0, 1)


def damaged_archive(folder: Path) -> Path:
    """A .zip file whose end says that its directory lies further behind, so that its members begin before the file."""
    file = folder / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.en", "a\n")
        archive.writestr("a.de", "b\n")
    content = bytearray(file.read_bytes())
    at = content.rindex(b"PK\5\6") + 16
    content[at : at + 4] = struct.pack("<I", struct.unpack("<I", content[at : at + 4])[0] + 10)
    file.write_bytes(content)
    return file


def test_an_archive_with_lying_offsets_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zip file cannot be read"):
        pairs(damaged_archive(tmp_path))


def test_a_word_document_with_a_damaged_part_gets_a_sentence() -> None:
    docx = pytest.importorskip("docx")
    whole, damaged = BytesIO(), BytesIO()
    docx.Document().save(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as out:
        for name in source.namelist():
            out.writestr(name, source.read(name))
        entry = out.getinfo("word/document.xml")
    content = bytearray(damaged.getvalue())
    start = entry.header_offset + 30 + len(entry.filename)
    content[start : start + 9] = b"\xff" * 9
    with pytest.raises(DataError, match="not a Word document"):
        open_file(bytes(content), ".docx")


def test_a_spreadsheet_that_is_damaged_further_down_gets_a_sentence(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for number in range(9):
        book.active.append((f"source {number}", f"target {number}"))
    book.save(tmp_path / "whole.xlsx")
    with zipfile.ZipFile(tmp_path / "whole.xlsx") as whole, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as out:
        for name in whole.namelist():
            content = whole.read(name)
            out.writestr(name, content.replace(b'<row r="5"', b'<row r="5" <') if "sheet1" in name else content)
    with pytest.raises(DataError, match="the sheet 'Sheet' cannot be read"):
        pairs(tmp_path / "a.xlsx")


def test_arrays_that_are_none_get_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    content = (tmp_path / "a.npz").read_bytes()
    assert read_arrays(tmp_path / "a.npz")["a"].tolist() == [0, 0, 0]
    damages = (content[:60], b"x", content.replace(b"'descr'", b"('descr"), content.replace(b"\x93NUMPY", b"\x93NUMPX"))
    for number, damage in enumerate(damages):
        (tmp_path / f"{number}.npz").write_bytes(damage)
        with pytest.raises(RunError, match="cut short or damaged"):
            read_arrays(tmp_path / f"{number}.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("a.txt", "no array")
    with pytest.raises(RunError, match=r"a\.txt is no array"):
        read_arrays(tmp_path / "text.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    (tmp_path / "archive.npy").write_bytes(content)
    for name in ("objects", "archive", "missing"):
        with pytest.raises(RunError, match=r"pickle|several arrays|no such file"):
            read_array(tmp_path / f"{name}.npy")


def test_a_log_with_damaged_lines_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    good = {"event": "train", "step": 1, "loss": 2.5}
    lines = [
        *(json.dumps(good), DEEP, "{}", '{"event": [1]}', '{"event": "train", "step": "x"}'),
        *('{"event": "train", "step": 2, "loss": []}', '{"event": "note", "text": "a \u2028 b"}'),
        *('{"event": "summary", "peak_memory": "x"}', '{"event": "tr'),
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines), "utf-8")
    (tmp_path / "config.yaml").write_text("train: [1]\ntask: x\nmodel: null\n")
    assert [each["event"] for each in records(tmp_path)] == ["train", "note", "summary"]
    reader = RunReader(tmp_path)
    (name,) = reader.folders()
    state = reader.state(name, tmp_path)
    assert (state.step, state.steps, state.memory, state.task) == (1, 0, 0, "")
    assert reader.curves(name)["loss"] == {"train": [(1, 2.5)]} and reader.details(name)


def test_a_config_with_aliases_is_not_expanded_by_the_page_of_runs(tmp_path: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(c + 1)}: &{chr(c + 1)} [*{chr(c)}, *{chr(c)}]\n" for c in range(97, 120))
    (tmp_path / "config.yaml").write_text(bomb)
    assert RunReader(tmp_path).config(tmp_path) == {}


@pytest.mark.parametrize("state", ["[]", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": {"bytes": []}}}', DEEP])
def test_a_checkpoint_with_another_state_gets_a_sentence(state: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(RunError, match=r"the checkpoint is incomplete .*delete"):
        checkpoint.check(tmp_path)


def test_sentence_counts_that_are_damaged_are_those_of_single_sentences(tmp_path: Path) -> None:
    for text in (DEEP, "[]", '{"lines": 1e999, "several": 0, "usual": 1}'):
        (tmp_path / "sentences.json").write_text(text)
        assert SentenceCounts.load(tmp_path) == SentenceCounts()


DAMAGES = [('"read": 2', '"read": 9'), ('"kept": 2', f'"kept": {2**70}'), ('"columns": {', '"columns": [{')]


@pytest.mark.parametrize(("old", "new"), DAMAGES)
def test_a_corpus_whose_description_is_damaged_is_made_again(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\nc\td\n")

    def prepared() -> Corpus:
        data = [open_pairs(str(tmp_path / "a.tsv"))]
        return prepare_pairs(data, ByteTokenizer(), ByteTokenizer(), folder=tmp_path / "cache", max_length=9)

    about = prepared().folder / "about.json"
    content: dict[str, Any] = json.loads(about.read_text())
    about.write_text(about.read_text().replace(old, new))
    assert (prepared().report.read, prepared().report.kept) == (2, 2) and json.loads(about.read_text()) == content


TEXT = st.sampled_from(["", " ", "a", "b <x/>", "c &"])
ENTRIES = st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=8)


def catalog(entries: list[tuple[str, str, bool]]) -> str:
    rows = (f'{"#, fuzzy" if odd else ""}\nmsgctxt "{n}"\nmsgid "{a}"\nmsgstr "{b}"\n' for n, (a, b, odd) in enumerate(entries))
    return "\n".join(['msgid ""\nmsgstr ""\n', *rows])


def memory(entries: list[tuple[str, str, bool]]) -> str:
    units = (
        f"<tu><tuv xml:lang='en'><seg>{escape(a)}</seg></tuv>"
        f"<tuv xml:lang='{'fr' if odd else 'de'}'><seg>{escape(b)}</seg></tuv></tu>"
        for a, b, odd in entries
    )
    return f"<tmx version='1.4'><header srclang='en'/><body>{''.join(units)}</body></tmx>"


def exchange(entries: list[tuple[str, str, bool]]) -> str:
    units = (
        f"<trans-unit><source>{escape(a)}</source><target state='{'new' if odd else 'final'}'>{escape(b)}</target></trans-unit>"
        for a, b, odd in entries
    )
    return f"<xliff version='1.2'><file source-language='en'><body>{''.join(units)}</body></file></xliff>"


@given(ENTRIES, st.sampled_from([(".po", catalog), (".tmx", memory), (".xlf", exchange)]))
@settings(max_examples=60, deadline=None)
def test_every_entry_is_a_pair_or_is_counted(
    entries: list[tuple[str, str, bool]], kind: tuple[str, Callable[[list[tuple[str, str, bool]]], str]]
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"a{kind[0]}"
        file.write_text(kind[1](entries), "utf-8")
        found = open_pairs(f"{file}#en,de" if kind[0] == ".tmx" else str(file))
        count = 0
        with suppress(DataError):
            for _ in found:
                count += 1
        assert count + found.left_out.total() == len(entries), found.left_out


def test_questions_without_an_answer_are_counted(tmp_path: Path) -> None:
    asked = [{"question": "Who?", "answers": [{"text": "dog"}]}, {"question": "Why?", "answers": []}]
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "A dog.", "qas": asked}]}]}))
    found = open_passages(str(tmp_path / "a.json"))
    assert len(list(found)) == 1 and found.left_out == {"questions without an answer": 1}
