"""Changed copies of training pairs, for models that should read more than clean sentences.

Beside each pair, a copy of each kind appears with its probability: in capitals, with typing errors, with an emoji, joined with
the pairs before it, behind the source before it (document context), with a placeholder, or with terms of a glossary shown
inline (Dinu et al. 2019). Typing errors, context and terms change the source only; the rest changes both sides alike, so that
the model learns to carry it over. The copies follow from the data and
the settings, and are tokenised and cached with the pairs.
"""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from weft.data.formats import Pairs, combine, open_pairs

Pair = tuple[str, str]

LEAST_LETTERS, TYPOS = 4, 0.1
"""The fewest letters of a word that gets a typing error, and the share of such words."""

EMOJI = "😀😂😊😍👍🙏🎉🔥❤✅⚠🚀💡👋😢🤔"
PLACEHOLDERS = ("{0}", "{name}", "%s", "%d", "%1", "%1$s", "${value}", "{{item}}")
MOST_MERGED, MOST_CHARACTERS = 3, 400
"""The most pairs that are joined, and the most characters of a joined source."""

TERM, CONTEXT = "⟦{}⟧", "⟫"
"""The form of a target term after its source term; the separator between the lines of context and the source."""

WORD = re.compile(r"\w+")
EAST_ASIAN = re.compile("[\u2e80-\u312f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
"""Characters between which sentences have no space."""


class ChangedCopies(Pairs):
    """Pairs and changed copies of some of them. shares: the probability of each kind · terms: a glossary, as pairs."""

    def __init__(self, pairs: Pairs, shares: dict[str, float], terms: str | None = None) -> None:
        super().__init__(pairs.name)
        self.pairs, self.shares, self.terms = pairs, shares, terms
        self.left_out = pairs.left_out

    def __iter__(self) -> Iterator[Pair]:
        chance, before = random.Random(1), deque[Pair](maxlen=MOST_MERGED - 1)
        kinds: dict[str, Callable[[Pair], Pair | None]] = {
            "upper": lambda pair: (pair[0].upper(), pair[1].upper()),
            "title": lambda pair: (_titled(pair[0]), _titled(pair[1])),
            "typo": lambda pair: (mistyped(pair[0], chance), pair[1]),
            "emoji": lambda pair: with_emoji(pair, chance),
            "merge": lambda pair: merged([*before][-chance.randint(1, MOST_MERGED - 1) :], pair),
            "context": lambda pair: (with_context(before[-1][0], pair[0]), pair[1]) if before else None,
            "placeholder": lambda pair: with_placeholder(pair, chance),
            "terms": self._with_terms,
        }
        for pair in self.pairs:
            yield pair
            for kind, share in self.shares.items():
                if share and chance.random() < share and (copy := kinds[kind](pair)) not in (None, pair):
                    yield copy
            before.append(pair)

    def digest(self) -> str:
        glossary = open_pairs(self.terms).digest() if self.terms else ""
        return combine("changed copies 1", json.dumps(self.shares), glossary, self.pairs.digest())

    @cached_property
    def _glossary(self) -> list[Pair]:
        return list(open_pairs(self.terms)) if self.terms else []

    def _with_terms(self, pair: Pair) -> Pair | None:
        """A pair whose source shows the translations of its terms, those that the target has."""
        found = [(term, target) for term, target in self._glossary if target.lower() in pair[1].lower()]
        shown = inline_terms(pair[0], found)
        return (shown, pair[1]) if shown != pair[0] else None


def with_context(before: str, text: str) -> str:
    """A source behind those before it (Tiedemann & Scherrer 2017)."""
    return f"{before} {CONTEXT} {text}"


def inline_terms(text: str, terms: Iterable[Pair]) -> str:
    """A source with the translation of each of its terms behind it."""
    for source, target in terms:
        if found := re.search(rf"(?i)(?<!\w){re.escape(source)}(?!\w)", text):
            text = f"{text[: found.end()]} {TERM.format(target)}{text[found.end() :]}"
    return text


def mistyped(text: str, chance: random.Random) -> str:
    """A text in which some words, at least one, have two letters exchanged, one left out, doubled or replaced."""
    words = [match for match in WORD.finditer(text) if match.end() - match.start() >= LEAST_LETTERS]
    if not words:
        return text
    chosen = [match for match in words if chance.random() < TYPOS] or [chance.choice(words)]
    for match in reversed(chosen):
        word, place = match[0], chance.randrange(1, match.end() - match.start() - 1)
        first, rest = word[:place], word[place + 1 :]
        ways = (
            f"{first}{rest[:1]}{word[place]}{rest[1:]}",
            f"{first}{rest}",
            f"{first}{word[place] * 2}{rest}",
            f"{first}{chance.choice(text.replace(' ', ''))}{rest}",
        )
        text = f"{text[: match.start()]}{chance.choice(ways)}{text[match.end() :]}"
    return text


def with_emoji(pair: Pair, chance: random.Random) -> Pair:
    """Both sides with the same emoji at their beginning or end."""
    emoji, first = chance.choice(EMOJI), chance.random() < 0.2
    source, target = (f"{emoji} {text}" if first else f"{text} {emoji}" for text in pair)
    return source, target


def merged(before: list[Pair], pair: Pair) -> Pair | None:
    """The pairs before and this one as one; None if there are none before, or they are too long."""
    sources, targets = zip(*before, pair, strict=True)
    if not before or sum(map(len, sources)) > MOST_CHARACTERS:
        return None
    return _joined(sources), _joined(targets)


def with_placeholder(pair: Pair, chance: random.Random) -> Pair | None:
    """A pair with a placeholder for a word that both sides have once; None if there is no such word."""
    source, target = (WORD.findall(text) for text in pair)
    both = [word for word in source if source.count(word) == 1 == target.count(word)]
    if not both:
        return None
    word, placeholder = chance.choice(both), chance.choice(PLACEHOLDERS)
    ours, theirs = (re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _: placeholder, text) for text in pair)
    return ours, theirs


def _titled(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def _joined(texts: Sequence[str]) -> str:
    """Texts with spaces between them, except in Chinese and Japanese."""
    whole = ""
    for text in texts:
        whole += text if not whole or (EAST_ASIAN.match(whole[-1]) and EAST_ASIAN.match(text)) else f" {text}"
    return whole
