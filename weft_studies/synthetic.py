"""Generated data that is solvable by rule: letters and numbers, and long-range dependencies of any length.

    copy          "k d q" → "k d q"        reverse  "k d q" → "q d k"        sort  "k d q" → "d k q"
    addition      "417+85" → "502"
    listops       "[MAX 4 3 [MIN 2 3 ] 1 0 ]" → "4": nested operations on digits (Nangia & Bowman 2018), one of ten labels
    recall        "k 3 q 7 d 1 ? q" → "7": the value of a key (Graves et al. 2014), one of ten labels
    distant_copy  "k d q . . . . ?" → "k d q": the letters before a long gap
    verdict       "d red k\\nblue q final\\nw blue" → "blue": the colour in the sentence with `final`, one of four labels
    agreement     "behind the wall , the keys near the old door" → "are": the verb of its first noun (Linzen et al. 2016)

A function draws the subject of a pair, its source and its target. `shortest` and `longest` count symbols (copy, reverse,
sort: 1 to 10), digits (addition: 4), source tokens (listops, recall, distant_copy), sentences (verdict: 8) or words between
noun and verb (agreement: 0 to 12). 0 means the default for `longest`, and for long-range data a quarter of `longest` for
`shortest`.
"""

import string
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from statistics import median

from weft.errors import DataError

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}

MOST_ARGUMENTS, MOST_DEPTH, NESTED = 10, 10, 0.25
"""Parameters of ListOps in the Long Range Arena (Tay et al. 2021). NESTED: probability of an operation as an argument."""

ATTEMPTS = 100_000

KEPT = 8
"""Maximum number of symbols to copy over the gap."""

# fmt: off
NOUNS = (
    "key", "door", "wall", "cat", "dog", "tree", "book", "lamp", "chair", "king", "queen", "house", "river", "road", "tower",
    "ship", "letter", "garden", "farmer", "pilot", "doctor", "teacher", "painter", "writer", "driver", "singer", "baker",
    "hunter", "sailor", "neighbour",
)
PREPOSITIONS = ("near", "behind", "above", "below", "beside", "before", "after", "with", "without", "from")
PAST = ("saw", "knew", "left", "found", "helped", "called", "met", "painted")
ADJECTIVES = ("old", "new", "red", "small", "tall", "quiet", "bright", "heavy")
ADVERBS = ("really", "often", "still", "never", "always", "probably")
# fmt: on
"""The words of agreement. Verbs of relative clauses are in the past, where they do not show a number."""
VERBS = {False: "is", True: "are"}
"""The verb for each number: whether it is plural."""


COLOURS = ("red", "green", "blue", "white")
DECIDES = "final"
"""The word that marks the deciding sentence of a verdict."""


def copy(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Letters as they are."""
    return _letters(list, random, shortest, longest)


def reverse(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Letters from the last to the first."""
    return _letters(reversed, random, shortest, longest)


def sort(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Letters in the order of the alphabet."""
    return _letters(sorted, random, shortest, longest)


def _letters(
    arrange: Callable[[list[str]], Iterable[str]], random: Random, shortest: int, longest: int
) -> tuple[str, str, str]:
    letters = random.choices(string.ascii_lowercase, k=random.randint(shortest or 1, longest or 10))
    subject = "".join(sorted(letters)) if arrange is sorted else " ".join(letters)
    return subject, " ".join(letters), " ".join(arrange(letters))


def addition(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Sums of two numbers."""
    digits = longest or 4
    first, second = (random.randrange(10 ** random.randint(1, digits)) for _ in range(2))
    return f"{min(first, second)}+{max(first, second)}", f"{first}+{second}", str(first + second)


class _Expression:
    """An expression, written token by token; raises OverflowError when it exceeds `longest` tokens."""

    def __init__(self, random: Random, longest: int) -> None:
        self.random, self.longest = random, longest
        self.tokens: list[str] = []

    def operation(self, depth: int) -> int:
        """Writes an operation with its arguments and returns its value."""
        name = self.random.choice(list(OPERATORS))
        self._write(f"[{name}")
        values = [self.argument(depth + 1) for _ in range(self.random.randint(2, MOST_ARGUMENTS))]
        self._write("]")
        return OPERATORS[name](values)

    def argument(self, depth: int) -> int:
        if depth < MOST_DEPTH and self.random.random() < NESTED:
            return self.operation(depth)
        digit = self.random.randrange(10)
        self._write(str(digit))
        return digit

    def _write(self, token: str) -> None:
        if len(self.tokens) == self.longest:
            raise OverflowError
        self.tokens.append(token)


def listops(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """An expression of the published grammar, drawn repeatedly until its length is in range."""
    longest = longest or 200
    shortest = shortest or longest // 4
    for _ in range(ATTEMPTS):
        expression = _Expression(random, longest)
        with suppress(OverflowError):
            value = expression.operation(1)
            if len(expression.tokens) >= shortest:
                text = " ".join(expression.tokens)
                return text, text, str(value)
    raise DataError(
        f"generated:listops: no expression of {shortest} to {longest} tokens was found; increase `longest` or lower `shortest`."
    )


def recall(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Keys with a digit after each, and a question for one of them. Keys are long enough to be distinct."""
    longest = longest or 50
    most = max(1, (longest - 2) // 2)
    count = random.randint(min(most, max(1, ((shortest or longest // 4) - 1) // 2)), most)
    width = next(width for width in range(1, 9) if len(string.ascii_lowercase) ** width >= most)
    keys = [_word(number, width) for number in random.sample(range(len(string.ascii_lowercase) ** width), count)]
    values = [str(random.randrange(10)) for _ in keys]
    question = random.randrange(count)
    text = " ".join([*(token for pair in zip(keys, values, strict=True) for token in pair), "?", keys[question]])
    return text, text, values[question]


def _word(number: int, width: int) -> str:
    """A number written with `width` letters."""
    base = len(string.ascii_lowercase)
    return "".join(string.ascii_lowercase[number // base**place % base] for place in range(width))


def distant_copy(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Letters, a gap that fills the text up to its length, and a question mark."""
    longest = longest or 100
    letters = " ".join(random.choices(string.ascii_lowercase, k=random.randint(1, max(1, min(KEPT, longest - 2)))))
    count = random.randint(min(longest, shortest or longest // 4), longest)
    gap = max(1, count - len(letters.split()) - 1)
    return letters, f"{letters} {'. ' * gap}?", letters


def verdict(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """A document of `shortest` to `longest` sentences, each with letters and a colour; one of them decides.

    Which colours occur tells little, so that a model has to find the deciding sentence.
    """
    longest = longest or 8
    count = random.randint(min(longest, shortest or longest // 4 or 1), longest)
    deciding, colours = random.randrange(count), random.choices(COLOURS, k=count)
    sentences = []
    for place, colour in enumerate(colours):
        words = [*random.choices(string.ascii_lowercase, k=random.randint(1, 4)), colour, *[DECIDES] * (place == deciding)]
        random.shuffle(words)
        sentences.append(" ".join(words))
    text = "\n".join([*sentences, ""])
    return text, text, colours[deciding]


def agreement(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """A noun phrase and the verb that agrees with its first noun, over `shortest` to `longest` words in between.

    Phrases and relative clauses with other nouns, each singular or plural at random, and adverbs fill the distance. Nouns of
    the other number are attractors. Every other phrase has another one before it, so that no position gives the noun away.
    """
    distance, plural = random.randint(shortest, longest or 12), random.random() < 0.5
    lead = [random.choice(PREPOSITIONS), "the", _noun(random, random.random() < 0.5), ","] if random.random() < 0.5 else []
    if lead and random.random() < 0.5:
        lead.insert(2, random.choice(ADJECTIVES))
    words = ["the", _noun(random, plural)]
    while (left := distance + 2 - len(words)) > 0:
        if left < 3:
            words.append(random.choice(ADVERBS))
            continue
        joint = ["that", random.choice(PAST)] if left > 3 and random.random() < 0.5 else [random.choice(PREPOSITIONS)]
        adjective = [random.choice(ADJECTIVES)] if left > len(joint) + 2 and random.random() < 0.3 else []
        words += [*joint, "the", *adjective, _noun(random, random.random() < 0.5)]
    text = " ".join([*lead, *words])
    return text, text, VERBS[plural]


def _noun(random: Random, plural: bool) -> str:
    return random.choice(NOUNS) + "s" * plural


def attractors(phrase: str) -> int:
    """The number of nouns between the noun of a generated phrase and its verb whose number differs."""
    clause = phrase.rpartition(", ")[2]
    numbers = [word not in NOUNS for word in clause.split() if word.removesuffix("s") in NOUNS]
    return sum(number != numbers[0] for number in numbers[1:])
