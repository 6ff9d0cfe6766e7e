"""Relations between places, sizes, kinds, times and motives: bAbI tasks 4, 10 and 14 to 20 (Weston et al. 2015).

Each function draws the facts of a story, a question and its answer.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from weft.data.babi_world import MOVES, PEOPLE, PLACES, Story

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
THINGS = ("chocolate", "chest", "box", "suitcase", "container", "box of chocolates")
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
    order = random.sample(THINGS, random.randint(4, 5))  # from small to large
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
            (f"{agent} {random.choice(('got', 'took', 'picked up', 'grabbed'))} the {thing} there.", "", motive),
        ][: random.randint(1, 3)]
        facts.append([fact for fact, _, _ in events])
        _, question, answer = events[-1]
        asked.append((question or f"Why did {agent} get the {thing}?", answer))
    told: list[str] = []
    while any(facts):
        told.append(random.choice([some for some in facts if some]).pop(0))
    question, answer = random.choice(asked)
    return told, question, answer
