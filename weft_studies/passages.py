"""Generated passages with a question each, about people and towns whose names never occur in training.

    passages      "Talo lives in Birosa. Meku works as a baker. …" "Where does Talo live ?" → "Birosa"
    distractors   the same, with sentences about the relatives of the people asked about: "The sister of Talo lives in Noreka."

A function draws the subject of a pair, its source (a passage, a tab and a question) and its target. `shortest` and `longest`
count the people (2 to 5). A name belongs to one split, so the names of valid and test are new to a model that saw train.
"""

from random import Random

from weft.data.generators import split_of

ONSETS, VOWELS = "bdfgklmnprstvz", "aeiou"
JOBS = ("baker", "doctor", "farmer", "judge", "painter", "pilot", "singer", "teacher")
RELATIVES = ("brother", "sister", "cousin", "neighbour")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
FEWEST, MOST = 2, 5

FACTS = {
    "home": (("{name} lives in {town} .", "The home of {name} is in {town} ."), ("Where does {name} live ?",), "town"),
    "birth": (("{name} was born in {origin} .", "{name} comes from {origin} ."), ("Where was {name} born ?",), "origin"),
    "job": (("{name} works as a {job} .", "{name} is a {job} ."), ("What is the job of {name} ?",), "job"),
    "friend": (("{name} often visits {friend} .", "A friend of {name} is {friend} ."), ("Who does {name} visit ?",), "friend"),
    "car": (
        ("{name} drives a {colour} car .", "The car of {name} is {colour} ."),
        ("Which colour is the car of {name} ?",),
        "colour",
    ),
}
"""Kind of fact → its sentences, its questions, and what they ask for."""

REVERSED = {"home": ("Who lives in {town} ?", "name"), "birth": ("Who was born in {origin} ?", "name")}
"""Questions for the person."""


def passages(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Facts about people, and a question about one of them."""
    return _draw(random, shortest, longest, distract=False, kind="passages")


def distractors(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """The same with sentences that resemble the answer, about relatives."""
    return _draw(random, shortest, longest, distract=True, kind="distractors")


def _draw(random: Random, shortest: int, longest: int, *, distract: bool, kind: str) -> tuple[str, str, str]:
    subject = str(random.getrandbits(40))
    names = _Names(random, split_of(f"{kind} {subject}"))
    count = random.randint(shortest or FEWEST, longest or MOST)
    people = [_person(random, names) for _ in range(count)]
    told = [(person, fact) for person in people for fact in random.sample([*FACTS], 2)]
    random.shuffle(told)
    sentences = [random.choice(FACTS[fact][0]).format(**person) for person, fact in told]
    asked, fact = random.choice(told)
    question, wanted = random.choice(FACTS[fact][1]), FACTS[fact][2]
    if fact in REVERSED and random.random() < 0.3:
        question, wanted = REVERSED[fact]
    if distract:
        relative = _person(random, names) | {"name": f"the {random.choice(RELATIVES)} of {asked['name']}"}
        lines = [
            random.choice(FACTS[each][0]).format(**relative)
            for each in (fact, random.choice([other for other in FACTS if other != fact]))
        ]
        for line in lines:
            sentences.insert(random.randint(0, len(sentences)), line[0].upper() + line[1:])
    return subject, f"{' '.join(sentences)}\t{question.format(**asked)}", asked[wanted]


def _person(random: Random, names: "_Names") -> dict[str, str]:
    new = {key: names.new() for key in ("name", "town", "origin", "friend")}
    return {**new, "job": random.choice(JOBS), "colour": random.choice(COLOURS)}


class _Names:
    """Names of one split, each different."""

    def __init__(self, random: Random, split: str) -> None:
        self.random, self.split = random, split
        self.used: set[str] = set()

    def new(self) -> str:
        while True:
            syllables = self.random.randint(2, 4)
            name = "".join(self.random.choice(ONSETS) + self.random.choice(VOWELS) for _ in range(syllables)).capitalize()
            if name not in self.used and split_of(f"name {name}") == self.split:
                self.used.add(name)
                return name
