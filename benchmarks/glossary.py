"""Terms that have to be used: how often they are, and what that does to the rest of the text.

    python benchmarks/glossary.py RUN --data SOURCE,TARGET --train SOURCE,TARGET [--count 200] [--beam 5] [--device cuda]

A glossary is learnt from the training pairs: words that stand in the same pairs and are each other's best match by Dice's
coefficient. Three times --count sentences of the test pairs are asked for with one term each: a term of the glossary whose
source word is in the source and whose target word is in the reference; such a term that the free translation does not hold;
and, glossary or not, a word of the reference that the free translation does not hold (the first of four letters or more).

The table says how many free translations hold their term, how many do when it is asked for, BLEU of both, and BLEU of the
rest: the term taken out of translations and references alike. Last, a word of each free translation is to be avoided.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft import load
from weft.data.formats import open_pairs
from weft.errors import DataError
from weft.evaluation.metrics import make_metrics, score
from weft.inference.terms import Terms, book
from weft.translator import Translator

LETTERS = 4
"""The fewest letters of a term."""

TOGETHER, ALIKE = 5, 0.3
"""How often two words have to stand in the same pairs to be an entry, and the least of Dice's coefficient."""

SETS = ("of a glossary", "of a glossary, not said freely", "any, not said freely")


@dataclass(frozen=True)
class Request:
    """A sentence, its reference, what the model writes freely, and the term that is asked for."""

    source: str
    reference: str
    free: str
    term: str


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text) if len(word) >= LETTERS]


def whole(term: str) -> str:
    """A pattern that finds a term as whole words."""
    return rf"(?<!\w){re.escape(term)}(?!\w)"


def holds(text: str, term: str) -> bool:
    return re.search(whole(term), text) is not None


def learn_glossary(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Source word (in small letters) → target word: those that are each other's best match."""
    reads, writes, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        left, right = set(words(source.lower())), set(words(target))
        reads.update(left)
        writes.update(right)
        both.update((one, other) for one in left for other in right)
    best: dict[tuple[int, str], tuple[float, str]] = {}
    for (one, other), count in both.items():
        if count >= TOGETHER:
            alike = 2 * count / (reads[one] + writes[other])
            for key, match in (((0, one), other), ((1, other), one)):
                best[key] = max(best.get(key, (ALIKE, "")), (alike, match))
    entries = {word: match for (side, word), (_, match) in best.items() if side == 0 and match}
    return {word: match for word, match in entries.items() if best[1, match][1] == word}


def writable(translator: Translator, term: str) -> bool:
    try:
        book(translator.target, [[term]], translator.model.device)
    except DataError:
        return False
    return True


def requests(
    translator: Translator, pairs: Sequence[tuple[str, str]], free: Sequence[str], glossary: dict[str, str], count: int
) -> dict[str, list[Request]]:
    """The three sets of requests, at most one of a sentence in each."""
    found: dict[str, list[Request]] = {name: [] for name in SETS}
    for (source, reference), text in zip(pairs, free, strict=True):
        known = [glossary[word] for word in words(source.lower()) if word in glossary and holds(reference, glossary[word])]
        wanted = (known, [t for t in known if not holds(text, t)], [t for t in words(reference) if not holds(text, t)])
        for chosen, terms in zip(found.values(), wanted, strict=True):
            term = next((term for term in terms if writable(translator, term)), None)
            if term is not None and len(chosen) < count:
                chosen.append(Request(source, reference, text, term))
    return {name: chosen for name, chosen in found.items() if chosen}


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return score(list(texts), list(references), make_metrics(["bleu"]))["BLEU"].value


def rest(texts: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The texts without their terms."""
    return [" ".join(re.sub(whole(term), " ", text).split()) for text, term in zip(texts, terms, strict=True)]


def row(name: str, translator: Translator, chosen: Sequence[Request], beam: int) -> str:
    """A line of the table: one set of requests, free and with terms."""
    terms, references, free = ([getattr(each, part) for each in chosen] for part in ("term", "reference", "free"))
    began = time.monotonic()
    asked = translator.translate([each.source for each in chosen], beam=beam, terms=[Terms((term,)) for term in terms])
    seconds = time.monotonic() - began
    both = (free, [each.text for each in asked])
    cells = [name, *(f"{sum(map(holds, texts, terms))} of {len(terms)}" for texts in both)]
    cells += [f"{bleu(texts, references):.1f}" for texts in both]
    cells += [f"{bleu(rest(texts, terms), rest(references, terms)):.1f}" for texts in both]
    return f"| {' | '.join(cells)} | {len(chosen) / seconds:.1f} |"


def avoided(translator: Translator, chosen: Sequence[Request], beam: int) -> str:
    """How often a word of the free translation is not said when it must not be."""
    pairs = [(each.source, found[0]) for each in chosen if (found := words(each.free))]
    terms = [Terms(avoid=(word,)) for _, word in pairs]
    without = translator.translate([source for source, _ in pairs], beam=beam, terms=terms)
    absent = sum(not holds(each.text, word) for each, (_, word) in zip(without, pairs, strict=True))
    return f"avoided: {absent} of {len(pairs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", required=True, help="test pairs, as for weft evaluate")
    parser.add_argument("--train", required=True, help="pairs from which a glossary is learnt")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    translator = load(options.run, device=options.device)
    pairs, glossary = list(open_pairs(options.data)), learn_glossary(open_pairs(options.train))
    free = [each.text for each in translator.translate([source for source, _ in pairs], beam=options.beam)]
    sets = requests(translator, pairs, free, glossary, options.count)
    print(f"{len(glossary):,} entries; BLEU of all {len(pairs):,} free translations {bleu(free, [r for _, r in pairs]):.1f}\n")
    print("| terms | said freely | said when asked for | BLEU free | with them | rest, free | rest, with them | sentences/s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, chosen in sets.items():
        print(row(name, translator, chosen, options.beam), flush=True)
    print(f"\n{avoided(translator, next(iter(sets.values())), options.beam)}")


if __name__ == "__main__":
    main()
