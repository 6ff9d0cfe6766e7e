"""Terms: what counts as saying one, the constrained search against exhaustive search, and sentences alone against a batch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.decoding.test_search_loop import Waits, bos, encode, limits, log_probability, make
from tests.helpers import tiny
from weft import load
from weft.data.batch import BOS, EOS, PAD, UNK, Layout
from weft.data.term_automata import FAR, INSIDE, MET, START, Spelling, is_unspaced, spelling_of
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.bpe_and_unigram import BpeTokenizer
from weft.data.tokenizers.word_character_byte import ByteTokenizer, CharacterTokenizer, WordTokenizer
from weft.decoding.beam_search import BeamSelector
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.lexical_constraints import ConstrainedBeamSelector, ForbiddenTerms
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import TokenSelector
from weft.errors import ConfigError, DataError
from weft.tasks.translation.attention_alignment import units
from weft.tasks.translation.glossary import Terms, read_glossary, term_automata, whole_word
from weft.tasks.translation.term_placement import AlignedPair

TEXT = ["das Haus am See", "ein Hausboot, das Haus-Tor", "E-Mail an alle (Haus)", "Bauhaus und Haus", "Höhe 20 m, Bäume"]
TERMS = ["Haus", "E-Mail", "das Haus", "See", "Höhe", "Bäume", "20 m"]


def make_tokenizer(kind: str) -> Tokenizer:
    tokenizer: Tokenizer
    if kind == "bpe":
        tokenizer = BpeTokenizer()
        tokenizer.train(TEXT * 3, 330)
    elif kind == "words":
        tokenizer = WordTokenizer()
        tokenizer.train(TEXT, 100)
    elif kind == "characters":
        tokenizer = CharacterTokenizer()
        tokenizer.train(TEXT, 400)
    else:
        tokenizer = ByteTokenizer()
    return tokenizer


@pytest.mark.parametrize("kind", ["bpe", "words", "characters", "bytes"])
def test_an_automaton_finds_whole_words(kind: str) -> None:
    """As a regular expression over the text does, for every term and text, however they are cut."""
    tokenizer = make_tokenizer(kind)
    spelling = spelling_of(tokenizer)
    assert spelling is spelling_of(tokenizer)
    for term, text in itertools.product(TERMS, TEXT):
        automaton, state = spelling.automaton(term), START
        for token in [*tokenizer.encode(text), EOS]:
            state = automaton.follow[state, token]
        held = re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None
        assert (state == MET) == held, (term, text)


@pytest.mark.parametrize("kind", ["bpe", "words", "characters", "bytes"])
def test_forced_tokens_write_the_term(kind: str) -> None:
    tokenizer = make_tokenizer(kind)
    spelling = Spelling(tokenizer)
    for term, before in itertools.product(TERMS, ["", "das", "See"]):
        automaton, state, ids = spelling.automaton(term), START, tokenizer.encode(before)
        for token in ids:
            state = automaton.follow[state, token]
        for left in range(int(automaton.left[state]), 0, -1):
            assert automaton.left[state] == left < FAR
            ids.append(int(automaton.force[state]))
            state = automaton.follow[state, ids[-1]]
        assert re.search(rf"^({before} ?)?{re.escape(term)}$", tokenizer.decode(ids))
        assert automaton.follow[state, EOS] == MET


def test_another_way_of_cutting_counts_too() -> None:
    tokenizer = make_tokenizer("bpe")
    spelling = Spelling(tokenizer)
    automaton, state = spelling.automaton("Haus"), INSIDE
    whole = tokenizer.encode("Haus")
    letters = [spelling.ids[" "], *(spelling.ids[letter] for letter in "Haus")]
    assert letters != whole
    for token in letters:
        state = automaton.follow[state, token]
    assert automaton.left[state] == 0 and automaton.follow[state, EOS] == MET
    assert automaton.follow[state, spelling.ids["b"]] != MET


def test_scripts_without_spaces_have_no_words() -> None:
    tokenizer = CharacterTokenizer()
    tokenizer.train(["我们的机器翻译"], 400)
    automaton, state = Spelling(tokenizer).automaton("机器"), START
    for token in tokenizer.encode("我们的机器翻译"):
        state = automaton.follow[state, token]
    assert state == MET


def test_which_scripts_have_no_spaces() -> None:
    assert all(map(is_unspaced, "ไລကខ々〇ひカーㄅㇰｶ漢𠀀"))
    assert not any(map(is_unspaced, "aßяا한ㅎक1_、 "))


def test_terms_that_cannot_be_written_are_refused() -> None:
    nouns, octets = make_tokenizer("words"), make_tokenizer("bytes")
    with pytest.raises(DataError, match="'Turm' cannot be written"):
        spelling_of(nouns).automaton("Turm")
    for term in (" ", "a" * 300):
        with pytest.raises(DataError, match="1 to 200 letters"):
            spelling_of(octets).automaton(term)


LETTERS = "abcdefghi"


def holds(text: list[int], term: str, tokenizer: Tokenizer) -> bool:
    return f" {term} " in f" {tokenizer.decode(text)} "


def words(size: int) -> WordTokenizer:
    tokenizer = WordTokenizer()
    tokenizer.train([" ".join(LETTERS[: size - 4])], size)
    return tokenizer


@pytest.mark.parametrize("use", [("a",), ("a b",), ("b", "a"), ("a a",)])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_search_with_terms_equals_exhaustive_search(use: tuple[str, ...], penalty: float) -> None:
    size, longest = 6, 4
    tokenizer, model = words(size), make(size)
    texts = [
        [*text, EOS][:longest]
        for n in range(longest + 1)
        for text in itertools.product([token for token in range(size) if token != EOS], repeat=n)
        if all(holds(list(text), term, tokenizer) for term in use)
    ]
    for g in range(2):
        encoded = encode(model, size, slice(g, g + 1))
        scored = sorted(((log_probability(model, encoded, text) / len(text) ** penalty, text) for text in texts), reverse=True)
        made = term_automata(tokenizer, [use], torch.device("cpu"))
        assert made is not None
        selector = ConstrainedBeamSelector(300, made, made.read(bos(1), None), penalty, keep=3)
        selector.stop = "exact"
        found, _ = run_search(model.decoder, encoded, selector, SearchRequest(prefix=bos(1), limits=limits(1, longest)))
        for hypothesis, (score, text) in zip(found[0], scored, strict=False):
            assert hypothesis.tokens == text
            assert hypothesis.score == pytest.approx(score, abs=1e-4)


def test_a_batch_with_terms_equals_its_sentences_alone() -> None:
    """Sources with different numbers of terms and prefixes, rows leaving early; narrow beams say every term all the same."""
    size, groups = 13, 6
    tokenizer, model = words(size), make(13, eos=1.0)
    use = [("a b", "c"), (), ("i",), ("d", "e", "f g"), ("h h",), ("a",)]
    avoid = [(), ("a",), ("b", "c d"), ("a",), (), ("b",)]
    prefix = torch.tensor([[BOS, 0], [BOS, 5], [BOS, 12], [BOS, 0], [BOS, 11], [BOS, 4]])
    count = torch.tensor([1, 2, 2, 1, 2, 2])
    device = torch.device("cpu")

    def search(rows: slice, check: int) -> list[list[tuple[list[int], float]]]:
        layout = Layout.padded(count[rows], 2)
        wanted, banned = term_automata(tokenizer, use[rows], device), term_automata(tokenizer, avoid[rows], device, early=True)
        constraints = [] if banned is None else [ForbiddenTerms(banned)]
        selector = (
            BeamSelector(4, keep=2)
            if wanted is None
            else ConstrainedBeamSelector(4, wanted, wanted.read(prefix[rows], layout), keep=2)
        )
        found, _ = run_search(
            model.decoder,
            encode(model, size, rows),
            selector,
            SearchRequest(
                prefix=prefix[rows],
                prefix_layout=layout,
                limits=limits(len(count[rows]), 20),
                constraints=constraints,
                check=check,
            ),
        )
        return [[(each.tokens, each.score) for each in texts] for texts in found]

    together = search(slice(None), 1)
    for g in range(groups):
        for tokens, _ in together[g]:
            text = [*prefix[g, 1 : count[g]].tolist(), *tokens]
            assert all(holds(text, term, tokenizer) for term in use[g]), (g, tokens)
            assert not any(holds(tokens, term, tokenizer) for term in avoid[g])
        if use[g]:
            (alone,) = search(slice(g, g + 1), 100)
            assert [tokens for tokens, _ in together[g]] == [tokens for tokens, _ in alone]
            assert [score for _, score in together[g]] == pytest.approx([score for _, score in alone], abs=1e-4)


def test_a_search_with_terms_does_not_wait_for_the_device() -> None:
    size = 13
    tokenizer, model = words(size), make(size)
    made = term_automata(tokenizer, [("a b",), ("c",)] * 3, torch.device("cpu"))
    assert made is not None
    at, encoded = made.read(bos(6), None), encode(model, size)
    with Waits() as waits:
        run_search(
            model.decoder,
            encoded,
            ConstrainedBeamSelector(4, made, at),
            SearchRequest(prefix=bos(6), limits=limits(6, 30), check=100, constraints=[ForbiddenTerms(made)]),
        )
        seen = len(waits.seen)
    with Waits() as plain:
        run_search(model.decoder, encoded, BeamSelector(4), SearchRequest(prefix=bos(6), limits=limits(6, 30), check=100))
    assert seen == len(plain.seen)


@pytest.mark.parametrize("selector", [GreedySelector, lambda: BeamSelector(3)])
def test_avoided_terms_are_avoided_by_every_selector(selector: Callable[[], TokenSelector]) -> None:
    size = 13
    tokenizer, model = words(size), make(size, eos=1.0)
    encoded = encode(model, size)
    usual, length = ForbidTokens([PAD, BOS, UNK]), limits(6, 9, 3)
    free, _ = run_search(model.decoder, encoded, selector(), SearchRequest(prefix=bos(6), limits=length, constraints=[usual]))
    pairs = [tokenizer.decode(texts[0].tokens[:2]) for texts in free]
    banned = term_automata(tokenizer, [(pair,) for pair in pairs], torch.device("cpu"), early=True)
    assert banned is not None and all(pairs)
    found, _ = run_search(
        model.decoder,
        encoded,
        selector(),
        SearchRequest(prefix=bos(6), limits=length, constraints=[usual, ForbiddenTerms(banned)]),
    )
    for texts, pair, was in zip(found, pairs, free, strict=True):
        assert texts[0].tokens != was[0].tokens and not holds(texts[0].tokens, pair, tokenizer)


def test_terms_for_each_text_from_python(reverse_run: Path) -> None:
    translator = load(reverse_run, device="cpu")
    texts = ["a b c", "d e", "f g h i"]
    terms = [Terms(("x y",)), Terms(), Terms(avoid=("g",))]
    first, second, third = translator.translate(texts, terms=terms)
    assert "x y" in first.text and second.text == "e d" and "g" not in third.text.split()
    assert [each.text for each in translator.translate(texts[1:], terms=terms[1:])] == [second.text, third.text]
    assert "p" in translator.translate("a b", terms=Terms(("p",)), beam=1).text.split()
    with pytest.raises(ConfigError, match="3 texts and terms for 2"):
        translator.translate(texts, terms=terms[:2])
    with pytest.raises(ConfigError, match="sample does not support terms that must be used"):
        translator.translate("a", terms=Terms(("b",)), sample=True)
    with pytest.raises(DataError, match="translated in 4 parts"):
        translator.translate("a b c d e f g", terms=Terms(("b",)), max_source=3)


def test_a_glossary_says_terms_for_texts_that_hold_a_word(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("# house style\nhouse\tHaus\nhouse\t!Heim\nE-Mail\tE-Mail\n\n", "utf-8")
    glossary = read_glossary(file)
    assert glossary.terms("The House (old)") == Terms(("Haus",), ("Heim",), (("house", "Haus"),))
    assert not glossary.terms("The household")
    file.write_text("house\tHaus\nonly one\n", "utf-8")
    with pytest.raises(DataError, match="line 2: expected a source term, a tab"):
        read_glossary(file)


def test_the_command_line_reads_a_glossary(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("a\tx y\nb\t!b\n", "utf-8")
    said = weft("translate", reverse_run, "--glossary", tmp_path / "terms.tsv", stdin="a c\nd e\nb c\n").splitlines()
    assert "x y" in said[0] and said[1] == "e d" and "b" not in said[2].split()
    weft.fails("translate", reverse_run, "--glossary", tmp_path / "none.tsv", says=["none.tsv"], stdin="a\n")


def test_a_forced_beginning_may_have_said_some() -> None:
    tokenizer = words(13)
    made = term_automata(tokenizer, [("a b", "c"), ("a b", "c"), ("a b",)], torch.device("cpu"))
    assert made is not None
    first = torch.tensor([[BOS, *tokenizer.encode("a b")], [BOS, *tokenizer.encode("c a")], [BOS, tokenizer.encode("b")[0], 0]])
    at = made.read(first, Layout.padded(torch.tensor([3, 3, 2]), 3))
    left = made.left[made.which, at]
    assert left.tolist() == [[0, 1], [1, 0], [2, 0]]


def aligned(source: str, target: str, links: dict[int, int]) -> AlignedPair:
    """Units are words; links: source words of target words, which get most of their attention."""
    sides = units(source), units(target)
    weights = np.full((len(sides[1]), len(sides[0])), 0.1, np.float32)
    for row, column in links.items():
        weights[row, column] = 1.0
    return AlignedPair(source, sides[0], target, sides[1], weights)


def test_a_term_takes_the_place_of_what_is_aligned_with_its_source() -> None:
    pair = aligned("the big bank, a bank", "die große Bank, eine Bank", {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5})

    def place(*terms: tuple[str, str]) -> tuple[str, list[str]]:
        placed = pair.place(Terms(tuple(dict.fromkeys(use for _, use in terms)), sources=terms))
        return placed.text, placed.unplaced

    assert place(("big", "riesige")) == ("die riesige Bank, eine Bank", [])
    assert place(("bank", "Ufer")) == ("die große Ufer, eine Ufer", [])
    assert place(("big bank", "Ufer"), ("a bank", "Sitz")) == ("die Ufer, Sitz", [])
    assert place(("big", "Bank")) == (pair.target, []), "the term is there already"
    assert place(("house", "Haus")) == (pair.target, ["Haus"]), "the source does not contain it"
    assert pair.words((4, 9)) == "big"


def test_other_forms_of_a_term_are_replaced_first_and_prefixes_never() -> None:
    pair = aligned("all dogs run", "alle Hunde rennen", {0: 0, 1: 2, 2: 2})
    assert pair.place(Terms(("Hund",), sources=(("dogs", "Hund"),))).text == "alle Hund rennen"
    nothing = pair.place(Terms(("Hund",), sources=(("dogs", "Hund"),)), begin=len(pair.target))
    assert nothing.text == pair.target and nothing.unplaced == ["Hund"]


def test_whole_words_are_those_of_the_automaton() -> None:
    for text, term, found in (
        ("Bauhaus", "haus", False),
        ("的机器翻译", "机器", True),
        ("我Haus", "Haus", True),
        ("x(y", "(y", True),
    ):
        assert (whole_word(term).search(text) is not None) == found


def test_a_glossary_replaces_instead_of_adding(reverse_run: Path) -> None:
    """The free translation with the term in the place of the usual word, with its log-probability as its score."""
    translator = load(reverse_run, device="cpu")
    texts, predictor = ["a b c d", "d g e b", "f a g h c"], translator.translation_predictor("test")
    free = [each.text for each in translator.translate(texts)]
    assert free == [" ".join(reversed(text.split())) for text in texts]
    for word in "bg":
        chosen = [(text, plain) for text, plain in zip(texts, free, strict=True) if word in text]
        terms = [Terms(("x",), sources=((word, "x"),))] * len(chosen)
        found = translator.translate([text for text, _ in chosen], terms=terms)
        assert [each.text for each in found] == [plain.replace(word, "x") for _, plain in chosen]
        assert not any(each.unplaced for each in found)
        for (text, _), each in zip(chosen, found, strict=True):
            ((logp, length),) = predictor.log_likelihoods(text, [each.text])
            assert each.score == pytest.approx(logp / length, abs=1e-3)
    (added,) = translator.translate(["a b c d"], terms=[Terms(("x",))])
    assert "x" in added.text.split() and added.unplaced == ["x"], "without a source word there is no place"


def test_a_forbidden_term_does_not_become_another_fact(reverse_run: Path) -> None:
    """The model is sure of every letter, so another one in its place would be wrong: that is said."""
    said: list[str] = []
    translator = load(reverse_run, device="cpu", warn=said.append)
    kept, wrong = translator.translate(["a b c d", "f a g h c"], terms=[Terms(avoid=("x",)), Terms(avoid=("g",))])
    assert kept.text == "d c b a" and not kept.unplaced
    assert "g" not in wrong.text.split() and wrong.unplaced == ["g"]
    assert len(said) == 1 and "no sure place for 'g'" in said[0]
    pair = aligned("the big bank", "die große Bank", {0: 0, 1: 1, 2: 2})
    assert pair.without(["große"]) == "die big Bank"
