"""Measures required terms: how often they are used, and how they affect the rest of the text.

    python benchmarks/glossary.py RUN --data SOURCE,TARGET --train SOURCE,TARGET [--count 200] [--beam 5] [--device cuda]

A glossary is learned from the training pairs: words that occur in the same pairs and are each other's best match by Dice's
coefficient. Three sets of --count test sentences are translated with one required term each: a glossary term whose source word
is in the source and whose target word is in the reference; such a term that is missing from the free translation; and any word
of the reference that is missing from the free translation (the first with four letters or more).

The table gives how many translations contain their term when free and when it is required, BLEU of both, and BLEU of the rest,
with the term removed from translations and references. A translation repeats itself if it has a word more often than the
reference and the free translation. Terms of the glossary are required with their source words, so they take the place of what
the model writes for these; "unplaced" counts those for which no place was found. Last, one word of each free translation is
forbidden.

With --thresholds 0.05,0.1,…, every other pair serves to choose how sure an alignment must be: the value with the best BLEU of
the rest, for terms from the glossary. The table is that of the other pairs with the chosen value.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from weft import load
from weft.data.formats import open_pairs
from weft.errors import DataError
from weft.evaluation.metrics import make_metrics, score
from weft.runs.translator import Translator
from weft.tasks.translation import term_placement
from weft.tasks.translation.glossary import Terms, term_automata

LETTERS = 4
"""Minimum number of letters of a term."""

MIN_PAIRS, MIN_DICE = 5, 0.3
"""An entry's words occur together in at least this many pairs, with at least this Dice coefficient."""

OPTIONS: dict[str, Any] = {"sentences": "off", "max_ratio": 1.5}
"""How texts are decoded: whole, and not much longer than their sources."""

SETS = ("from the glossary", "from the glossary, missing when free", "any word, missing when free")


@dataclass(frozen=True)
class Request:
    """A sentence, its reference, its free translation, the required term and, if it is known, the source word of the term."""

    source: str
    reference: str
    free: str
    term: str
    word: str | None

    @property
    def terms(self) -> Terms:
        return Terms((self.term,), sources=() if self.word is None else ((self.word, self.term),))


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text) if len(word) >= LETTERS]


def term_pattern(term: str) -> str:
    """A regular expression that matches a term as whole words."""
    return rf"(?<!\w){re.escape(term)}(?!\w)"


def contains(text: str, term: str) -> bool:
    return re.search(term_pattern(term), text) is not None


def learn_glossary(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Lowercased source word → target word, where each is the other's best match."""
    sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        left, right = set(words(source.lower())), set(words(target))
        sources.update(left)
        targets.update(right)
        both.update((one, other) for one in left for other in right)
    best: dict[tuple[int, str], tuple[float, str]] = {}
    for (one, other), count in both.items():
        if count >= MIN_PAIRS:
            dice = 2 * count / (sources[one] + targets[other])
            for key, match in (((0, one), other), ((1, other), one)):
                best[key] = max(best.get(key, (MIN_DICE, "")), (dice, match))
    entries = {word: match for (side, word), (_, match) in best.items() if side == 0 and match}
    return {word: match for word, match in entries.items() if best[1, match][1] == word}


def writable(translator: Translator, term: str) -> bool:
    """Whether the target vocabulary can spell a term."""
    try:
        term_automata(translator.target, [[term]], translator.model.device)
    except DataError:
        return False
    return True


def requests(
    translator: Translator, pairs: Sequence[tuple[str, str]], free: Sequence[str], glossary: dict[str, str], count: int
) -> dict[str, list[Request]]:
    """The three sets of requests, with at most one per sentence in each."""
    sets: dict[str, list[Request]] = {name: [] for name in SETS}
    for (source, reference), text in zip(pairs, free, strict=True):
        entries = {glossary[word]: word for word in words(source.lower()) if word in glossary}
        known = [term for term in entries if contains(reference, term)]
        missing = [[term for term in terms if not contains(text, term)] for terms in (known, words(reference))]
        for name, terms in zip(SETS, (known, *missing), strict=True):
            term = next((term for term in terms if writable(translator, term)), None)
            if term is not None and len(sets[name]) < count:
                sets[name].append(
                    Request(source, reference, text, term, entries.get(term) if terms is not missing[1] else None)
                )
    return {name: chosen for name, chosen in sets.items() if chosen}


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return score(list(texts), list(references), make_metrics(["bleu"]))["BLEU"].value


def rest(texts: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The texts without their terms."""
    return [" ".join(re.sub(term_pattern(term), " ", text).split()) for text, term in zip(texts, terms, strict=True)]


def repeats(text: str, reference: str, free: str) -> bool:
    """Whether a text has a word more often than its reference and the free translation."""
    allowed = Counter(words(reference)) | Counter(words(free)) | Counter(set(words(text)))
    return bool(Counter(words(text)) - allowed)


def row(name: str, translator: Translator, chosen: Sequence[Request], beam: int) -> str:
    """A row of the table: one set of requests, free and with required terms."""
    terms, references, free = ([getattr(each, part) for each in chosen] for part in ("term", "reference", "free"))
    began = time.monotonic()
    sources, requested = zip(*((each.source, each.terms) for each in chosen), strict=True)
    required = translator.translate(list(sources), beam=beam, terms=list(requested), **OPTIONS)
    seconds = time.monotonic() - began
    both = (free, [each.text for each in required])
    cells = [name, *(f"{sum(map(contains, texts, terms))} of {len(terms)}" for texts in both)]
    cells += [f"{bleu(texts, references):.1f}" for texts in both]
    cells += [f"{bleu(rest(texts, terms), rest(references, terms)):.1f}" for texts in both]
    again = sum(map(repeats, both[1], references, free))
    cells += [f"{100 * again / len(chosen):.1f} %", str(sum(bool(getattr(each, "unplaced", ())) for each in required))]
    return f"| {' | '.join(cells)} | {len(chosen) / seconds:.1f} |"


def choose_threshold(translator: Translator, chosen: Sequence[Request], beam: int, values: Sequence[float]) -> float:
    """The value of SURE with the best BLEU of the rest on some requests; of equal ones, the first."""
    found: dict[float, float] = {}
    terms, free = [each.term for each in chosen], [each.free for each in chosen]
    references = rest([each.reference for each in chosen], terms)
    for value in values:
        term_placement.SURE = value
        requested = [each.terms for each in chosen]
        some = translator.translate([each.source for each in chosen], beam=beam, terms=requested, **OPTIONS)
        texts, unplaced = [each.text for each in some], sum(bool(each.unplaced) for each in some)
        again = sum(map(repeats, texts, [each.reference for each in chosen], free))
        found[value] = round(bleu(rest(texts, terms), references), 2)
        print(f"threshold {value:g}: rest {found[value]:.2f}, repeats {100 * again / len(chosen):.1f} %, unplaced {unplaced}")
    return max(found, key=lambda value: found[value])


def avoided(translator: Translator, chosen: Sequence[Request], beam: int) -> str:
    """How often a word of the free translation is absent when it is forbidden."""
    pairs = [(each.source, candidates[0]) for each in chosen if (candidates := words(each.free))]
    terms = [Terms(avoid=(word,)) for _, word in pairs]
    without = translator.translate([source for source, _ in pairs], beam=beam, terms=terms, **OPTIONS)
    absent = sum(not contains(each.text, word) for each, (_, word) in zip(without, pairs, strict=True))
    return f"avoided: {absent} of {len(pairs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", required=True, help="test pairs, as for weft evaluate")
    parser.add_argument("--train", required=True, help="pairs from which to learn a glossary")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="only the first 1,000 plain sentences of 4 to 12 words")
    parser.add_argument("--thresholds", default="", help="values to choose SURE among, on every other pair")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    translator = load(options.run, device=options.device)
    pairs, glossary = list(open_pairs(options.data)), learn_glossary(open_pairs(options.train))
    if options.short:
        pairs = [pair for pair in pairs if 4 <= len(pair[0].split()) <= 12 and not re.search("[<{%]", pair[0])][:1000]
    free = [each.text for each in translator.translate([source for source, _ in pairs], beam=options.beam, **OPTIONS)]
    if options.thresholds:
        values = [float(each) for each in options.thresholds.split(",")]
        some = requests(translator, pairs[::2], free[::2], glossary, options.count)
        term_placement.SURE = choose_threshold(translator, next(iter(some.values())), options.beam, values)
        print(f"chosen on {len(pairs[::2]):,} pairs: {term_placement.SURE:g}; the others follow\n")
        pairs, free = pairs[1::2], free[1::2]
    sets = requests(translator, pairs, free, glossary, options.count)
    print(f"{len(glossary):,} entries; BLEU of all {len(pairs):,} free translations {bleu(free, [r for _, r in pairs]):.1f}\n")
    heads = ["used when free", "used when required", "BLEU free", "required", "rest, free", "rest, required"]
    print(f"| terms | {' | '.join(heads)} | repeats | unplaced | sentences/s |")
    print(f"|{'---|' * 10}")
    for name, chosen in sets.items():
        print(row(name, translator, chosen, options.beam), flush=True)
    print(f"\n{avoided(translator, next(iter(sets.values())), options.beam)}")


if __name__ == "__main__":
    main()
