"""Cleaning of parallel data: each filter, what is learnt from the data, duplicates, resuming and shards."""

from __future__ import annotations

import gzip
import json
import random
import runpy
from collections import Counter
from pathlib import Path

import pytest

from weft.data.cleaning.check import StretchFinder, check
from weft.data.cleaning.clean import CleaningJob, PairFiles, clean
from weft.data.cleaning.duplicates import HashSet, near_hash
from weft.data.cleaning.filters import FILTERS, NAMES, Candidate, Choices, repaired
from weft.data.cleaning.learnt_statistics import LearntStatistics, likely_language, sampled, words_of
from weft.data.formats import Texts, open_pairs
from weft.errors import ConfigError, DataError

WORDS = 150


def word(number: int, side: int) -> str:
    """A word of a made-up language: letters of one half of the alphabet for sources, of the other half for targets."""
    letters = "abcdefghijklm" if side == 0 else "nopqrstuvwxyz"
    return "".join(letters[number // 13**place % 13] for place in range(3)) + ("ae" if side == 0 else "oy")


def sentences(count: int, seed: int = 0) -> Texts:
    """Pairs in which word i of one language translates word i of the other; frequent words are frequent."""
    draw = random.Random(seed)
    numbers = [[min(draw.randrange(WORDS), draw.randrange(WORDS)) for _ in range(draw.randrange(4, 9))] for _ in range(count)]
    return [tuple(" ".join(word(number, side) for number in row) for side in (0, 1)) for row in numbers]  # type: ignore[misc]


TRUE = list(dict.fromkeys(sentences(1500)))


@pytest.fixture(scope="module")
def learnt() -> LearntStatistics:
    return LearntStatistics(TRUE)


def finds(name: str, source: str, target: str, learnt: LearntStatistics, **options: object) -> bool:
    return FILTERS[name](**options).finds(Candidate(source, target), learnt)


@pytest.mark.parametrize(
    ("name", "found", "kept"),
    [
        ("empty", ("a", " \u3000"), ("a", "b")),
        ("damaged", ("für", "fÃ¼r"), ("für", "¿Qué? Ã ®")),
        ("damaged", ("it’s", "itâ€™s"), ("â", "€")),
        ("damaged", ("a\ufffdb", "b"), ("naïve", "Ünï")),
        ("length", ("a " * 151, "b"), ("a " * 150, "b")),
        ("length", ("日" * 400, "b"), ("日" * 299, "b")),
        ("long_word", ("a" * 61, "b"), ("https://example.org/" + "a" * 60, "b")),
        ("letters", ("12345 a", "b b b"), ("Page 5", "Seite 5")),
        ("letters", ("a | | |", "b"), ("हिन्दी में", "b")),
        ("ratio", ("a" * 100, "b" * 20), ("OK", "In Ordnung")),
        ("identical", ("Open the file again!", "open  the file again"), ("Firefox 3", "Firefox 3")),
        ("numbers", ("10 of 20", "30 von 20 40"), ("1,000 and 5", "1.000 und 5")),
        ("placeholders", ("%s files", "Dateien"), ("%d files", "%d Dateien")),
        ("placeholders", ("<b>a</b> {x}", "a"), ('<a href="1">a</a> {x}', '<a href="2">b</a> {x}')),
        ("placeholders", ("see https://a.org/b.", "siehe"), ("100% sure", "100 % sicher")),
    ],
)
def test_each_filter_finds_its_flaw_only(
    name: str, found: tuple[str, str], kept: tuple[str, str], learnt: LearntStatistics
) -> None:
    assert finds(name, *found, learnt) and not finds(name, *kept, learnt)


def test_misaligned_pairs_are_found_by_their_words(learnt: LearntStatistics) -> None:
    new = sentences(400, seed=1)
    shifted = [(source, new[place - 1][1]) for place, (source, _) in enumerate(new)]
    right = sum(finds("misaligned", *pair, learnt) for pair in new)
    wrong = sum(finds("misaligned", *pair, learnt) for pair in shifted)
    assert right <= 0.02 * len(new) and wrong >= 0.8 * len(shifted)
    own = [(source, TRUE[place - 1][1]) for place, (source, _) in enumerate(TRUE)]
    noisy = LearntStatistics([*TRUE, *own])
    found = sum(finds("misaligned", *pair, noisy) for pair in own)
    assert found >= 0.6 * len(own), "also if half of the data is misaligned, and the pairs were learnt from"
    assert sum(finds("misaligned", *pair, noisy) for pair in TRUE) <= 0.05 * len(TRUE)
    few = LearntStatistics(TRUE[:20])
    assert not any(finds("misaligned", *pair, few) for pair in shifted), "nothing is claimed where nothing could be learnt"


def test_sides_are_told_apart_in_any_language(learnt: LearntStatistics) -> None:
    source, target = sentences(1, seed=2)[0]
    assert finds("swapped", target, source, learnt) and not finds("swapped", source, target, learnt)
    assert finds("wrong_language", source, source, learnt) and finds("wrong_language", target, target, learnt)
    assert not finds("wrong_language", source, target, learnt)


def test_third_languages_are_found() -> None:
    pytest.importorskip("py3langid")
    english = ["The old man walks to the market.", "She would like to read this book.", "There are many trees in the garden."]
    german = ["Der alte Mann geht zum Markt.", "Sie möchte dieses Buch gern lesen.", "Im Garten stehen viele Bäume."]
    french = "Nous allons regarder un film ensemble ce soir."
    data = [(one, other) for one in english for other in german] * 5
    for languages in (("en", "de"), (None, None)):
        learnt = LearntStatistics(data, languages)
        assert finds("wrong_language", english[0], french, learnt) and finds("wrong_language", french, german[0], learnt)
        assert not any(finds("wrong_language", *pair, learnt) for pair in data)
        assert not finds("wrong_language", "Radio", "Museum", learnt), "short texts may be of any language"
    unknown = LearntStatistics([(one, f"{other} {french}") for one in english for other in german] * 5, ("en", "hsb"))
    assert unknown.languages[1].labels and not finds("wrong_language", english[0], french + german[0], unknown)


def test_repairs() -> None:
    choices = Choices({"repairs": {"escapes": True}})
    assert repaired("  a\u00a0\tb\u200b &amp;lt; e\u0301\x07 ", choices.repairs) == "a b < é"
    assert repaired(" a&amp; ", Choices({"repairs": {"whitespace": False}}).repairs) == " a&amp; "


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"filter": {}}, "only repairs and filters"),
        ({"filters": {"lenght": False}}, "there is no filter 'lenght'"),
        ({"filters": {"length": {"moost": 3}}}, "filters.length.moost: .*its options are least, most, characters"),
        ({"filters": {"length": 3}}, "expected true, false or a mapping"),
        ({"filters": ["length"]}, "expected a mapping"),
        ({"repairs": {"whitespace": 7}}, "repairs.whitespace"),
    ],
)
def test_wrong_choices_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Choices(given)


def test_choices_make_themselves_again() -> None:
    choices = Choices({"filters": {"length": {"most": 7}, "numbers": False, "duplicate": False}})
    document = choices.document()
    assert Choices(document).document() == document and list(document["filters"]) == list(NAMES)
    assert document["filters"]["length"]["most"] == 7 and document["filters"]["numbers"] is False
    assert "duplicate" not in choices.others and "numbers" not in choices.filters


def test_a_set_of_hashes_is_a_set() -> None:
    draw, ours, theirs = random.Random(0), HashSet(), set[int]()
    for _ in range(20_000):
        key = draw.choice([draw.randrange(1, 1 << 64), draw.randrange(1, 5000)])
        assert ours.add(key) == (key not in theirs)
        theirs.add(key)
    assert len(ours) == len(theirs) and ours.add(0) == (1 not in theirs)


def test_near_duplicates() -> None:
    same = [("Open file 3!", "Datei 3 öffnen"), ("open FILE 12", "„Datei 4“ öffnen…")]
    assert near_hash(*same[0]) == near_hash(*same[1]) != near_hash("open files 3", same[0][1])
    assert near_hash("+", "-") != near_hash("*", "/"), "texts without letters are compared as they are"
    assert near_hash("ab", "c") != near_hash("a", "bc")


def test_samples_do_not_depend_on_the_order() -> None:
    pairs = sentences(500)
    one, other = sampled(pairs, 50), sampled([*reversed(pairs), ("", "a")], 50)
    assert one[0] == other[0] and len(one[0]) == 50 and (one[1], other[1]) == (500, 501)
    assert words_of("Ünï 日本語") == ["ünï", "日本", "本語"]


def dirty() -> Texts:
    """True pairs, among them flawed ones."""
    pairs = list(TRUE)
    pairs[10:10] = [("", "x"), TRUE[0], (TRUE[1][0].upper() + "!", TRUE[1][1]), ("fÃ¼r abc", "nop")]
    pairs[700:700] = [(f" {word(140, 0)}  {word(141, 0)} ", f"{word(140, 1)} {word(141, 1)}")]
    return pairs


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in dirty()))
    return str(path)


@pytest.mark.parametrize("out", ["out.tsv", "out.jsonl", "out.csv.gz", "out.en,out.de"])
def test_cleaning_continues_where_it_was_interrupted(
    data: str, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.data.cleaning.clean.BLOCK", 300)

    def job(name: str) -> CleaningJob:
        path = ",".join(str(tmp_path / f"{name}-{part}") for part in out.split(","))
        return CleaningJob([open_pairs(data)], path, left_out=tmp_path / f"{name}-left.jsonl")

    whole = clean(job("whole"))
    assert {"empty": 1, "duplicate": 1, "near_duplicate": 1, "damaged": 1}.items() <= whole["counts"].items()
    assert whole["pairs"] == len(dirty()) == whole["kept"] + sum(whole["counts"].values()) and whole["repaired"] == 1

    for after in (1, 450, 800):
        with pytest.raises(StopIteration):
            clean(job("parts"), advance=iter(range(after)).__next__)
        first = (tmp_path / f"parts-{out.split(',')[0]}.part").open("ab")
        first.write(b"half a li")
        first.close()
    again = clean(job("parts"))
    assert {**again, "out": ""} == {**whole, "out": ""}
    names = [*out.split(","), "left.jsonl"]
    for one, other in ((tmp_path / f"whole-{name}", tmp_path / f"parts-{name}") for name in names):
        assert lines_of(one) == lines_of(other) != []
    assert not list(tmp_path.glob("*.part*"))
    spec = job("whole").out + ("#1,2" if ".csv" in out or ".tsv" in out else "")
    assert len(list(open_pairs(spec))) == whole["kept"]
    left = [json.loads(line) for line in (tmp_path / "whole-left.jsonl").read_text().splitlines()]
    assert {"source": "", "target": "x", "filter": "empty"} in left and len(left) == sum(whole["counts"].values())


def lines_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()


def test_changed_choices_begin_anew(data: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.tsv")
    files = PairFiles(out)
    files.resume("other work")
    files.write("left", "over")
    files.save({"read": 5, "counts": {}, "examples": {}})
    with pytest.raises(OSError, match="another process is writing it"):
        clean(CleaningJob([open_pairs(data)], out))
    files.close()
    clean(CleaningJob([open_pairs(data)], out))
    assert "left" not in (tmp_path / "out.tsv").read_text()


def test_shards_together_are_the_whole(data: str, tmp_path: Path) -> None:
    whole = clean(CleaningJob([open_pairs(data)], str(tmp_path / "whole.tsv")))
    shards = [clean(CleaningJob([open_pairs(data)], str(tmp_path / f"{k}.tsv"), shard=(k, 3))) for k in (1, 2, 3)]
    lines = [line for k in (1, 2, 3) for line in (tmp_path / f"{k}.tsv").read_text().splitlines()]
    assert sorted(lines) == sorted((tmp_path / "whole.tsv").read_text().splitlines())
    assert sum(each["pairs"] for each in shards) == whole["pairs"] and min(each["kept"] for each in shards) > 0


def test_sentences_of_test_data_are_left_out(data: str, tmp_path: Path) -> None:
    test = tmp_path / "test.tsv"
    test.write_text(f"{TRUE[5][0].upper()}\tother\nx\t{TRUE[9][1]}\n")
    done = clean(CleaningJob([open_pairs(data)], str(tmp_path / "out.tsv"), test=[open_pairs(str(test))]))
    assert done["counts"]["test_sentence"] == 2 == len(done["examples"]["test_sentence"])


def test_what_models_find_unlikely_is_left_out_before_duplicates(data: str, tmp_path: Path) -> None:
    calibrated: list[int] = []

    def make(clean_pairs: Texts) -> object:
        calibrated.append(len(clean_pairs))
        return lambda pairs: [pair == TRUE[0] for pair in pairs]

    done = clean(CleaningJob([open_pairs(data)], str(tmp_path / "out.tsv")), make)  # type: ignore[arg-type]
    assert done["counts"]["cross_entropy"] == 2 and "duplicate" not in done["counts"] and calibrated[0] > 1000


@pytest.mark.parametrize("out", ["out.txt", "out.tmx", "a,b,c"])
def test_outputs_that_are_no_pairs_are_refused(out: str) -> None:
    with pytest.raises(DataError, match="name a "):
        PairFiles(out)


def test_data_is_not_overwritten(data: str) -> None:
    with pytest.raises(DataError, match="would overwrite"):
        PairFiles(data).check([data])


def test_checking_counts_all_findings_of_a_pair(data: str, tmp_path: Path) -> None:
    path = tmp_path / "b.tsv"
    pairs = list(TRUE)
    pairs[400:500] = [(source, TRUE[place + 1][1]) for place, (source, _) in enumerate(TRUE[400:500], start=400)]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in [*pairs, ("5 %s", "5 {x} 6")]))
    found = check([open_pairs(str(path))])
    assert found["pairs"] == len(pairs) + 1 and found["counts"]["letters"] == 1 == found["counts"]["placeholders"]
    assert len(found["misaligned_stretches"]) == 1
    first, last = found["misaligned_stretches"][0]
    assert abs(first - 401) < 10 and abs(last - 500) < 10
    assert found["words"][0]["50"] in (5, 6, 7) and found["words"][1]["100"] <= 8
    assert check([open_pairs(data)])["counts"]["empty"] == 1


def test_a_stretch_may_reach_to_the_end_of_the_data(tmp_path: Path) -> None:
    pairs = [*TRUE[:400], *((source, TRUE[place + 1][1]) for place, (source, _) in enumerate(TRUE[400:500], start=400))]
    (tmp_path / "b.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    ((first, last),) = check([open_pairs(str(tmp_path / "b.tsv"))])["misaligned_stretches"]
    assert abs(first - 401) < 10 and last == 500


def test_random_flaws_are_no_stretch() -> None:
    draw, finder = random.Random(0), StretchFinder()
    for number in range(20_000):
        finder.add(number, -4.0 if draw.random() < 0.3 else 8.0)
    finder.finish()
    assert finder.stretches == []


def test_a_language_that_the_identifier_does_not_know_is_not_taken_for_its_relatives() -> None:
    pytest.importorskip("py3langid")
    known = set[str]()
    script = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "phrases.py"))
    drawn = script["distinct"](script["phrases"]("hsb", 1), 1500, known)
    pairs = [tuple(", ".join(side) for side in zip(*three)) for three in zip(*[iter(drawn)] * 3)]
    learnt = LearntStatistics(pairs)
    assert len(learnt.languages[1].shares) == 5, "several labels of related languages"
    labelled = Counter(likely_language(target) for _, target in pairs)
    assert labelled.most_common(1)[0][1] < 0.8 * len(pairs)
    wrong = [pair for pair in pairs if finds("wrong_language", *pair, learnt)]
    assert len(wrong) < 0.04 * len(pairs)
    spanish = "El perro grande corre por la calle y la gata duerme debajo de la mesa"
    assert finds("wrong_language", pairs[0][0], spanish, learnt)
