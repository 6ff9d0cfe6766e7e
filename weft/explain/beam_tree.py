"""The beam tree: every hypothesis that a search kept, finished or dropped, and why."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from weft.data.batch import EOS
from weft.decoding.hypotheses import BackpointerTables
from weft.explain.explanation import Node


class BeamTree:
    """The beam tree of the first sentence of a traced search.

    width: the beam size · penalty: the α of the score log-probability / lengthᵅ that ranks finished hypotheses · longest:
    the maximum length, where every hypothesis ends.
    """

    def __init__(
        self, tables: BackpointerTables, names: Callable[[int], str], width: int, penalty: float, longest: int
    ) -> None:
        assert tables.candidates is not None and tables.scores is not None
        self.names, self.width, self.penalty, self.longest = names, width, penalty, longest
        count = int((~tables.scores[:, 0].isnan().any(-1)).sum())
        tried, found = tables.candidates, tables.selector_state
        self.steps = _tuples(*(part[:count, 0] for part in (tried.score, tried.parent, tried.token)))
        self.running = _tuples(tables.parents[:count, 0], tables.tokens[:count, 0])
        (ended,) = _tuples(*(part[:1] for part in (found.when, found.parent, found.token, found.best)))
        self.ended = {tuple(key): score for *key, score in ended if score > -math.inf}

    def nodes(self) -> list[Node]:
        """Returns all hypotheses step by step, the best of each step first."""
        nodes: list[Node] = []
        parents = {0: -1}
        for step, candidates in enumerate(self.steps):
            slots = {key: slot for slot, key in reversed(list(enumerate(self.running[step])))}
            last = min((score for score, parent, token in candidates if (parent, token) in slots), default=-math.inf)
            kept: dict[int, int] = {}
            for rank, (score, parent, token) in enumerate(candidates):
                if score == -math.inf or parent not in parents:
                    continue
                node = self._node(step, rank, (score, parent, token), parents[parent], last, (parent, token) in slots)
                if node.fate == "kept":
                    kept[slots[parent, token]] = len(nodes)
                nodes.append(node)
            parents = kept
        return _completed(nodes, len(self.steps))

    def _node(self, step: int, rank: int, candidate: tuple[float, int, int], parent: int, last: float, kept: bool) -> Node:
        score, slot, token = candidate
        name = self.names(token)
        if token == EOS or step + 1 >= self.longest:
            final = self.ended.get((step, slot, token))
            if final is not None:
                why = "ended" if token == EOS else f"cut off at the maximum length of {self.longest} tokens"
                best = final == max(self.ended.values())
                why += ": the best of all" if best else f": one of the {len(self.ended)} best"
                return Node(step, name, parent, score, "finished", why, final, best)
            final = score / (step + 1) ** self.penalty
            late = f"only the {self.width} best of a step may finish"
            why = f"ended, but {late if rank >= self.width else 'others finished with better scores'}"
            return Node(step, name, parent, score, "dropped", why, final)
        if kept:
            return Node(step, name, parent, score, "kept")
        why = f"rank {rank + 1} of this step: {score:.2f} is below {last:.2f}, the last of the {self.width} kept"
        return Node(step, name, parent, score, "dropped", why)


def _tuples(*matrices: Tensor) -> list[list[tuple[Any, ...]]]:
    """Returns the rows of matrices of the same shape, with a tuple of all entries at each place."""
    return [list(zip(*row, strict=True)) for row in zip(*(matrix.tolist() for matrix in matrices), strict=True)]


def _completed(nodes: list[Node], steps: int) -> list[Node]:
    """Marks the path to the best node, and adds a reason to kept nodes without children."""
    parents = {node.parent for node in nodes if node.fate != "dropped"}
    at = next((place for place, node in enumerate(nodes) if node.best), -1)
    path = set()
    while at >= 0:
        path.add(at)
        at = nodes[at].parent
    for place, node in enumerate(nodes):
        why = node.why
        if node.fate == "kept" and place not in parents:
            over = "the search ended: it could not become better than the finished ones"
            why = over if node.step == steps - 1 else "none of its continuations was kept"
        nodes[place] = replace(node, why=why, best=place in path)
    return nodes
