"""Memory networks against a plain loop over the equations of Sukhbaatar et al. 2015, and their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.data.batch import EOS, Layout, Source
from weft_studies.answering.memory_network import MemoryEncoder, MemoryNetwork

WORDS, DIM, MEMORY = 23, 6, 4
STORIES = [
    [[5, 6, 7], [8, 9], [10, 11, 12, 13], [6, 5]],
    [[14, 5], [9, 9, 9]],
    [[5], [6], [7], [8], [9, 10], [11, 12], [5, 22]],  # more facts than the memory holds
    [[7, 8]],  # a question alone
]
OPTIONS = {"dim": DIM, "hops": 3, "memory": MEMORY, "tying": "adjacent", "position": True, "temporal": True, "empty": 0.3}


def make(**options: Any) -> MemoryNetwork:
    torch.manual_seed(1)
    network = MemoryNetwork(MemoryEncoder(WORDS, **{**OPTIONS, **options}), [5, 21, 9]).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    return network


def source(stories: list[list[list[int]]], extent: int | None = None) -> Source:
    rows = [[token for sentence in story for token in [*sentence, EOS]] for story in stories]
    layout = Layout.padded([len(row) for row in rows], extent)
    padded = [row + [17] * (layout.segments.size(1) - len(row)) for row in rows]  # what is in the padding must not matter
    return Source(torch.tensor(padded), layout)


def bag(table: Tensor, sentence: list[int], position: bool) -> Tensor:
    """Σ_j l_j · E x_j with l_kj = (1 − j/J) − (k/d)(1 − 2j/J), section 4.1."""
    total = torch.zeros(DIM, dtype=torch.float64)
    for j, word in enumerate(sentence, start=1):
        for k in range(1, DIM + 1):
            share = j / len(sentence)
            weight = (1 - share) - (k / DIM) * (1 - 2 * share) if position else 1.0
            total[k - 1] += weight * table[word, k - 1]
    return total


def by_hand(network: MemoryNetwork, story: list[list[int]], *, linear: bool = False) -> tuple[Tensor, list[list[float]]]:
    """The logits and the weights of each hop, the latest fact first."""
    encoder = network.encoder
    tables, times = [table.weight for table in encoder.tables], list(encoder.times)
    adjacent, position = encoder.tying == "adjacent", encoder.position
    *facts, question = story
    facts = facts[-MEMORY:][::-1]
    u = bag(tables[0] if adjacent else tables[2], question, position)
    looks = []
    for hop in range(encoder.hops):
        a, c = (hop, hop + 1) if adjacent else (0, 1)
        age = [[times[table][i] if times else 0.0 for i in range(len(facts))] for table in (a, c)]
        m = [bag(tables[a], fact, position) + age[0][i] for i, fact in enumerate(facts)]
        out = [bag(tables[c], fact, position) + age[1][i] for i, fact in enumerate(facts)]
        scores = [float(each @ u) for each in m]
        if linear:
            p = scores
        else:
            below = sum(math.exp(each) for each in scores)
            p = [math.exp(each) / below for each in scores]
        looks.append(p)
        o = sum((weight * each for weight, each in zip(p, out, strict=True)), torch.zeros(DIM, dtype=torch.float64))
        u = o + (u if adjacent else encoder.update.weight @ u)
    w = tables[-1][network.answers] if adjacent else network.output.weight
    return w @ u, looks


@pytest.mark.parametrize("tying", ["adjacent", "layer_wise"])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("linear", [False, True])
@torch.no_grad()
def test_it_equals_a_loop(tying: str, hops: int, plain: bool, linear: bool) -> None:
    network = make(tying=tying, hops=hops, position=not plain, temporal=not plain)
    found = network(source(STORIES), linear=linear)
    for row, story in enumerate(STORIES):
        logits, looks = by_hand(network, story, linear=linear)
        torch.testing.assert_close(found.logits[row], logits)
        facts = min(len(story) - 1, MEMORY)
        torch.testing.assert_close(found.weights[row, :, :facts], torch.tensor(looks, dtype=torch.float64).view(hops, facts))
        assert not found.weights[row, :, facts:].any()


@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch_or_its_padding() -> None:
    network = make()
    together = network(source(STORIES, 40)).logits
    for row, story in enumerate(STORIES):
        torch.testing.assert_close(network(source([story])).logits[0], together[row])
        alone = Source(source([story]).values, None)
        torch.testing.assert_close(network(alone).logits[0], together[row])


@torch.no_grad()
def test_without_times_the_order_of_facts_does_not_matter() -> None:
    story = STORIES[0]
    turned = [*story[:-1][::-1], story[-1]]
    for temporal in (False, True):
        network = make(temporal=temporal)
        same = torch.allclose(network(source([story])).logits, network(source([turned])).logits)
        assert same is not temporal


@torch.no_grad()
def test_without_positions_the_order_of_words_does_not_matter() -> None:
    story = STORIES[0]
    turned = [sentence[::-1] for sentence in story]
    for position in (False, True):
        network = make(position=position)
        same = torch.allclose(network(source([story])).logits, network(source([turned])).logits)
        assert same is not position


@torch.no_grad()
def test_uniform_attention_is_a_bag_of_facts() -> None:
    network = make(tying="layer_wise", hops=1, position=False, temporal=False)
    network.encoder.tables[2].weight.zero_()  # a question that says nothing
    story = STORIES[0]
    words = [word for fact in story[:-1] for word in fact]
    mean = network.encoder.tables[1].weight[words].sum(0) / (len(story) - 1)
    torch.testing.assert_close(network(source([story])).logits[0], network.output.weight @ mean)


@torch.no_grad()
def test_empty_memories_make_facts_older_in_training_only() -> None:
    network = make(memory=60, empty=0.999)
    story = [[5, 6]] * 3 + [[7]]
    calm = network(source([story])).logits
    torch.testing.assert_close(network(source([story])).logits, calm)
    times = network.train().encoder._times(torch.ones(1, 3, dtype=torch.bool))
    assert times.tolist() == [[1, 3, 5]]
    assert not torch.allclose(network(source([story])).logits, calm)


def test_every_table_learns() -> None:
    for tying in ("adjacent", "layer_wise"):
        network = make(tying=tying).train()
        network(source(STORIES)).logits.square().sum().backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())
