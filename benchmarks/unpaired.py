"""Translation without translated text on Multi30k: how many pairs is it worth, and what is each part worth?

    python benchmarks/unpaired.py MULTI30K --out OUT [--more PAIRS.tsv] [--into fr] [--seeds 2] [--at-once 6] [--minutes 9]

MULTI30K holds train.en, train.fr, … and test_2016_flickr.en, …. English texts come from one half of the training pairs and
those of the other language from the other half, so that no sentence has its translation anywhere; the same holds for --more
(a table of English and the other language, such as Tatoeba's). Captions, of which the test consists, are fewer than these;
--times 3 writes each of them three times, except for those held out for validation. Models are chosen without translated text;
the test set is only scored. `vectors-of-all` learns from the captions alone, but its dictionary and vectors are of all texts.
Supervised models (transformer-small) learn from random 100, 1,000 and 10,000 pairs, as few as those of benchmarks/corpora.py:
2,500 steps of 4,096 tokens, and the checkpoint with the best BLEU on the validation pairs.

Dictionaries are compared with the translations that the whole parallel text suggests (mutual best three of IBM Model 1), for
the 1,000 most frequent words that have any; --floors-only prints their precision. Cells have one figure per seed: cased
sacreBLEU, into the other language and back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from corpora import SMALL, files, subset
from trainings import Run, add_options, markdown, prepare_data, report, scale_steps, select, sweep

from weft.bench.compare.training_jobs import Training
from weft.config.sections import load_config
from weft.data.corpus import find_or_build
from weft.data.formats import open_pairs
from weft.data.ibm_model_1 import likely_translations
from weft.data.sentence_pairs import prepare_pairs
from weft.data.text_lines import read_lines
from weft.data.tokenizers import RESERVED
from weft.data.tokenizers.word_character_byte import WordTokenizer
from weft.data.word_vectors.bilingual_dictionary import Dictionary, nearest
from weft.data.word_vectors.mapping import FindPairs, MappedVectors, MappingOptions, adversarial_pairs, map_vectors
from weft.data.word_vectors.mapping import Pairs as WordPairs
from weft.data.word_vectors.vectors import Vectors, learn_vectors
from weft.evaluation.metrics import make_metrics, score
from weft.tasks.unsupervised.data import disjoint_halves, open_languages
from weft.tasks.unsupervised.model import DictionaryInitialization

FREQUENT, MUTUAL = 1000, 3
NEVER = 1_000_000_000

SYSTEMS: dict[str, tuple[str, ...]] = {
    "unsupervised": (),
    "without-denoising": ("task.denoising_steps=0",),
    "without-back-translation": (f"task.dictionary_steps={NEVER}",),
    "without-dictionary": ("task.dictionary_steps=0", "task.vectors=false"),
    "without-vectors": ("task.vectors=false",),
    "without-own-tokens": ("task.own_tokens=false",),
    "adversarial": ("task.adversarial_weight=1.0",),
    "language-model": ("task.language_model_steps=2000",),
    "two-decoders": ("task.decoders=2",),
    "phrases": ("task.phrase_rounds=2",),
    "vectors-of-all": (),
    "supervised-100": ("data.vocabulary=1000",),
    "supervised-1000": ("data.vocabulary=2000",),
    "supervised-10000": ("data.vocabulary=4000",),
}
"""System → settings; supervised-N learns from N pairs."""


class UnpairedRun(Run):
    """A run whose data are several files, separated by spaces. Tests are named after the language that is written."""

    @property
    def training(self) -> Training:
        return Training(self.recipe, tuple(self.data.split(" ")), (), self.sets, self.time)

    def decoding(self, test: str) -> list[str]:
        return [*super().decoding(test), "--set", f"decode.into={test}"]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def pairs_of(options: argparse.Namespace) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The pairs of Multi30k, and those of --more."""
    sides = [list(read_lines(options.folder / f"train.{language}")) for language in ("en", options.into)]
    return list(zip(*sides, strict=True)), list(open_pairs(options.more)) if options.more else []


def write_halves(options: argparse.Namespace, *, alone: bool = False) -> str:
    """Writes texts without partners, and returns what names them. alone: only the captions, each of them once."""
    captions, others = pairs_of(options)
    held, found = load_config("unsupervised", options.set).data.hold_out, []
    halves = zip(*(disjoint_halves(pairs, options.division) for pairs in (captions, others)), strict=True)
    for language, (own, more) in zip(("en", options.into), halves, strict=True):
        lines = own if alone else [*own[:held], *own[held:] * options.times, *more]
        name = f"captions.{language}" if alone else f"mono.{language}"
        found.append(f"{language}={write_lines(options.out / 'data' / name, lines)}")
    return " ".join(found)


def borrow_vectors(options: argparse.Namespace, texts: str) -> tuple[str, Path]:
    """Writes the captions, and gives them the vectors of all texts in a cache of their own. Returns names and cache."""
    captions, cache = write_halves(options, alone=True), options.out / "cache-of-captions"
    held = load_config("unsupervised", options.set).data.hold_out
    mine, all_texts = (
        DictionaryInitialization(
            [each.held_out(held)[1] for each in open_languages(names.split(" "))], ("en", options.into), False, folder, print
        )
        for names, folder in ((captions, cache), (texts, options.out / "cache"))
    )
    find_or_build(cache, ["mapped", *mine.key], MappedVectors.load, all_texts.mapped.save)
    return captions, cache


def gold(options: argparse.Namespace) -> Dictionary:
    """The translations that the whole parallel text suggests: words that are among each other's best three."""
    pairs = [pair for part in pairs_of(options) for pair in part]
    sides = [
        write_lines(options.out / "data" / f"all.{name}", [pair[side] for pair in pairs]) for side, name in enumerate("ab")
    ]
    words = [WordTokenizer(lowercase=True) for _ in sides]
    for side, tokenizer in enumerate(words):
        tokenizer.train([pair[side] for pair in pairs], 20_000)
    corpus = prepare_pairs([open_pairs(f"{sides[0]},{sides[1]}")], *words, folder=options.out / "cache", max_length=80)
    turned = prepare_pairs([open_pairs(f"{sides[1]},{sides[0]}")], *words[::-1], folder=options.out / "cache", max_length=80)
    forth, back = (
        likely_translations(each, one.size, other.size, most=MUTUAL, frequent=0, pairs=len(each))[0]
        for each, one, other in ((corpus, *words), (turned, *words[::-1]))
    )
    found: dict[str, list[tuple[str, float]]] = {}
    for number, unit in enumerate(words[0].units, start=RESERVED):
        agreed = [token for token in forth[number].tolist() if token >= RESERVED and number in back[token]]
        if agreed and unit.isalpha() and len(found) < FREQUENT:
            found[unit] = [(words[1].piece(token), 0.0) for token in agreed]
    return Dictionary(found)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return next(iter(score(list(texts), list(references), make_metrics(["bleu"])).values())).value


def test_texts(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    first, second = (list(read_lines(options.folder / f"test_2016_flickr.{each}")) for each in ("en", options.into))
    return first, second


def tests(options: argparse.Namespace) -> dict[str, str]:
    """Language that is written → pairs to score."""
    files = {language: str(options.folder / f"test_2016_flickr.{language}") for language in ("en", options.into)}
    return {options.into: f"{files['en']},{files[options.into]}", "en": f"{files[options.into]},{files['en']}"}


def plan(name: str, seed: int, options: argparse.Namespace, texts: str) -> list[Run]:
    """The runs of a system: one, or a supervised one for each direction."""
    cache = options.out / "cache"
    if name == "vectors-of-all":
        texts, cache = borrow_vectors(options, texts)
    own = (f"data.cache={cache}", f"train.seed={seed}", *options.set)
    if not name.startswith("supervised"):
        sets = (*own, *SYSTEMS[name], scale_steps("unsupervised", options.set, options.steps_scale))
        return [UnpairedRun(f"{name}-{seed}", "unsupervised", texts, sets, tests(options))]
    count, runs = int(name.partition("-")[2]), []
    for way, (into, test) in zip(("forth", "back"), tests(options).items(), strict=True):
        ordered = slice(None, None, 1 if into == options.into else -1)
        some, valid = (
            subset(options.folder, count, options.into, options.out / "data"),
            files(options.folder, "val", options.into),
        )
        data, valid = (",".join(spec.split(",")[ordered]) for spec in (some, valid))
        sets = (*SMALL, *SYSTEMS[name], "train.packed=auto", *own)
        sets = (*sets, scale_steps("transformer-small", sets, options.steps_scale))
        runs.append(Run(f"{name}-{way}-{seed}", "transformer-small", data, sets, {into: test}, valid=valid))
    return runs


def floors(options: argparse.Namespace, texts: str) -> tuple[list[list[str]], list[list[str]]]:
    """The rows of copies and of word-by-word translation, and the precision of dictionaries; computed once."""
    file = options.out / f"floors.{options.into}.json"
    if not file.exists():
        file.write_text(json.dumps(compute_floors(options, texts)), "utf-8")
    rows, precisions = json.loads(file.read_text("utf-8"))
    return rows, precisions


def compute_floors(options: argparse.Namespace, texts: str) -> tuple[list[list[str]], list[list[str]]]:
    first, second = test_texts(options)
    known = gold(options)
    one, other = (learn_vectors(dict.fromkeys(read_lines(spec.partition("=")[2]))) for spec in texts.split(" "))

    def learnt(begin: FindPairs | None = None, rounds: int = MappingOptions.rounds) -> MappedVectors:
        return map_vectors(one, other, MappingOptions(rounds), begin)

    mapped = learnt()
    forth, back = nearest(mapped, 1), nearest(mapped.reversed(), 1)
    words = [bleu([some.translate(line) for line in lines], true) for some, lines, true in
             ((forth, first, second), (back, second, first))]  # fmt: skip
    copies = [bleu(first, second), bleu(second, first)]
    rows = [[name, *(f"{value:.1f}" for value in row)] for name, row in (("*copies*", copies), ("*word by word*", words))]
    dictionaries = {
        "*each word stays as it is*": Dictionary({word: [(word, 0.0)] for word in known.entries}),
        "*words of equal frequency rank*": Dictionary({a: [(b, 0.0)] for a, b in zip(one.words, other.words, strict=False)}),
        "*self-learning from equal ranks, without seeds*": nearest(learnt(equal_ranks), 1),
        "self-learning from an adversarial map, without seeds": nearest(learnt(adversarial_pairs), 1),
        "words spelt alike and cognates, without self-learning": nearest(learnt(rounds=0), 1),
        "**self-learning from words spelt alike and cognates**": forth,
    }
    found = {name: each.precision(known) for name, each in dictionaries.items()}
    return rows, [[name, f"{each.percent:.1f}", f"{each.known:,}"] for name, each in found.items()]


def equal_ranks(x: Vectors, y: Vectors, frequent: int) -> WordPairs:
    """Pairs of words that are equally many places from the most frequent word."""
    return np.arange(min(len(x), len(y), frequent)).repeat(2).reshape(-1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--more", default="", help="more pairs, of which halves are used")
    parser.add_argument("--times", type=int, default=1, help="how often each caption is in the texts (default once)")
    parser.add_argument("--into", default="fr", help="the other language")
    parser.add_argument("--division", type=int, default=1, help="seed of the random division into halves (default 1)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--floors-only", action="store_true", help="only what a CPU can do: the floors and the training data")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    texts, names = write_halves(options), select(SYSTEMS, options.only)
    (table, precisions), seeds = floors(options, texts), range(1, options.seeds + 1)
    plans = {name: [plan(name, seed, options, texts) for seed in seeds] for name in names}
    heading = ["system", f"en-{options.into}", f"{options.into}-en"]
    if options.floors_only:
        for runs, *_ in plans.values():
            for run in runs:
                prepare_data(run.config())
        print(markdown(["dictionary", "precision at 1", "words"], precisions))
        print(markdown(heading, table))
        return
    outcomes = sweep([run for some in plans.values() for runs in some for run in runs], options)
    scores = {each.run.name: each.scores for each in outcomes}
    for name, some in plans.items():
        cells = [[scores[run.name][into]["BLEU"] for runs in some for run in runs if into in scores[run.name]]
                 for into in (options.into, "en")]  # fmt: skip
        table.append([name, *(", ".join(f"{value:.1f}" for value in way) for way in cells)])
    sys.exit(report(options.out, "unpaired", markdown(heading, table), outcomes))


if __name__ == "__main__":
    main()
