"""Lines of several sentences: splitting, translating one by one, and joining."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import tiny
from weft.data import sentence_splitting as sentences
from weft.data.formats import Pairs
from weft.data.sentence_splitting import SentenceCounts, SentenceSplitter, count_sentences, join_texts, language_of, split
from weft.errors import DataError
from weft.runs.translator import Translator, load
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.word_alignment import align

LINE = "a b c! d e f g! h i?"
PARTS = ["a b c!", "d e f g!", "h i?"]


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return load(reverse_run, device="cpu")


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("en", "A dog runs. A cat sleeps. Is it late? Yes! Go on.", 5),
        ("en", "Dr. Smith paid $3.50 to Mr. J. R. Jones at 5 p.m. on Friday.", 1),
        ("en", "See https://example.com/a.b?c=d. It is good.", 2),
        ("en", 'He said, "Go home. Now!" and left.', 1),
        ("en", '"Go home." He left.', 2),
        ("en", "Wait... what is this? Well… fine.", 2),
        ("en", "The U.S. economy grew 2.5% vs. 1.9% in 2010. It was fine.", 2),
        ("en", "Version 1.2.3 of Node.js is out. J. K. Rowling wrote it, e.g. here.", 2),
        ("en", "this is lower. this too. and this.", 3),
        ("en", "(A dog runs.) A cat sleeps. 'Tis late.", 3),
        ("en", "Write to a.b@c.de. Thanks. On 10. 5. 2004.", 3),
        ("en", "A dog runs.A cat sleeps.", 1),
        ("en", "No mark at the end", 1),
        ("de", "Das ist z. B. gut. Am 3. Oktober war es kalt. Hr. Müller kam.", 3),
        ("fr", "M. Dupont est là. Il dort ! Vraiment ? Un livre du Dr. Seuss.", 4),
        ("de", "Er feiert seinen 20. Geburtstag im 2. Stock. Sie kommt.", 2),
        ("ru", "Собака бежит. Кошка спит. Это т.е. да.", 3),
        ("zh", "狗在跑。猫在睡觉。真的吗？", 3),
        ("ja", "犬が走る。猫が寝る。", 2),
        ("ja", "「はい。」と彼は言った。「行こう！」って。", 2),
        ("ja", "「はい。」「いいえ。」", 2),
        ("km", "ខ្ញុំទៅផ្សារ។ គាត់ទៅសាលា ។ ឬ៕", 3),
        ("km", "ឆ្កែ ឆ្មា ។ល។ បក្សី ។ គាត់ទៅ", 2),
        ("my", "ကျွန်တော်သွားမယ်။သူလာမယ်။", 2),
        ("hi", "कुत्ता दौड़ता है। बिल्ली सोती है।", 2),
        ("ar", "هل أنت بخير؟ نعم. شكرا.", 3),
        ("vi", "Con chó chạy. Con mèo ngủ.", 2),
        ("bdq", "Con chó chạy. Con mèo ngủ.", 2),
        ("", "Con chó chạy. Con mèo ngủ.", 2),
        ("th", "สุนัขวิ่ง. แมวนอน. A b c.", 1),
        ("am", "ውሻው ይሮጣል። ድመቷ ትተኛለች።", 2),
    ],
)
def test_lines_are_split_into_sentences(language: str, text: str, count: int) -> None:
    found = split(text, language)
    assert len(found) == count, found
    assert "".join(found) == text


def test_a_line_of_300_sentences_has_300() -> None:
    line = " ".join(["A dog runs."] * 300)
    assert len(split(line, "en")) == len(SentenceSplitter("en")(line)) == 300


def test_what_the_library_cannot_read_is_kept() -> None:
    """It refuses halves of surrogate pairs, and panics at a capital letter, a space that is not ASCII, and a full stop."""
    assert split("A \ud800 dog. A cat.", "en") == ["A \ud800 dog. ", "A cat."]
    assert "".join(split("Plan A\u00a0. It is A\u3000. Good.", "en")) == "Plan A\u00a0. It is A\u3000. Good."


def test_a_line_longer_than_a_window_has_the_same_sentences() -> None:
    line = " ".join(f"The {'very ' * (number % 9)}old dog number {number} runs." for number in range(2000))
    assert len(line) > 5 * sentences.WINDOW and len(split(line, "en")) == 2000
    assert split("word " * 5000 + "ends. Here.", "en") == ["word " * 5000 + "ends. ", "Here."]


def test_parts_have_as_many_sentences_as_usual_and_one_is_the_line_itself() -> None:
    line = " A dog. A cat. A cow. A pig. "
    assert [each.text for each in SentenceSplitter("en", usual=3)(line)] == ["A dog. A cat. A cow.", "A pig."]
    assert [each.text for each in SentenceSplitter("en")(line, whole=2)] == ["A dog. A cat.", "A cow.", "A pig."]
    assert [each.text for each in SentenceSplitter("en", usual=4)(line)] == [line]


def test_texts_are_joined_by_the_white_space_of_the_source() -> None:
    assert join_texts(["Ein Hund.", "Da."], ["", "  "]) == "Ein Hund.  Da."
    assert join_texts(["A dog.", "A cat."], ["", ""]) == "A dog. A cat."
    assert join_texts(["狗在跑。", "猫在睡。"], ["", " "]) == "狗在跑。猫在睡。"
    assert join_texts(["สุนัข", "แมว"], ["", " "]) == "สุนัข แมว"


def test_the_language_comes_from_the_configuration_or_the_files() -> None:
    assert language_of("de", ["a.en,a.fr"]) == "de"
    assert language_of(None, ["a.en,a.fr", "b.en.gz,b.fr.gz"]) == "en"
    assert language_of(None, ["a.en,a.fr", "b.de,b.fr"]) is language_of(None, ["pairs.tsv"]) is None
    assert language_of(None, ["train.src,train.tgt"]) is language_of(None, ["a.txt,b.txt"], 1) is None, "no codes of languages"


class Lines(Pairs):
    def __init__(self, lines: list[str], target: str = "") -> None:
        super().__init__("lines")
        self.lines, self.target = lines, target

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((line, self.target or line) for line in self.lines)

    def digest(self) -> str:
        return ""


def test_training_lines_tell_how_many_sentences_are_usual(tmp_path: Path) -> None:
    few = ["A dog runs."] * 95 + ["A dog runs. A cat sleeps."] * 5
    assert count_sentences([Lines([])], "en", "en") == SentenceCounts(0, 0.0, 1)
    assert count_sentences([Lines(few)], "en", "en") == SentenceCounts(100, 0.05, 1)
    many = ["A dog runs."] * 120 + ["A dog runs. A cat sleeps. It is late."] * 79 + ["A dog runs. " * 9]
    found = count_sentences([Lines(many)], "en", "en")
    assert found == SentenceCounts(200, 0.4, 3), "one long line in 200 is not usual"
    assert count_sentences([Lines(many, "A summary.")], "en", "en") == SentenceCounts(200, 0.4, 0)
    dates = ["on the 3rd, May 2004"] * 97 + ["on day no. 3! May 2004"] * 3
    assert count_sentences([Lines(dates, "2004-05-03")], "en", "en").usual == 0, "what looks like sentences is not"
    assert [each.text for each in SentenceSplitter("en", usual=0)("A dog. A cat.")] == ["A dog. A cat."]
    found.save(tmp_path)
    assert SentenceCounts.load(tmp_path) == found
    (tmp_path / "sentences.json").write_text("broken")
    assert SentenceCounts.load(tmp_path) == SentenceCounts()


def test_sentences_are_translated_one_by_one(translator: Translator) -> None:
    alone = translator.translate(PARTS)
    (found,) = translator.translate([LINE])
    assert found.text == " ".join(each.text for each in alone)
    assert [part.text for part in found.parts] == [each.text for each in alone]
    assert found.ids == [token for each in alone for token in each.ids]
    assert translator.translate("a b c!   d e f g!\u00a0h i?").text == "   ".join(
        [alone[0].text, "\u00a0".join([alone[1].text, alone[2].text])]
    )
    whole = translator.translate(LINE, sentences="off")
    assert not whole.parts and whole.text != found.text


def test_a_line_of_300_sentences_is_translated_whole(translator: Translator) -> None:
    assert translator.translate(" ".join(["a b c!"] * 300)).text == " ".join([translator.translate("a b c!").text] * 300)


@pytest.mark.parametrize("text", ["a b c", " a b  c ", "a b c!", "a.b.c d", "", "  "])
def test_one_sentence_is_read_as_before(translator: Translator, text: str) -> None:
    found, before = (translator.translate(text, attention=True, sentences=each) for each in ("auto", "off"))
    assert (found.text, found.score, found.ids, found.parts) == (before.text, before.score, before.ids, [])


def test_the_score_is_that_of_one_text(translator: Translator) -> None:
    """Log-probabilities are added, and divided by the total length to the power of the length penalty."""
    for penalty in (0.0, 0.6, 1.0):
        options = {"beam": 2, "length_penalty": penalty}
        alone = translator.translate(PARTS, **options)
        logp = sum(each.score * len(each.ids) ** penalty for each in alone)
        expected = logp / sum(len(each.ids) for each in alone) ** penalty
        assert math.isclose(translator.translate(LINE, **options).score, expected, rel_tol=1e-5)


def test_n_best_changes_the_sentence_that_loses_least(translator: Translator) -> None:
    alone = translator.translate(PARTS, n_best=3, beam=3)
    found = translator.translate(LINE, n_best=3, beam=3)
    assert len(found.alternatives) == 2
    losses = {k: each.score - each.alternatives[0].score for k, each in enumerate(alone)}
    worst = min(losses, key=lambda k: losses[k])
    texts = [each.alternatives[0].text if k == worst else each.text for k, each in enumerate(alone)]
    assert found.alternatives[0].text == " ".join(texts)
    assert len({found.text, *(each.text for each in found.alternatives)}) == 3


def test_attention_is_joined_along_the_diagonal(translator: Translator) -> None:
    alone, found = translator.translate(PARTS, attention=True), translator.translate(LINE, attention=True)
    name = "decoder.layers.0.cross"
    first = alone[0].attention[name]
    assert found.attention[name].shape[1:] == (len(found.tokens), len(found.source_tokens))
    np.testing.assert_allclose(found.attention[name][:, : first.shape[1], : first.shape[2]], first)
    assert not found.attention[name][:, : first.shape[1], first.shape[2] :].any()
    assert found.uses[name] == "cross"


def test_a_prefix_begins_the_first_sentence(translator: Translator) -> None:
    found = translator.translate(LINE, prefix="z z")
    assert found.parts[0].text == translator.translate(PARTS[0], prefix="z z").text
    assert [part.text for part in found.parts[1:]] == [translator.translate(part).text for part in PARTS[1:]]
    assert len(translator.translate(LINE, prefix="z z! y").parts) == 2, "two sentences of the prefix belong to two"


def test_terms_belong_to_the_sentence_of_their_source(translator: Translator) -> None:
    terms = Terms(("z y",), ("q",), (("d e", "z y"),))
    found = translator.translate(LINE, terms=terms, beam=3)
    assert ["z y" in part.text for part in found.parts] == [False, True, False]
    with pytest.raises(DataError, match="line 1: the text is translated in 3 parts, and which of them needs 'z y'"):
        translator.translate(LINE, terms=Terms(("z y",)))
    assert "z y" in translator.translate(LINE, terms=Terms(("z y",)), sentences="off", beam=3).text
    assert translator.translate("  ", terms=Terms(("z y",))).text == ""


def test_order_is_kept_over_windows_workers_and_ensembles(reverse_run: Path, other_run: Path) -> None:
    lines = [LINE, "a b", "", "c d e! " * 9, *(f"a {letter} b! c {letter}!" for letter in "abcdefgh")]
    ensemble = load([reverse_run, other_run], device="cpu")
    expected = [" ".join(each.text for each in map(ensemble.translate, split(line))).strip() for line in lines]
    assert [each.text for each in ensemble.stream(iter(lines))] == expected
    assert [each.text for each in ensemble.stream(iter(lines), workers=2)] == expected


def test_a_sentence_that_is_too_long_is_cut_as_well(translator: Translator) -> None:
    said: list[str] = []
    cutting = Translator(translator.model, translator.task, translator.config, said.append)
    found = cutting.translate("a b c d e f g! h i?", max_source=5)
    assert [part.source for part in found.parts][-1] == "h i?" and len(found.parts) == 3
    assert said == ["line 1: a sentence has 8 tokens, more than 4: translated in 2 parts"]


def test_a_run_trained_on_several_sentences_is_not_split(reverse_run: Path, tmp_path: Path) -> None:
    assert json.loads((reverse_run / "sentences.json").read_text())["usual"] == 1
    run = shutil.copytree(reverse_run, tmp_path / "run")
    SentenceCounts(100, 0.9, 2).save(run)
    assert [part.source for part in load(run, device="cpu").translate(LINE).parts] == ["a b c! d e f g!", "h i?"]
    (run / "sentences.json").unlink()
    assert len(load(run, device="cpu").translate(LINE).parts) == 3


def test_a_language_without_marks_is_not_split(reverse_run: Path) -> None:
    assert not load(reverse_run, device="cpu", set=["data.source_language=th"]).translate(LINE).parts


def test_explanations_follow_the_sentences(translator: Translator) -> None:
    with pytest.raises(DataError, match="3 parts that are translated one by one"):
        translator.explain(LINE)
    found = translator.explain_sentences(LINE)
    assert [each.target.text for each in found] == [part.text for part in translator.translate(LINE).parts]
    assert translator.explain(LINE, sentences="off").target.text == translator.translate(LINE, sentences="off").text
    assert len(translator.explain_sentences(LINE, target="c b a")) == 1


def test_alignments_follow_the_sentences(translator: Translator) -> None:
    predictor = translator.translation_predictor("align")
    assert isinstance(predictor, TranslationPredictor)
    (_, links), *_ = align(predictor, "a b c! d e!", "c b a! e d!")
    (_, first), *_ = align(predictor, "a b c!", "c b a!")
    (_, second), *_ = align(predictor, "d e!", "e d!")
    assert links == first | {(source + 3, target + 3) for source, target in second}


def test_the_command_line_translates_and_explains_sentences(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    expected = weft("translate", reverse_run, stdin="\n".join(PARTS)).split("\n")[:3]
    assert weft("translate", reverse_run, stdin=LINE) == " ".join(expected) + "\n"
    assert weft("translate", reverse_run, "--set", "decode.sentences=off", stdin=LINE) != " ".join(expected) + "\n"
    weft("explain", reverse_run, LINE, "-o", tmp_path / "page.html")
    weft.fails("explain", reverse_run, LINE, "-o", tmp_path / "page.png", says=["an image shows one sentence"])
