"""Makes contrastive pairs for `weft evaluate RUN --contrastive FILE`: English agreement, or ambiguous words in translation.

    python benchmarks/contrastive.py TEXT --out FILE [--lexicon TAGGED] [--by distance]
    python benchmarks/contrastive.py TEST.en,TEST.de --train TRAIN.en,TRAIN.de --out FILE

TEXT has one word per line with its Penn tag in the last column, and blank lines between sentences (such as UD English EWT); or
sentences whose words are written word/tag with the tags of the Brown corpus; or plain sentences, whose words get the tag that
they have most often in TAGGED, a file of the first form. Of each sentence that begins with a noun phrase and, after
prepositional phrases, a verb that shows its number, FILE gets a line: the words before the verb, the verb, the verb in its
other number, and a group: the number of nouns in between that have the other number than the subject (attractors; Linzen et
al. 2016), or the number of words in between. Sentences that do not agree are left out: they are errors of the tags.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines
from weft.evaluation.contrastive_pairs import Contrast, judge, read_contrasts

Sentence = list[tuple[str, str]]
"""Words with their Penn tags."""

BROWN = {
    **dict.fromkeys(("at", "dt", "dti", "pp$", "cd"), "DT"),
    **dict.fromkeys(("bez", "hvz", "doz", "bedz"), "VBZ"),
    **dict.fromkeys(("ber", "hv", "do", "vb", "bed"), "VBP"),
}
"""Tags of the Brown corpus whose Penn tag is not the same in capitals."""
LETTERS = {
    **dict.fromkeys(("DT", "PRP$", "CD"), "D"),
    **dict.fromkeys(("JJ", "JJR", "JJS"), "J"),
    **{"NN": "N", "NNP": "N", "NNS": "S", "IN": "P", "RB": "R", "VBZ": "V", "VBP": "W", ",": "|", "CC": "|"},
}
"""A letter for each tag that may be part of the pattern."""
PATTERN = re.compile(r"(?:^|(?<=\|))D?J*[NS]*([NS])((?:PD?J*[NS]+)*)R*([VW])")
"""A noun phrase at the beginning or after a comma or a conjunction, then prepositional phrases and the verb."""
IRREGULAR = {"is": "are", "was": "were", "has": "have", "does": "do"}
AGREES = {"N": "V", "S": "W"}


def sentences(lines: Iterable[str], lexicon: dict[str, str]) -> Iterator[Sentence]:
    """The sentences of a text in any of the three forms."""
    block: Sentence = []
    for line in lines:
        if "\t" in line:
            columns = line.split("\t")
            block.append((columns[0], columns[-1]))
            continue
        if block:
            yield block
            block = []
        words = line.split()
        if words and all("/" in word for word in words):
            pairs = (word.rpartition("/") for word in words)
            yield [(word, BROWN.get(tag, tag.upper())) for word, _, tag in pairs]
        elif words:
            yield [(word, lexicon.get(word, lexicon.get(word.lower(), ""))) for word in words]
    if block:
        yield block


def most_frequent_tags(file: Path) -> dict[str, str]:
    """The most frequent tag of each word of a tagged file."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences(read_lines(file), {}):
        for word, tag in sentence:
            counts[word][tag] += 1
    return {word: tags.most_common(1)[0][0] for word, tags in counts.items()}


def other_number(verb: str) -> str:
    """The form of a verb in the present for the other number; of `be` also in the past."""
    both = {**IRREGULAR, **{plural: singular for singular, plural in IRREGULAR.items()}}
    if verb in both:
        return both[verb]
    if verb.endswith("s") and not verb.endswith("ss"):
        if verb.endswith("ies") and len(verb) > 4:
            return verb[:-3] + "y"
        return verb[:-2] if re.search(r"(ss|sh|ch|x|zz|o)es$", verb) else verb[:-1]
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    return verb + ("es" if re.search(r"(s|sh|ch|x|z|o)$", verb) else "s")


def contrast(sentence: Sentence, by: str) -> Contrast | None:
    """The pair of a sentence, if it has the pattern."""
    words = [word for word, _ in sentence]
    letters = "".join({"was": "V", "were": "W", "that": "|"}.get(word, LETTERS.get(tag, "-")) for word, tag in sentence)
    found = next((each for each in PATTERN.finditer(letters) if AGREES[each[1]] == each[3]), None)
    if found is None:
        return None
    head, place = found.start(1), found.start(3)
    nouns = [run[-1] for run in re.findall("[NS]+", found[2])]
    attractors, distance = sum(noun != found[1] for noun in nouns), place - head - 1
    group = f"{attractors} attractors" if by == "attractors" else f"{distance} words"
    return Contrast(" ".join(words[:place]), words[place], other_number(words[place]), group)


OFTEN, SHARE, MEANT, TOGETHER, STEM, SHORT = 8, 0.12, 0.4, 0.05, 3, 4
"""Least count of a translation, its least share of the source word, the least share of its uses that have this source word,
the most shared uses of two translations, the letters in which they differ at least, and the letters of a word at least."""
ALIKE = 0.25
"""Translations whose sentences have source words more alike than this (cosine, rare words count more) are synonyms."""
LENGTHS = ((10, "up to 10 words"), (15, "11 to 15 words"), (10**9, "more than 15 words"))


def words_of(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text) if len(word) >= SHORT}


def translations(pairs: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Two translations of each ambiguous source word, by counts of sentences."""
    sources, targets = Counter[str](), Counter[str]()
    both, beside = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for source, target in pairs:
        left, right = words_of(source), words_of(target)
        sources.update(left)
        targets.update(right)
        both.update((one, other) for one in left for other in right)
        beside.update((one, other) for one in right for other in right)
    meant: dict[str, list[str]] = defaultdict(list)
    contexts: dict[str, dict[str, float]] = defaultdict(dict)
    for (source, target), count in both.items():
        contexts[target][source] = count / sources[source] ** 0.5
        if count >= max(OFTEN, SHARE * sources[source]) and count >= MEANT * targets[target]:
            meant[source].append(target)

    def rivals(source: str, one: str, other: str) -> bool:
        apart = one[:STEM].lower() != other[:STEM].lower() and one[0].isupper() == other[0].isupper()
        alone = beside[one, other] <= TOGETHER * min(targets[one], targets[other])
        return apart and alone and _cosine(contexts[one], contexts[other], without=source) < ALIKE

    found = {
        source: [
            (one, other) for one in sorted(words) for other in sorted(words) if one != other and rivals(source, one, other)
        ]
        for source, words in sorted(meant.items())
    }
    return {source: each for source, each in found.items() if each}


def _cosine(one: dict[str, float], other: dict[str, float], without: str) -> float:
    shared = sum(value * other.get(word, 0.0) for word, value in one.items() if word != without)
    norms = [sum(value**2 for word, value in each.items() if word != without) ** 0.5 for each in (one, other)]
    return shared / max(norms[0] * norms[1], 1e-9)


def ambiguous(test: Iterable[tuple[str, str]], known: dict[str, list[tuple[str, str]]]) -> Iterator[Contrast]:
    """Test pairs with one translation of an ambiguous word replaced by its rival."""
    for source, target in test:
        group = next(name for most, name in LENGTHS if len(source.split()) <= most)
        for word in sorted(words_of(source)):
            for one, other in known.get(word, []):
                if len(re.findall(rf"\b{one}\b", target)) == 1 and other not in words_of(target):
                    yield Contrast(source, target, re.sub(rf"\b{one}\b", other, target), group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lexicon", type=Path, help="a tagged file, for plain text")
    parser.add_argument("--by", choices=("attractors", "distance"), default="attractors", help="what the groups are")
    parser.add_argument("--train", help="parallel training data, to find ambiguous words")
    options = parser.parse_args()
    lexicon = most_frequent_tags(options.lexicon) if options.lexicon else {}
    found: list[Contrast | None]
    if options.train:
        known = translations(open_pairs(options.train))
        found = [*ambiguous(open_pairs(options.text), known)]
        print(f"{len(known)} ambiguous words, such as {', '.join(f'{word}: {each[0]}' for word, each in [*known.items()][:8])}")
    else:
        found = [contrast(each, options.by) for each in sentences(read_lines(options.text), lexicon)]
    lines = ["\t".join((each.source, each.right, each.wrong, each.group)) for each in found if each is not None]
    options.out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    pairs = read_contrasts(lines, str(options.out))
    result = judge(pairs, [(0.0, 0.0)] * len(pairs))
    print(f"{len(pairs):,} pairs")
    for name, each in {**result.groups, "all": result.total}.items():
        shares = " · ".join(f"{floor} {value:.1f} %" for floor, value in each.floors.items())
        print(f"{name:<14} {each.pairs:>6,} pairs · {shares}")


if __name__ == "__main__":
    main()
