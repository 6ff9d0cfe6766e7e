"""The beam tree: every hypothesis that a search went on with, ended or dropped, and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from weft.batch import EOS
from weft.explain.explanation import Node
from weft.search.tables import Tables

Names = Callable[[int], str]


class BeamTree:
    """The tree of the first source of a traced search.

    `width` hypotheses go on at once; `penalty` is the α of the score that ended ones are ranked by, log-probability / lengthᵅ;
    `longest`: at so many tokens all end.
    """

    def __init__(self, tables: Tables, names: Names, width: int, penalty: float, longest: int) -> None:
        assert tables.candidates is not None and tables.scores is not None
        self.names, self.width, self.penalty, self.longest = names, width, penalty, longest
        parts = (tables.candidates.score, tables.candidates.parent, tables.candidates.token)
        count = int((~tables.scores[:, 0].isnan().any(-1)).sum())
        scores, parents, tokens = (part[:count, 0].tolist() for part in parts)
        self.steps = [list(zip(*step, strict=True)) for step in zip(scores, parents, tokens, strict=True)]
        running = (tables.parents, tables.tokens)
        self.running = [
            list(zip(*step, strict=True)) for step in zip(*(part[:count, 0].tolist() for part in running), strict=True)
        ]
        found = tables.found
        ended = zip(*(part[0].tolist() for part in (found.when, found.parent, found.token, found.best)), strict=True)
        self.ended = {place: score for *place_, score in ended if score > -math.inf for place in [tuple(place_)]}

    def nodes(self) -> list[Node]:
        """All hypotheses, step by step; those of a step from the best to the worst."""
        nodes: list[Node] = []
        before = {0: -1}
        for step, candidates in enumerate(self.steps):
            slots = {key: slot for slot, key in reversed(list(enumerate(self.running[step])))}
            last = min((score for score, parent, token in candidates if (parent, token) in slots), default=-math.inf)
            now: dict[int, int] = {}
            for rank, (score, parent, token) in enumerate(candidates):
                if score == -math.inf or parent not in before:
                    continue
                node = self._node(step, rank, (score, parent, token), before[parent], last, (parent, token) in slots)
                if node.fate == "kept":
                    now[slots[parent, token]] = len(nodes)
                nodes.append(node)
            before = now
        return _settled(nodes, len(self.steps))

    def _node(self, step: int, rank: int, candidate: tuple[float, int, int], parent: int, last: float, goes_on: bool) -> Node:
        score, slot, token = candidate
        name = self.names(token)
        if token == EOS or step + 1 >= self.longest:
            final = self.ended.get((step, slot, token))
            if final is not None:
                why = "ended" if token == EOS else f"cut off at the longest length, {self.longest} tokens"
                best = final == max(self.ended.values())
                why += ": the best of all" if best else f": one of the {len(self.ended)} best"
                return Node(step, name, parent, score, "finished", why, final, best)
            final = score / (step + 1) ** self.penalty
            why = (
                f"ended, but only the {self.width} best of a step may end"
                if rank >= self.width
                else "ended, but others ended better"
            )
            return Node(step, name, parent, score, "dropped", why, final)
        if goes_on:
            return Node(step, name, parent, score, "kept")
        why = f"place {rank + 1} of this step: {score:.2f} is below {last:.2f}, the last of the {self.width} that go on"
        return Node(step, name, parent, score, "dropped", why)


def _settled(nodes: list[Node], steps: int) -> list[Node]:
    """The nodes with the way to the best one marked, and with a reason for those that nothing follows."""
    parents = {node.parent for node in nodes if node.fate != "dropped"}
    at = next((place for place, node in enumerate(nodes) if node.best), -1)
    way = set()
    while at >= 0:
        way.add(at)
        at = nodes[at].parent
    found = []
    for place, node in enumerate(nodes):
        why = node.why
        if node.fate == "kept" and place not in parents:
            last = node.step == steps - 1
            why = (
                "the search was over: it could not become better than what had ended"
                if last
                else "none of its continuations was kept"
            )
        found.append(replace(node, why=why, best=place in way))
    return found
