"""Twenty kinds of stories with questions, as in bAbI (Weston et al. 2015), drawn by simulating a small world.

The texts follow bAbI's, but they are not its files: every story ends with its only question, and splits share no story. A
function for each task draws the facts of a story, a question and its answer: first those about people who move, take, give
and drop things, then those about relations between places, sizes, kinds, times and motives.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

from weft.errors import DataError

Story = tuple[list[str], str, str]
"""Facts, question, answer."""

PEOPLE = ("Mary", "John", "Daniel", "Sandra")
WOMEN = {"Mary", "Sandra"}
PLACES = ("bathroom", "hallway", "garden", "office", "bedroom", "kitchen")
THINGS = ("football", "apple", "milk")
MOVES = ("moved to", "went to", "journeyed to", "travelled to", "went back to")
TAKES = ("got", "took", "picked up", "grabbed")
DROPS = ("dropped", "discarded", "left", "put down")
GIVES = ("gave", "handed", "passed")
LATER = ("Then", "After that", "Following that", "Afterwards")
COUNTS = ("none", "one", "two", "three")


class World:
    """Where people and things are. `facts` tells everything that happened.

    trail: the places of each thing, one after the other · gifts: (giver, thing, receiver), the latest last.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.facts: list[str] = []
        self.place: dict[str, str] = {}
        self.held: dict[str, list[str]] = {person: [] for person in PEOPLE}
        self.trail: dict[str, list[str]] = {thing: [] for thing in THINGS}
        self.gifts: list[tuple[str, str, str]] = []

    def move(self) -> None:
        person = self.random.choice(PEOPLE)
        self.go([person], f"{person} {self.random.choice(MOVES)} the {{}}.")

    def go(self, people: Sequence[str], text: str) -> None:
        """Moves people together to a place where none of them is; `text` has {} for the place."""
        place = self.random.choice([each for each in PLACES if each not in {self.place.get(one) for one in people}])
        for one in people:
            self.place[one] = place
            for thing in self.held[one]:
                self._bring(thing, place)
        self.facts.append(text.format(place))

    def act(self) -> None:
        """One event: somebody moves or, as often, takes or drops a thing if that is possible."""
        self.random.choice((self.move, self.move, self.take, self.drop))()

    def take(self) -> None:
        held = {thing for things in self.held.values() for thing in things}
        free = [
            (person, thing)
            for person in self.place
            for thing in THINGS
            if thing not in held and (not self.trail[thing] or self.trail[thing][-1] == self.place[person])
        ]
        if not free:
            return self.move()
        person, thing = self.random.choice(free)
        self.held[person].append(thing)
        self._bring(thing, self.place[person])
        self.facts.append(f"{person} {self.random.choice(TAKES)} the {thing} there.")

    def drop(self) -> None:
        holders = [person for person in PEOPLE if self.held[person]]
        if not holders:
            return self.take()
        person = self.random.choice(holders)
        thing = self.random.choice(self.held[person])
        self.held[person].remove(thing)
        self.facts.append(f"{person} {self.random.choice(DROPS)} the {thing}.")

    def give(self) -> None:
        holders = [person for person in PEOPLE if self.held[person]]
        if not holders:
            return self.take()
        giver = self.random.choice(holders)
        thing = self.random.choice(self.held[giver])
        receiver = self.random.choice([each for each in PEOPLE if each != giver])
        self.held[giver].remove(thing)
        self.held[receiver].append(thing)
        self.place[receiver] = self.place[giver]
        self.gifts.append((giver, thing, receiver))
        self.facts.append(f"{giver} {self.random.choice(GIVES)} the {thing} to {receiver}.")

    def _bring(self, thing: str, place: str) -> None:
        if not self.trail[thing] or self.trail[thing][-1] != place:
            self.trail[thing].append(place)


def _moves(random: Random, shortest: int = 2, longest: int = 10) -> World:
    world = World(random)
    for _ in range(random.randint(shortest, longest)):
        world.move()
    return world


def _events(random: Random, shortest: int, longest: int) -> World:
    world = World(random)
    world.move()
    for _ in range(random.randint(shortest, longest) - 1):
        world.act()
    return world


def _where_is_somebody(random: Random, world: World) -> Story:
    person = random.choice(list(world.place))
    return world.facts, f"Where is {person}?", world.place[person]


def one_fact(random: Random) -> Story:
    """Task 1: where a person is."""
    return _where_is_somebody(random, _moves(random))


def two_facts(random: Random) -> Story:
    """Task 2: where a thing is, which somebody took along or dropped."""
    while True:
        world = _events(random, 4, 16)
        if known := [thing for thing in THINGS if world.trail[thing]]:
            thing = random.choice(known)
            return world.facts, f"Where is the {thing}?", world.trail[thing][-1]


def three_facts(random: Random) -> Story:
    """Task 3: where a thing was before it came to a place for the last time."""
    while True:
        world = _events(random, 8, 30)
        moved = [
            (thing, before, after)
            for thing, trail in world.trail.items()
            for number, (before, after) in enumerate(pairwise(trail), start=2)
            if after not in trail[number:]
        ]
        if moved:
            thing, before, after = random.choice(moved)
            return world.facts, f"Where was the {thing} before the {after}?", before


def three_arguments(random: Random) -> Story:
    """Task 5: who gave what to whom, in the latest gift that fits the question."""
    while True:
        world = World(random)
        world.move()
        for _ in range(random.randint(3, 14)):
            random.choice((world.move, world.take, world.give, world.give))()
        if world.gifts:
            break
    giver, thing, receiver = random.choice(world.gifts)
    question, fits, answer = random.choice(
        [
            (f"Who gave the {thing} to {receiver}?", {1: thing, 2: receiver}, 0),
            (f"What did {giver} give to {receiver}?", {0: giver, 2: receiver}, 1),
            (f"Who did {giver} give the {thing} to?", {0: giver, 1: thing}, 2),
            (f"Who gave the {thing}?", {1: thing}, 0),
            (f"Who received the {thing}?", {1: thing}, 2),
        ]
    )
    latest = next(gift for gift in reversed(world.gifts) if all(gift[place] == word for place, word in fits.items()))
    return world.facts, question, latest[answer]


def yes_or_no(random: Random) -> Story:
    """Task 6: whether a person is at a place."""
    world = _moves(random)
    person = random.choice(list(world.place))
    there = random.random() < 0.5
    asked = world.place[person] if there else random.choice([place for place in PLACES if place != world.place[person]])
    return world.facts, f"Is {person} in the {asked}?", _yes(there)


def counting(random: Random) -> Story:
    """Task 7: how many things a person carries."""
    world = _events(random, 3, 14)
    person = random.choice(_holders(random, world))
    return world.facts, f"How many objects is {person} carrying?", COUNTS[len(world.held[person])]


def lists(random: Random) -> Story:
    """Task 8: which things a person carries, in the order in which they were taken."""
    world = _events(random, 3, 14)
    person = random.choice(_holders(random, world))
    return world.facts, f"What is {person} carrying?", ",".join(world.held[person]) or "nothing"


def negation(random: Random) -> Story:
    """Task 9: whether a person is at a place, if facts may say where somebody no longer is."""
    facts: list[str] = []
    known: dict[str, tuple[str, bool]] = {}
    for _ in range(random.randint(2, 10)):
        person, place = random.choice(PEOPLE), random.choice(PLACES)
        if person in known and known[person][1] and random.random() < 0.4:
            place = known[person][0]
            facts.append(f"{person} is no longer in the {place}.")
            known[person] = place, False
        else:
            text = random.choice(["{} is in the {}.", *(f"{{}} {move} the {{}}." for move in MOVES)])
            facts.append(text.format(person, place))
            known[person] = place, True
    person = random.choice(list(known))
    place, there = known[person]
    if there and random.random() < 0.5:
        place, there = random.choice([each for each in PLACES if each != place]), False
    return facts, f"Is {person} in the {place}?", _yes(there)


def coreference(random: Random) -> Story:
    """Task 11: a pronoun stands for the person of the fact before."""
    world = World(random)
    for _ in range(random.randint(1, 5)):
        person = random.choice(PEOPLE)
        world.go([person], f"{person} {random.choice(MOVES)} the {{}}.")
        he = "she" if person in WOMEN else "he"
        world.go([person], f"{random.choice(LATER)} {he} {random.choice(MOVES)} the {{}}.")
    return _where_is_somebody(random, world)


def conjunction(random: Random) -> Story:
    """Task 12: two people move together."""
    world = World(random)
    for _ in range(random.randint(2, 10)):
        world.go(pair := random.sample(PEOPLE, 2), f"{pair[0]} and {pair[1]} {random.choice(MOVES)} the {{}}.")
    return _where_is_somebody(random, world)


def compound_coreference(random: Random) -> Story:
    """Task 13: "they" stands for the two people of the fact before."""
    world = World(random)
    for _ in range(random.randint(1, 5)):
        world.go(pair := random.sample(PEOPLE, 2), f"{pair[0]} and {pair[1]} {random.choice(MOVES)} the {{}}.")
        world.go(pair, f"{random.choice(LATER)} they {random.choice(MOVES)} the {{}}.")
    return _where_is_somebody(random, world)


def _holders(random: Random, world: World) -> list[str]:
    """Mostly people who carry something, so that the answers are not mostly none."""
    holders = [person for person in world.place if world.held[person]]
    return holders if holders and random.random() < 0.75 else list(world.place)


def _yes(true: bool) -> str:
    return "yes" if true else "no"


STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
TIMES = ("Yesterday", "This morning", "This afternoon", "This evening")
ANIMALS = {"mouse": "Mice", "cat": "Cats", "wolf": "Wolves", "sheep": "Sheep"}
PLURALS = {"mouse": "mice", "cat": "cats", "wolf": "wolves", "sheep": "sheep"}
NAMES = ("Gertrude", "Winona", "Jessica", "Emily")
KINDS = ("swan", "frog", "lion", "rhino")
COLOURS = ("white", "green", "yellow", "gray")
CREATURES = ("Lily", "Bernhard", "Greg", "Julius", "Brian")
SHAPES = ("triangle", "pink rectangle", "blue square", "red sphere", "yellow square", "red square")
SIDES = {"to the left of": (-1, 0), "to the right of": (1, 0), "above": (0, 1), "below": (0, -1)}
OBJECTS = ("chocolate", "chest", "box", "suitcase", "container", "box of chocolates")
MOTIVES = {
    "tired": ("bedroom", "pajamas"),
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "bored": ("garden", "football"),
}
AGENTS = ("Sumit", "Yann", "Jason", "Antoine")


def two_arguments(random: Random) -> Story:
    """Task 4: a place beside another one, and a third place beside either of them."""
    first, other, last = random.sample(PLACES, 3)
    one = random.choice(list(STEPS))
    beside, taken = random.choice([(other, one), (first, OPPOSITE[one])])
    two = random.choice([side for side in STEPS if side != taken])
    relations = (first, one, other), (last, two, beside)
    place, side, known = random.choice(relations)
    question, answer = random.choice(
        [
            (f"What is {side} of the {known}?", place),
            (f"What is the {place} {side} of?", known),
            (f"What is {OPPOSITE[side]} of the {place}?", known),
            (f"What is the {known} {OPPOSITE[side]} of?", place),
        ]
    )
    return [f"The {a} is {side} of the {b}." for a, side, b in relations], question, answer


def _fact(random: Random, place: str, side: str, other: str) -> str:
    """That `place` is on this side of `other`, said in either direction."""
    if random.random() < 0.5:
        place, side, other = other, OPPOSITE[side], place
    return f"The {place} is {side} of the {other}."


def indefinite(random: Random) -> Story:
    """Task 10: whether a person is at a place, if facts may leave two places open."""
    facts: list[str] = []
    known: dict[str, list[str]] = {}
    for _ in range(random.randint(2, 10)):
        person = random.choice(PEOPLE)
        if random.random() < 0.4:
            places = random.sample(PLACES, 2)
            facts.append(f"{person} is either in the {places[0]} or the {places[1]}.")
        else:
            places = random.sample(PLACES, 1)
            facts.append(
                random.choice([f"{person} is in the {places[0]}.", f"{person} {random.choice(MOVES)} the {places[0]}."])
            )
        known[person] = places
    person = random.choice(list(known))
    asked = random.choice(known[person]) if random.random() < 0.66 else random.choice(PLACES)
    answer = "no" if asked not in known[person] else "yes" if len(known[person]) == 1 else "maybe"
    return facts, f"Is {person} in the {asked}?", answer


def time(random: Random) -> Story:
    """Task 14: where a person was before a place, if facts say when but come in any order."""
    trails = {person: random.sample(PLACES, len(TIMES)) for person in random.sample(PEOPLE, 2)}
    told = [(when, person) for person in trails for when in range(len(TIMES))]
    random.shuffle(told)
    told = told[: random.randint(5, len(told))]
    facts = [f"{TIMES[when]} {person} {random.choice(MOVES)} the {trails[person][when]}." for when, person in told]
    known = {person: sorted(when for when, one in told if one == person) for person in trails}
    person = random.choice([one for one in trails if len(known[one]) > 1])
    number = random.randrange(1, len(known[person]))
    before, after = (trails[person][known[person][number + shift]] for shift in (-1, 0))
    return facts, f"Where was {person} before the {after}?", before


def deduction(random: Random) -> Story:
    """Task 15: what an animal is afraid of, from its kind."""
    fears = {kind: random.choice([other for other in ANIMALS if other != kind]) for kind in ANIMALS}
    kinds = {name: random.choice(list(ANIMALS)) for name in NAMES}
    facts = [f"{ANIMALS[kind]} are afraid of {PLURALS[fear]}." for kind, fear in fears.items()]
    facts += [f"{name} is a {kind}." for name, kind in kinds.items()]
    random.shuffle(facts)
    name = random.choice(NAMES)
    return facts, f"What is {name} afraid of?", fears[kinds[name]]


def induction(random: Random) -> Story:
    """Task 16: the colour of an animal, from that of another one of its kind."""
    colours = dict(zip(KINDS, random.sample(COLOURS, len(COLOURS)), strict=True))
    creatures = random.sample(CREATURES, len(CREATURES))
    asked, witness, *others = creatures
    kind = random.choice(KINDS)
    kinds = {asked: kind, witness: kind, **{one: random.choice([each for each in KINDS if each != kind]) for one in others}}
    facts = [f"{one} is a {kinds[one]}." for one in creatures]
    facts += [f"{one} is {colours[kinds[one]]}." for one in creatures if one != asked]
    random.shuffle(facts)
    return facts, f"What color is {asked}?", colours[kind]


def positions(random: Random) -> Story:
    """Task 17: how two shapes lie to each other, from where both lie to a third one."""
    first, middle, last = random.sample(SHAPES, 3)
    one = random.choice(list(SIDES))
    two = random.choice([side for side in SIDES if _add(SIDES[one], SIDES[side]) != (0, 0)])
    facts = [f"The {first} is {one} the {middle}.", f"The {middle} is {two} the {last}."]
    across, up = _add(SIDES[one], SIDES[two])
    pair, (right, over) = random.choice([((first, last), (across, up)), ((last, first), (-across, -up))])
    answer = random.choice(("yes", "no"))
    sign = 1 if answer == "yes" else -1
    side = random.choice([each for each, (x, y) in SIDES.items() if x * right * sign > 0 or y * over * sign > 0])
    return facts, f"Is the {pair[0]} {side} the {pair[1]}?", answer


def sizes(random: Random) -> Story:
    """Task 18: which of two things is larger, from a chain of comparisons."""
    order = random.sample(OBJECTS, random.randint(4, 5))  # from small to large
    facts = []
    for small, large in pairwise(order):
        facts.append(random.choice([f"The {large} is bigger than the {small}.", f"The {small} fits inside the {large}."]))
    random.shuffle(facts)
    asked, other = random.sample(order, 2)
    fits = order.index(asked) < order.index(other)
    if random.random() < 0.5:
        return facts, f"Does the {asked} fit in the {other}?", "yes" if fits else "no"
    return facts, f"Is the {asked} bigger than the {other}?", "no" if fits else "yes"


def paths(random: Random) -> Story:
    """Task 19: the two steps from one place to another."""
    places = random.sample(PLACES, 5)
    grid, near, ways = {places[0]: (0, 0)}, [], {}
    for place in places[1:]:
        free = [(a, s) for a, at in grid.items() for s in STEPS if _add(at, STEPS[s]) not in grid.values()]
        anchor, side = random.choice(free)
        grid[place] = _add(grid[anchor], STEPS[side])
        near.append(_fact(random, place, side, anchor))
        ways[anchor, place], ways[place, anchor] = side, OPPOSITE[side]
    random.shuffle(near)
    routes = [(a, c, one, two) for (a, b), one in ways.items() for (d, c), two in ways.items() if b == d and a != c]
    start, end, one, two = random.choice(routes)
    return near, f"How do you go from the {start} to the {end}?", f"{one[0]},{two[0]}"


def _add(at: tuple[int, int], step: tuple[int, int]) -> tuple[int, int]:
    return at[0] + step[0], at[1] + step[1]


def motivations(random: Random) -> Story:
    """Task 20: why somebody did something, or where they will go."""
    facts, asked = [], []
    for agent in random.sample(AGENTS, random.randint(1, len(AGENTS))):
        motive, (place, thing) = random.choice(list(MOTIVES.items()))
        events = [
            (f"{agent} is {motive}.", f"Where will {agent} go?", place),
            (f"{agent} {random.choice(MOVES)} the {place}.", f"Why did {agent} go to the {place}?", motive),
            (f"{agent} {random.choice(TAKES)} the {thing} there.", "", motive),
        ][: random.randint(1, 3)]
        facts.append([fact for fact, _, _ in events])
        _, question, answer = events[-1]
        asked.append((question or f"Why did {agent} get the {thing}?", answer))
    told: list[str] = []
    while any(facts):
        told.append(random.choice([some for some in facts if some]).pop(0))
    question, answer = random.choice(asked)
    return told, question, answer


TASKS: Mapping[int, tuple[str, Callable[[Random], Story]]] = {
    1: ("one supporting fact", one_fact),
    2: ("two supporting facts", two_facts),
    3: ("three supporting facts", three_facts),
    4: ("two-argument relations", two_arguments),
    5: ("three-argument relations", three_arguments),
    6: ("yes/no questions", yes_or_no),
    7: ("counting", counting),
    8: ("lists and sets", lists),
    9: ("simple negation", negation),
    10: ("indefinite knowledge", indefinite),
    11: ("basic coreference", coreference),
    12: ("conjunction", conjunction),
    13: ("compound coreference", compound_coreference),
    14: ("time reasoning", time),
    15: ("basic deduction", deduction),
    16: ("basic induction", induction),
    17: ("positional reasoning", positions),
    18: ("size reasoning", sizes),
    19: ("path finding", paths),
    20: ("agent's motivations", motivations),
}
"""Number → name and function that draws a story."""


def draw_story(random: Random, shortest: int, longest: int, *, task: int) -> tuple[str, str, str]:
    """Stories with questions, as in bAbI (`task` 1 to 20): facts and question with tabs between them, and the answer."""
    if task not in TASKS:
        raise DataError(f"generated:babi: there is no task {task}; tasks are numbered from 1 to {max(TASKS)}.")
    facts, question, answer = TASKS[task][1](random)
    return "\t".join(facts), "\t".join([*facts, question]), answer
