"""Graph attention over the edges of the data, against a loop over neighbours (Veličković et al. 2018, equations 1 to 4)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference.formulas import Sentence
from tests.reference.formulas_mixers import gat
from tests.reference.test_every_mechanism_has_a_loop import prepare
from weft.attention.base import Site
from weft.attention.mixers import build_self
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.tasks.edges_between_words import with_graph

DIM, HEADS, LENGTHS = 8, 2, (5, 3, 6)
EDGES = [[(0, 4), (1, 2), (4, 2)], [], [(5, 0), (0, 0)]]


def layout(edges: list[list[tuple[int, int]]]) -> Layout:
    places = [place for some in edges for edge in some for place in edge]
    plain = Layout.padded(LENGTHS)
    made = with_graph(Source(plain.positions, plain), places, [2 * len(some) for some in edges]).layout
    assert made is not None
    return made


def test_a_token_sees_its_neighbours_alone() -> None:
    mixer, weights = prepare(build_self({"kind": "gat"}, Site("encoder", DIM, HEADS)))
    x = torch.randn(len(LENGTHS), max(LENGTHS), DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = layout(EDGES)
    with torch.no_grad():
        found = mixer(x, None, layout=graph).context
        noisy = mixer(torch.where(graph.mask[..., None], x, 1e3), None, layout=graph).context
        chosen = mixer(x[[2, 0]], None, layout=graph.select(torch.tensor([2, 0]))).context
        twice = mixer(x.repeat_interleave(2, 0), None, layout=graph.repeat(2)).context
        other = mixer(x, None, layout=layout([EDGES[2][:0], [(0, 1)], EDGES[0]])).context
    for row, (length, edges) in enumerate(zip(LENGTHS, EDGES, strict=True)):
        for i in range(length):
            near = sorted({i} | {j for edge in edges for j in edge if i in edge})
            sentence = Sentence(weights, x[row, near].numpy(), x[row, near].numpy(), False, HEADS, {})
            expected = gat(sentence)[near.index(i)]
            np.testing.assert_allclose(found[row, i].numpy(), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(noisy[graph.mask], found[graph.mask])
    torch.testing.assert_close(chosen, found[[2, 0]])
    torch.testing.assert_close(twice, found.repeat_interleave(2, 0))
    assert not torch.allclose(other[graph.mask], found[graph.mask])


def test_a_graph_is_never_lost() -> None:
    with pytest.raises(ConfigError, match="edges name no positions"):
        layout(EDGES).shorten(2, 3)


def test_edges_replace_the_distance_in_the_text() -> None:
    torch.manual_seed(0)
    near = build_self({"kind": "gat", "distance": 1}, Site("encoder", DIM, HEADS))
    every = build_self({"kind": "gat"}, Site("encoder", DIM, HEADS))
    every.load_state_dict(near.state_dict())
    x = torch.randn(len(LENGTHS), max(LENGTHS), DIM)
    torch.testing.assert_close(near(x, None, layout=layout(EDGES)).context, every(x, None, layout=layout(EDGES)).context)
