"""Phrase-based translation without translated text on Multi30k: what n-grams, language models, jumps and rounds are worth.

    python benchmarks/phrases.py MULTI30K --out OUT [--into fr] [--division 1] [--rounds 2] [--parts]

Texts are those of benchmarks/unpaired.py without the lines that it holds out for validation: halves of the training pairs
without a common sentence. Figures are cased BLEU of test_2016_flickr. Nothing is tuned: the weights are those of Moses. Each
round is saved in OUT, and the same command continues after the last one. --parts also measures the first round's parts.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from trainings import markdown
from unpaired import bleu, test_texts, write_halves

from weft.config.sections import load_config
from weft.data.phrases.phrase_table import PhraseTable
from weft.data.phrases.phrase_translation import ABOUT, NGRAMS, PhraseTranslator, improved, translate_by_vectors
from weft.data.phrases.stack_decoder import DecodingWeights
from weft.data.text_lines import read_lines
from weft.data.word_vectors.bilingual_dictionary import map_texts, nearest

PARTS = {
    "words, without a language model and without jumps": (1, DecodingWeights(language=0.0, words=0.0, reach=0)),
    "words, without jumps": (1, DecodingWeights(reach=0)),
    "words": (1, DecodingWeights()),
    "n-grams, without jumps": (NGRAMS, DecodingWeights(reach=0)),
    "n-grams, with a beam twice as wide": (NGRAMS, DecodingWeights(beam=20, considered=100)),
}
"""Variants of the first translator: the length of phrases, and weights."""


def halves(options: argparse.Namespace) -> list[list[str]]:
    """The lines of both languages, each once."""
    held = load_config("unsupervised", ()).data.hold_out
    files = [spec.partition("=")[2] for spec in write_halves(options).split(" ")]
    return [list(dict.fromkeys(list(read_lines(file))[held:])) for file in files]


def scores(translator: PhraseTranslator, options: argparse.Namespace) -> list[float]:
    """BLEU into the second language and into the first one."""
    first, second = test_texts(options)
    one, other = (language.name for language in translator.languages)
    return [bleu(translator.translate(first, other), second), bleu(translator.translate(second, one), first)]


def parts(lines: list[list[str]], options: argparse.Namespace) -> list[tuple[str, list[float]]]:
    """The scores of the first translator with something changed, and of translations word by word."""
    mapped = {length: map_texts(*lines, ngrams=length) for length in (1, NGRAMS)}
    first, second = test_texts(options)
    forth, back = nearest(mapped[1], 1), nearest(mapped[1].reversed(), 1)
    words = [bleu([forth.translate(line) for line in first], second), bleu([back.translate(line) for line in second], first)]
    found = [("*floor: source copied*", [bleu(first, second), bleu(second, first)]), ("*floor: word by word*", words)]
    base = translate_by_vectors(("en", options.into), lines, mapped[NGRAMS])
    for name, (length, weights) in PARTS.items():
        tables = base.tables
        if length == 1:
            tables = PhraseTable.from_vectors(mapped[1].reversed()), PhraseTable.from_vectors(mapped[1])
        found.append((name, scores(replace(base, tables=tables, weights=weights), options)))
        print(found[-1], flush=True)
    return found


def rounds(lines: list[list[str]], options: argparse.Namespace) -> list[tuple[str, list[float]]]:
    """The scores after each round. Translators are saved, and read again by a later call."""
    translator, found, began = None, [], time.monotonic()
    for number in range(options.rounds + 1):
        folder = options.out / f"round-{number}"
        if (folder / ABOUT).exists():
            translator = PhraseTranslator.load(folder)
        else:
            translator = (
                improved(translator, lines, lambda text: print(text, flush=True))
                if translator
                else translate_by_vectors(("en", options.into), lines, map_texts(*lines, ngrams=NGRAMS))
            )
            translator.save(folder)
        if not (file := folder / "scores.json").exists():
            file.write_text(json.dumps(scores(translator, options)), "utf-8")
        found.append((f"n-grams, round {number}" if number else "n-grams", json.loads(file.read_text("utf-8"))))
        print(found[-1], f"{time.monotonic() - began:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--into", default="fr", help="the other language")
    parser.add_argument("--division", type=int, default=1, help="seed of the random division into halves (default 1)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of back-translation (default 2)")
    parser.add_argument("--parts", action="store_true", help="also floors, and the first translator with parts changed")
    parser.set_defaults(more="", times=1, set=())
    options = parser.parse_args()
    lines = halves(options)
    rows = [*(parts(lines, options) if options.parts else ()), *rounds(lines, options)]
    heading = ["translator", f"en-{options.into}", f"{options.into}-en"]
    print(markdown(heading, [[name, *(f"{value:.1f}" for value in some)] for name, some in rows]))


if __name__ == "__main__":
    main()
