"""Twenty kinds of stories with questions, as in bAbI (Weston et al. 2015), drawn by simulating a small world.

The texts follow bAbI's, but they are not its files: every story ends with its only question, and splits share no story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from weft.data import babi_reasoning as reasoning
from weft.data import babi_world as world
from weft.data.babi_world import Story
from weft.errors import DataError

TASKS: Mapping[int, tuple[str, Callable[[Random], Story]]] = {
    1: ("one supporting fact", world.one_fact),
    2: ("two supporting facts", world.two_facts),
    3: ("three supporting facts", world.three_facts),
    4: ("two-argument relations", reasoning.two_arguments),
    5: ("three-argument relations", world.three_arguments),
    6: ("yes/no questions", world.yes_or_no),
    7: ("counting", world.counting),
    8: ("lists and sets", world.lists),
    9: ("simple negation", world.negation),
    10: ("indefinite knowledge", reasoning.indefinite),
    11: ("basic coreference", world.coreference),
    12: ("conjunction", world.conjunction),
    13: ("compound coreference", world.compound_coreference),
    14: ("time reasoning", reasoning.time),
    15: ("basic deduction", reasoning.deduction),
    16: ("basic induction", reasoning.induction),
    17: ("positional reasoning", reasoning.positions),
    18: ("size reasoning", reasoning.sizes),
    19: ("path finding", reasoning.paths),
    20: ("agent's motivations", reasoning.motivations),
}
"""Number → name and function that draws a story."""


def draw_story(random: Random, task: int) -> tuple[str, str, str]:
    """(subject, source, target) of a pair: the facts alone, the facts and the question with tabs between them, the answer."""
    if task not in TASKS:
        raise DataError(f"generated:babi: there is no task {task}; tasks are numbered from 1 to {max(TASKS)}.")
    facts, question, answer = TASKS[task][1](random)
    return "\t".join(facts), "\t".join([*facts, question]), answer
