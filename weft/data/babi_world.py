"""People who move, take, give and drop things: the world of bAbI tasks 1 to 3, 5 to 9 and 11 to 13 (Weston et al. 2015).

Each function draws the facts of a story, a question and its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

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


def one_fact(random: Random) -> Story:
    """Task 1: where a person is."""
    world = _moves(random)
    person = random.choice(list(world.place))
    return world.facts, f"Where is {person}?", world.place[person]


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
    person = random.choice(list(world.place))
    return world.facts, f"Where is {person}?", world.place[person]


def conjunction(random: Random) -> Story:
    """Task 12: two people move together."""
    world = World(random)
    for _ in range(random.randint(2, 10)):
        world.go(pair := random.sample(PEOPLE, 2), f"{pair[0]} and {pair[1]} {random.choice(MOVES)} the {{}}.")
    person = random.choice(list(world.place))
    return world.facts, f"Where is {person}?", world.place[person]


def compound_coreference(random: Random) -> Story:
    """Task 13: "they" stands for the two people of the fact before."""
    world = World(random)
    for _ in range(random.randint(1, 5)):
        world.go(pair := random.sample(PEOPLE, 2), f"{pair[0]} and {pair[1]} {random.choice(MOVES)} the {{}}.")
        world.go(pair, f"{random.choice(LATER)} they {random.choice(MOVES)} the {{}}.")
    person = random.choice(list(world.place))
    return world.facts, f"Where is {person}?", world.place[person]


def _holders(random: Random, world: World) -> list[str]:
    """Mostly people who carry something, so that the answers are not mostly none."""
    holders = [person for person in world.place if world.held[person]]
    return holders if holders and random.random() < 0.75 else list(world.place)


def _yes(true: bool) -> str:
    return "yes" if true else "no"
