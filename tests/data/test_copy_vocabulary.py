"""Temporary ids of words outside the vocabulary, and decoding them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.data.batch import EOS, UNK
from weft.data.copy_vocabulary import CopyIds, number_pairs
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import prepare_pairs
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.word_character_byte import ByteTokenizer, CharacterTokenizer, WordTokenizer


def trained(size: int = 7) -> WordTokenizer:
    tokenizer = WordTokenizer()
    tokenizer.train(["the the the cat cat sat"], size)
    assert tokenizer.size == 7
    return tokenizer


def test_unknown_words_are_numbered_in_order() -> None:
    words = trained()
    the, cat, sat = words.encode("the cat sat")
    numbering = CopyIds(words)
    assert numbering.encode("the emu sat yak emu") == [the, 7, sat, 8, 7]
    assert numbering.words == ["emu", "yak"]
    assert numbering.find("yak the gnu cat", words.encode("yak the gnu cat")) == [8, the, UNK, cat]
    assert numbering.find("the cat", [the, cat]) == [the, cat]


def test_ids_beyond_the_vocabulary_come_back_as_words() -> None:
    words = trained()
    text = "the emu, sat (yak)."
    numbering = CopyIds(words)
    ids = numbering.encode(text)
    assert max(ids) == 7 + len(numbering.words) - 1
    named = words.named(numbering.words)
    assert named.decode(ids) == text
    assert named.tokens([ids[1], UNK, EOS]) == ["emu", "<unk>", "</s>"]
    assert words.encode("emu") == named.encode("emu") == [UNK]
    assert words.size == 7


def test_characters_can_be_unknown_too() -> None:
    characters = CharacterTokenizer(byte_fallback=False)
    characters.train(["abc"], 7)
    numbering = CopyIds(characters)
    assert numbering.encode("axbyx") == [4, 7, 5, 8, 7]
    assert characters.named(numbering.words).decode([7, 4, 8]) == "xay"


def test_tokenizers_that_know_everything_number_nothing() -> None:
    fallback = CharacterTokenizer()
    fallback.train(["abc"], 300)
    every: list[Tokenizer] = [ByteTokenizer(), fallback]
    for tokenizer in every:
        numbering = CopyIds(tokenizer)
        assert numbering.encode("añb") == tokenizer.encode("añb")
        assert numbering.words == []
        assert tokenizer.named([]).decode(tokenizer.encode("añb")) == "añb"


def test_a_part_of_a_line_is_numbered_anew() -> None:
    words = trained()
    numbering = CopyIds(words)
    ids = numbering.encode("emu yak the gnu yak")
    assert numbering.alone(ids[3:]) == ([7, 8], ["gnu", "yak"])
    assert numbering.alone(ids) == (ids, ["emu", "yak", "gnu"])


def test_pairs_share_their_numbers_and_no_others() -> None:
    words = trained()
    texts = [("emu the yak", "yak emu gnu"), ("gnu", "gnu emu"), ("the", "yak cat")]
    sides = [[words.encode(pair[side]) for pair in texts] for side in (0, 1)]
    sources, targets = number_pairs(words, texts, *sides)
    the, cat, _ = words.encode("the cat sat")
    assert sources == [[7, the, 8], [7], [the]]
    assert targets == [[8, 7, UNK], [7, UNK], [UNK, cat]]


def test_the_cache_holds_numbers_only_on_request(tmp_path: Path) -> None:
    words = trained()
    path = tmp_path / "pairs.tsv"
    path.write_text("emu the yak\tyak emu gnu\nthe cat\tcat\n")
    plain, copying = (
        prepare_pairs([open_pairs(str(path))], words, words, folder=tmp_path / "cache", max_length=9, copying=copying)
        for copying in (False, True)
    )
    (the,) = words.encode("the")
    assert plain.row("source", 0).tolist() == [UNK, the, UNK, EOS]
    assert plain.row("target", 0).tolist() == [UNK, UNK, UNK, EOS]
    assert copying.row("source", 0).tolist() == [7, the, 8, EOS]
    assert copying.row("target", 0).tolist() == [8, 7, UNK, EOS]
    assert plain.folder != copying.folder
    again = prepare_pairs([open_pairs(str(path))], words, words, folder=tmp_path / "cache", max_length=9, copying=True)
    assert again.folder == copying.folder


def test_numbers_beyond_two_bytes_fit(tmp_path: Path) -> None:
    """The width of the file allows for the ids of unknown words."""
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\tb\n")
    words = WordTokenizer()
    words.train([" ".join(f"w{number}" for number in range(65_532))], 1 << 16)
    assert words.size == 1 << 16
    for copying, width in ((False, np.uint16), (True, np.uint32)):
        corpus = prepare_pairs([open_pairs(str(path))], words, words, folder=tmp_path / "cache", max_length=9, copying=copying)
        assert corpus.values["source"].dtype == width
    assert corpus.row("source", 0).tolist() == [1 << 16, (1 << 16) + 1, EOS]
