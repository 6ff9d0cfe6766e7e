"""Terms that have to be used: how often they are, and what that does to the rest of the text.

    python benchmarks/glossary.py RUN --data SOURCE,TARGET [--count 200] [--beam 5] [--device cuda]

For each of the first pairs whose reference has a word of four letters or more that the free translation has not, that word is
asked for. The table says how many translations hold it, BLEU of both against the references, BLEU of the rest (the word taken
out of translations and references alike), and how many translations avoid a word of the free one when they are asked to.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence

from weft import load
from weft.data.formats import open_pairs
from weft.errors import DataError
from weft.evaluation.metrics import make_metrics, score
from weft.tasks.terms import Terms, book
from weft.translator import Translator

LETTERS = 4


def holds(text: str, term: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None


def writable(translator: Translator, term: str) -> bool:
    try:
        book(translator.target, [[term]], translator.model.device)
    except DataError:
        return False
    return True


def asked_for(translator: Translator, free: str, reference: str, letters: int) -> str | None:
    """The first word of a reference that its free translation has not and that the model can write."""
    found = (word for word in re.findall(r"\w+", reference) if len(word) >= letters and not holds(free, word))
    return next((word for word in found if writable(translator, word)), None)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    return score(list(texts), list(references), make_metrics(["bleu"]))["BLEU"].value


def rest(texts: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The texts without their terms."""
    pairs = zip(texts, terms, strict=True)
    return [" ".join(re.sub(rf"(?<!\w){re.escape(term)}(?!\w)", " ", text).split()) for text, term in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", required=True, help="test pairs, as for weft evaluate")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--letters", type=int, default=LETTERS, help="fewest of a word that is asked for")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    translator = load(options.run, device=options.device)
    pairs = list(open_pairs(options.data))
    free = [each.text for each in translator.translate([source for source, _ in pairs], beam=options.beam)]
    chosen = [
        (source, reference, text, term)
        for (source, reference), text in zip(pairs, free, strict=True)
        if (term := asked_for(translator, text, reference, options.letters)) is not None
    ][: options.count]
    sources, references, before, terms = (list(column) for column in zip(*chosen, strict=True))
    began = time.monotonic()
    wanted = [Terms((term,)) for term in terms]
    after = [each.text for each in translator.translate(sources, beam=options.beam, terms=wanted)]
    seconds = time.monotonic() - began
    present = sum(holds(text, term) for text, term in zip(after, terms, strict=True))
    used = [next(iter(re.findall(rf"\w{{{options.letters},}}", text)), "") for text in before]
    banned = [(source, word) for source, word in zip(sources, used, strict=True) if word]
    avoid = [Terms(avoid=(word,)) for _, word in banned]
    without = translator.translate([source for source, _ in banned], beam=options.beam, terms=avoid)
    absent = sum(not holds(each.text, word) for each, (_, word) in zip(without, banned, strict=True))
    print(f"terms used: {present} of {len(terms)}, {len(terms) / seconds:.1f} sentences/s; avoided: {absent} of {len(banned)}")
    print("| | BLEU | BLEU of the rest |\n|---|---|---|")
    for name, texts in (("free", before), ("with terms", after)):
        print(f"| {name} | {bleu(texts, references):.1f} | {bleu(rest(texts, terms), rest(references, terms)):.1f} |")


if __name__ == "__main__":
    main()
