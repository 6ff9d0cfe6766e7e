"""Text to ids and back, for every tokenizer of the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from weft.config import registry
from weft.data import TOKENIZERS
from weft.data.batch import BOS, EOS, PAD, UNK
from weft.data.formats import Pairs
from weft.data.tokenizers import InheritedTokenizers, Tokenizer, load_tokenizers, save_tokenizers, train_tokenizers
from weft.data.tokenizers.bpe_and_unigram import frequent_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer, CharacterTokenizer, WordTokenizer
from weft.errors import ConfigError, DataError, RunError

SUBJECTS = ["The dog", "A woman", "My neighbour", "Every child", "The old man", "Nobody"]
VERBS = ["sees", "likes", "follows", "paints", "remembers"]
OBJECTS = ["the red house", "a small boat", "two birds (blue)", "an empty street", "the sea, again", "12 cups"]
TEXTS = [f"{s} {v} {o}." for s in SUBJECTS for v in VERBS for o in OBJECTS]

ANY_TEXT = [
    "The dog sees the red house.",
    "我们在北京吃了烤鸭，很好吃。",
    "مرحبا بالعالم، كيف الحال؟",
    "שָׁלוֹם",
    "family 👩‍👩‍👧‍👦 flag 🏳️‍🌈 thumb 👍🏽",
    "combining e\u0301 a\u0308\u0323 n\u0303",
    "tab\there  two   spaces",
    "ends with a space ",
    " begins with one",
    "\u2028 \u00a0 \u200f \x00 \x7f",
    "</s> <unk> <0x41> ▁ ￭",
    "",
]


IMPORTED = "mapped_sentencepiece"
"""The tokenizer of imported models, which is tested with them."""


class Texts(Pairs):
    """Pairs in memory."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__("texts")
        self.pairs = pairs

    def __iter__(self) -> Any:
        return iter(self.pairs)

    def digest(self) -> str:
        return str(hash(tuple(self.pairs)))


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    sentencepiece = pytest.importorskip("sentencepiece")
    prefix = tmp_path_factory.mktemp("spm") / "small"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(prefix), vocab_size=60, pad_id=3, byte_fallback=False, minloglevel=2
    )
    return f"{prefix}.model"


@pytest.fixture(params=[kind for kind in TOKENIZERS if kind != IMPORTED])
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "sentencepiece":
        return {"kind": request.param, "model": request.getfixturevalue("sentencepiece_model")}
    return {"kind": request.param}


def trained(spec: dict[str, Any] | str, size: int = 305, texts: Iterable[str] = TEXTS) -> Tokenizer:
    tokenizer: Tokenizer = registry.build("weft.data:TOKENIZERS", spec)
    tokenizer.train(texts, size)
    return tokenizer


def test_training_text_comes_back(spec: dict[str, Any]) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode_batch(TEXTS)
    assert [tokenizer.decode(line) for line in ids] == TEXTS
    assert {i for line in ids for i in line} <= set(range(UNK + 1, tokenizer.size))
    assert tokenizer.size == 305 or spec["kind"] not in ("bpe", "unigram")


def test_special_ids_are_never_text(spec: dict[str, Any]) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode("The dog")
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == "The dog"
    shown = tokenizer.tokens([PAD, BOS, EOS, UNK, *ids])
    assert shown[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert len(shown) == 4 + len(ids)
    for text in ANY_TEXT:
        found = tokenizer.encode(text)
        assert not {PAD, BOS, EOS} & set(found), text
        assert max(found, default=0) < tokenizer.size


def test_one_by_one_equals_a_batch(spec: dict[str, Any]) -> None:
    tokenizer = trained(spec)
    assert [tokenizer.encode(text) for text in ANY_TEXT] == tokenizer.encode_batch(ANY_TEXT)
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("size", [270, 282, 305])
def test_training_again_gives_the_same(spec: dict[str, Any], size: int) -> None:
    assert len({trained(spec, size).digest() for _ in range(5)}) == 1


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_many_rare_characters_leave_room_for_pieces(kind: str) -> None:
    texts = [f"{text} {chr(0x4E00 + i)}" for i, text in enumerate(TEXTS)]
    tokenizer = trained(kind, 300, iter(texts))
    assert tokenizer.size == 300
    assert [tokenizer.decode(line) for line in tokenizer.encode_batch(texts)] == texts
    assert any(len(piece) > 1 for piece in tokenizer.tokens(range(260, 300)))


def test_digest_differs_between_vocabularies_and_kinds(sentencepiece_model: str) -> None:
    specs: list[dict[str, Any]] = [{"kind": kind} for kind in TOKENIZERS if kind not in ("sentencepiece", IMPORTED)]
    specs += [{"kind": "sentencepiece", "model": sentencepiece_model}, {"kind": "words", "lowercase": True}]
    specs += [{"kind": "bpe", "lowercase": True}, {"kind": "bpe", "normalize": "nfkc"}]
    digests = [trained(spec).digest() for spec in specs] + [trained("bpe", 300).digest(), trained("words", 20).digest()]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("shared", [True, False])
def test_saved_and_loaded(spec: dict[str, Any], shared: bool, tmp_path: Path) -> None:
    pairs = Texts([(text, text[::-1]) for text in TEXTS])
    source, target = train_tokenizers(spec, [pairs], size=305, shared=shared)
    assert (source is target) == shared
    save_tokenizers(tmp_path, source, target)
    suffix = source.suffix
    names = {f"tokenizer{suffix}"} if shared else {f"tokenizer.source{suffix}", f"tokenizer.target{suffix}"}
    assert {path.name for path in tmp_path.iterdir()} == names
    loaded = load_tokenizers(tmp_path, {**spec, "model": "moved away"} if "model" in spec else spec)
    assert (loaded[0] is loaded[1]) == shared
    for before, after in zip((source, target), loaded):
        assert before.digest() == after.digest()
        assert before.size == after.size
        assert before.encode_batch(ANY_TEXT) == after.encode_batch(ANY_TEXT)
        ids = before.encode(TEXTS[0])
        assert before.decode(ids) == after.decode(ids)
        assert before.tokens(ids) == after.tokens(ids)


def test_a_damaged_or_missing_file_is_an_error(spec: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the tokenizer is missing"):
        load_tokenizers(tmp_path, spec)
    tokenizer = trained(spec)
    save_tokenizers(tmp_path, tokenizer, tokenizer)
    path = tmp_path / f"tokenizer{tokenizer.suffix}"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RunError, match=path.name):
        load_tokenizers(tmp_path, spec)


def test_a_file_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    kinds = [kind for kind in TOKENIZERS if kind not in ("sentencepiece", IMPORTED)]
    for kind in kinds:
        tokenizer = trained(kind)
        save_tokenizers(tmp_path, tokenizer, tokenizer)
        for other in kinds:
            if other != kind:
                with pytest.raises(RunError):
                    load_tokenizers(tmp_path, other)
    tokenizer = trained("words")
    save_tokenizers(tmp_path, tokenizer, tokenizer)
    with pytest.raises(RunError, match="lowercase"):
        load_tokenizers(tmp_path, {"kind": "words", "lowercase": True})


class Counted(Texts):
    """Counts how often it is read."""

    readings = 0

    def __iter__(self) -> Any:
        self.readings += 1
        return super().__iter__()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters"])
def test_trained_tokenizers_are_cached(kind: str, shared: bool, tmp_path: Path) -> None:
    pairs = Counted([(text, text[::-1]) for text in TEXTS])
    first = train_tokenizers(kind, [pairs], size=305, shared=shared, folder=tmp_path)
    pairs.readings = 0
    again = train_tokenizers(kind, [pairs], size=305, shared=shared, folder=tmp_path)
    assert pairs.readings == 0
    assert [side.digest() for side in again] == [side.digest() for side in first]
    for changed in ({"size": 304}, {"shared": not shared}, {"spec": {"kind": "words", "lowercase": True}}):
        given = {"spec": kind, "pairs": [pairs], "size": 305, "shared": shared, **changed}
        other = train_tokenizers(**given, folder=tmp_path)
        assert [side.digest() for side in other] == [side.digest() for side in train_tokenizers(**given)]
    for path in tmp_path.glob("*/*"):
        path.write_text("damaged")
    mended = train_tokenizers(kind, [pairs], size=305, shared=shared, folder=tmp_path)
    assert [side.digest() for side in mended] == [side.digest() for side in first]


def test_a_changed_sentencepiece_model_is_noticed(sentencepiece_model: str, tmp_path: Path) -> None:
    import sentencepiece

    path = tmp_path / "my.model"
    path.write_bytes(Path(sentencepiece_model).read_bytes())
    spec = {"kind": "sentencepiece", "model": str(path)}
    before, _ = train_tokenizers(spec, [], size=1, shared=True, folder=tmp_path)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(tmp_path / "my"), vocab_size=55, minloglevel=2
    )
    after, _ = train_tokenizers(spec, [], size=1, shared=True, folder=tmp_path)
    assert before.size != after.size


def test_a_large_corpus_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.data.tokenizers.SAMPLE", 100)
    pairs = Texts([(f"s{i}", f"t{i}") for i in range(1000)])
    said: list[str] = []
    tokenizer, _ = train_tokenizers({"kind": "words"}, [pairs, pairs], size=5000, shared=True, report=said.append)
    assert said == ["the tokenizer is trained on the texts of one pair in 40, of 4,000 texts"]
    read = sorted(int(word[1:]) for word in tokenizer.tokens(range(4, tokenizer.size)) if word[0] == "s")
    assert len(read) == 25
    assert read == list(range(0, 1000, 40))


@pytest.mark.parametrize("kind", ["bytes", "characters"])
@pytest.mark.parametrize("text", ANY_TEXT)
def test_bytes_and_characters_lose_nothing(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.tokens(ids)) == len(ids)
    assert UNK not in ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_lose_only_a_first_space_and_the_normal_form(kind: str) -> None:
    tokenizer = trained({"kind": kind, "normalize": "none"})
    for text in ANY_TEXT:
        assert UNK not in tokenizer.encode(text)
        if "▁" not in text:  # represents a space inside the tokenizer
            assert tokenizer.decode(tokenizer.encode(text)) == text.removeprefix(" ")
    assert trained(kind).decode(trained(kind).encode("e\u0301")) == "é"
    plain = trained({"kind": kind, "byte_fallback": False}, 50)
    assert plain.encode("水")[-1] == UNK


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_word_cache_changes_no_ids(kind: str) -> None:
    tokenizer = trained(kind)
    inner = tokenizer._inner  # type: ignore[attr-defined]
    texts = [*TEXTS, *(text for text in ANY_TEXT if "▁" not in text)] * 2
    assert tokenizer.encode_batch(texts) == [inner.encode(text).ids for text in texts]


def test_the_word_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.data.tokenizers.bpe_and_unigram.REMEMBERED", 1000)
    tokenizer = trained("bpe")
    for start in range(0, 3000, 400):
        tokenizer.encode_batch([" ".join(map(str, range(start, start + 400)))])
        assert len(tokenizer._known) <= 1000  # type: ignore[attr-defined]
    assert tokenizer.decode(tokenizer.encode("The dog 123")) == "The dog 123"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters"])
def test_no_text_or_no_room(kind: str) -> None:
    with pytest.raises(DataError, match="no text"):
        trained(kind, 300, [])
    with pytest.raises(DataError):
        trained(kind, 4)


def test_rare_symbols_are_left_out() -> None:
    words = trained("words", 4 + 5)
    assert words.size == 9
    assert words.tokens(range(4, 9)) == ["￭.", "The", "the", "follows", "likes"]
    assert words.encode("The xylophone")[1] == UNK
    characters = CharacterTokenizer()
    characters.train(["aaabbc"], 262)
    assert characters.size == 262
    assert characters.tokens(characters.encode("abc")) == ["a", "b", "<0x63>"]
    plain = CharacterTokenizer(byte_fallback=False)
    plain.train(["aaabbc"], 100)
    assert plain.size == 7
    assert plain.encode("abx")[2] == UNK


def test_half_a_character_is_shown_as_such() -> None:
    for tokenizer in (ByteTokenizer(), trained("characters"), trained("bpe")):
        ids = tokenizer.encode("水")
        assert "\ufffd" in tokenizer.decode(ids[:-1])
        assert tokenizer.decode(ids).strip() == "水"


def test_words_and_their_punctuation() -> None:
    tokenizer = WordTokenizer(lowercase=True)
    texts = ["\"Oh, no!\" (she said) — it's 3.14, isn't it?!", "under_score a-b-c ...", "résumé naïve 東京。"]
    tokenizer.train(texts, 100)
    assert [tokenizer.decode(line) for line in tokenizer.encode_batch(texts)] == [text.lower() for text in texts]
    assert tokenizer.tokens(tokenizer.encode("Oh, no")) == ["oh", "￭,", "no"]
    spaces = WordTokenizer(punctuation=False)
    spaces.train(texts, 100)
    assert spaces.tokens(spaces.encode("3.14, isn't")) == ["3.14,", "isn't"]


def test_line_ends_are_words_if_asked() -> None:
    """So that a language model by words keeps its lines."""
    tokenizer: Any = WordTokenizer(punctuation=False, line_ends=True)
    tokenizer.train(["a b\n", "b c\n"], 4 + 3)  # the rarest word, c, is left out
    text = "b a\n\nb\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("c a\n")) == "a\n" and UNK in tokenizer.encode("c")
    assert WordTokenizer(punctuation=False).split(text) == ["b", "a", "b"]


def test_files_of_before_an_option_are_read_with_its_default(tmp_path: Path) -> None:
    tokenizer = trained("words")
    content = json.loads(tokenizer.dump())
    del content["options"]["line_ends"]
    again = WordTokenizer()
    again.restore(json.dumps(content).encode())
    assert again.encode("The dog") == tokenizer.encode("The dog")
    with pytest.raises(ValueError, match="trained with the options"):
        WordTokenizer(line_ends=True).restore(json.dumps(content).encode())


def test_literal_names_of_specials_in_training_text() -> None:
    texts = ["<s> <pad> </s> <unk> <0x41> <0x42>"] * 50 + TEXTS
    for kind in ("bpe", "unigram", "words"):
        tokenizer = trained(kind, 300, texts)
        ids = tokenizer.encode(texts[0])
        assert tokenizer.decode(ids) == texts[0]
        assert min(ids) > UNK


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters"])
def test_training_again_forgets_the_old_vocabulary(kind: str) -> None:
    tokenizer = trained(kind, 300, [text[::-1] for text in TEXTS])
    tokenizer.encode_batch(TEXTS)
    tokenizer.train(TEXTS, 300)
    assert tokenizer.encode_batch(TEXTS) == trained(kind, 300).encode_batch(TEXTS)


def test_sentencepiece_pieces_follow_the_special_ids(sentencepiece_model: str) -> None:
    import sentencepiece

    inner = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    tokenizer = trained({"kind": "sentencepiece", "model": sentencepiece_model})
    assert tokenizer.size == 4 + inner.get_piece_size() - 4  # without its own unk, s, /s and pad
    assert tokenizer.tokens(tokenizer.encode(TEXTS[7])) == inner.encode(TEXTS[7], out_type=str)
    assert UNK in tokenizer.encode("水")


def test_sentencepiece_covers_as_many_characters_as_it_should() -> None:
    texts = ["a small bird sings", "the red dog runs"] * 100 + ["a café"]
    for coverage, known in ((0.9995, False), (1.0, True)):
        tokenizer = trained({"kind": "sentencepiece", "character_coverage": coverage}, 40, texts)
        assert (UNK not in tokenizer.encode("a café")) == known


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_sentencepiece_is_trained_on_the_texts(algorithm: str) -> None:
    tokenizer = trained({"kind": "sentencepiece", "algorithm": algorithm}, 70)
    assert 40 < tokenizer.size <= 70
    assert [tokenizer.decode(line) for line in tokenizer.encode_batch(TEXTS)] == TEXTS
    assert tokenizer.digest() == trained({"kind": "sentencepiece", "algorithm": algorithm}, 70).digest()
    assert UNK in tokenizer.encode("水")
    with pytest.raises(DataError, match="cannot be trained on this text"):
        trained({"kind": "sentencepiece", "algorithm": algorithm}, 12)
    with pytest.raises(DataError, match="no text"):
        trained("sentencepiece", 70, [" ", ""])


def test_an_imported_table_of_pieces_is_not_trained() -> None:
    with pytest.raises(ConfigError, match="weft import"):
        trained(IMPORTED)


def test_a_sentencepiece_file_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        trained({"kind": "sentencepiece", "model": str(tmp_path / "no.model")})
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        trained({"kind": "sentencepiece", "model": str(tmp_path / "bad.model")})


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words"])
def test_an_extended_tokenizer_keeps_its_ids_and_writes_new_text_with_fewer(kind: str) -> None:
    tokenizer, text = trained(kind), "Zebras graze. Zebras sleep."
    before = tokenizer.encode(text)
    longer = tokenizer.extended([text] * 20, 6)
    assert tokenizer.size < longer.size <= tokenizer.size + 6 and tokenizer.encode(text) == before
    assert [longer.spelling(number) for number in range(4, tokenizer.size)] == [
        tokenizer.spelling(number) for number in range(4, tokenizer.size)
    ]
    assert len(longer.encode(text)) < len(before) or before.count(UNK) > longer.encode(text).count(UNK)
    assert any(number >= tokenizer.size for number in longer.encode(text))
    again: Tokenizer = registry.build("weft.data:TOKENIZERS", kind)
    again.restore(longer.dump())
    assert again.encode(text) == longer.encode(text)


def test_further_merges_are_those_of_counting_anew_after_each() -> None:
    draw = Random(1)
    words = [(draw.choices("abc", k=draw.randint(1, 9)), draw.randint(1, 3)) for _ in range(30)]
    left, expected = [(list(pieces), times) for pieces, times in words], []
    while True:
        counts: Counter[tuple[str, str]] = Counter()
        for pieces, times in left:
            for pair in pairwise(pieces):
                counts[pair] += times * ("c" not in pair)
        pair = min(counts, key=lambda each: (-counts[each], each), default=("", ""))
        if counts[pair] < 2:
            break
        expected.append(pair)
        for pieces, _ in left:
            at = 0
            while at + 1 < len(pieces):
                if (pieces[at], pieces[at + 1]) == pair:
                    pieces[at : at + 2] = ["".join(pair)]
                at += 1
    assert list(frequent_pairs(words, {"c"})) == expected and len(expected) > 10


def test_tokenizers_of_another_run_are_used_as_they_are_or_with_tokens_for_new_texts() -> None:
    one, other = trained("bpe"), trained("bpe", texts=["Ein Hund läuft.", "Zwei Hunde laufen."] * 9)
    pairs = [Texts([("Zebras graze.", "Zebras grasen.")] * 20)]
    for source, target in ((one, other), (one, one)):
        kept = train_tokenizers("bpe", pairs, size=300, start=InheritedTokenizers(source, target, 0))
        assert kept[0] is source and kept[1] is target
        longer = train_tokenizers("bpe", pairs, size=300, start=InheritedTokenizers(source, target, 4))
        assert (longer[0] is longer[1]) == (source is target)
        for text, old, new in zip(("Zebras graze.", "Zebras grasen."), (source, target), longer, strict=True):
            assert old.size < new.size <= old.size + 4 and len(new.encode(text)) < len(old.encode(text))
