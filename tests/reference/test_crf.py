"""The linear-chain CRF against sums and maxima over all sequences of tags, written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from weft.tasks.tagging.crf import AllowedTransitions, LinearChainCrf
from weft.tasks.tagging.metrics import Scheme, find_entities, may_end, may_follow, may_start, tags_of, write_entities

LENGTHS = (4, 1, 3, 0)


def chain(tags: int, seed: int = 0) -> LinearChainCrf:
    made = LinearChainCrf(tags).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def sentences(tags: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Emissions with values everywhere, padding included, and where words are."""
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(len(LENGTHS), max(LENGTHS), tags, generator=generator, dtype=torch.float64)
    return emissions, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def score(made: LinearChainCrf, emissions: Tensor, path: tuple[int, ...]) -> float:
    """The score of a path through the words of one row, from the formula."""
    total = float(made.start.detach()[path[0]] + made.end.detach()[path[-1]])
    total += sum(float(emissions[place, tag]) for place, tag in enumerate(path))
    return total + sum(float(made.moves.detach()[a, b]) for a, b in itertools.pairwise(path))


def paths(made: LinearChainCrf, emissions: Tensor, length: int) -> dict[tuple[int, ...], float]:
    tags = range(emissions.size(-1))
    return {path: score(made, emissions, path) for path in itertools.product(tags, repeat=length)}


def test_sums_and_the_best_path_equal_enumeration() -> None:
    made, (emissions, ok) = chain(3), sentences(3)
    sums, best = made.log_partition(emissions, ok), made.viterbi(emissions, ok)
    for row, length in enumerate(LENGTHS[:-1]):
        every = paths(made, emissions[row], length)
        assert math.isclose(float(sums[row].detach()), math.log(sum(map(math.exp, every.values()))), rel_tol=1e-12)
        assert tuple(best[row, :length].tolist()) == max(every, key=every.__getitem__)
        for path, value in every.items():
            tags = torch.full((1, max(LENGTHS)), -100)
            tags[0, :length] = torch.tensor(path)
            found = made.score(emissions[row : row + 1], tags, ok[row : row + 1])
            assert math.isclose(float(found.detach()), value, rel_tol=1e-12, abs_tol=1e-12)


def test_a_row_without_words_adds_nothing() -> None:
    made, (emissions, ok) = chain(3), sentences(3)
    tags = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    assert made.log_probability(emissions, tags, ok)[-1] == 0
    assert made.viterbi(emissions, ok)[-1].tolist() == [0] * max(LENGTHS)


def test_without_transitions_it_is_a_softmax() -> None:
    made, (emissions, ok) = LinearChainCrf(5).double(), sentences(5)
    tags = torch.randint(5, ok.shape, generator=torch.Generator().manual_seed(3))
    words = emissions.log_softmax(-1).gather(2, tags[..., None])[..., 0]
    torch.testing.assert_close(made.log_probability(emissions, tags, ok), words.where(ok, 0.0).sum(1))
    torch.testing.assert_close(made.viterbi(emissions, ok), emissions.argmax(-1).where(ok, 0))


def test_padding_and_other_rows_change_nothing() -> None:
    made, (emissions, ok) = chain(4), sentences(4)
    other = torch.where(ok[..., None], emissions, 1e6)
    torch.testing.assert_close(made.log_partition(other, ok), made.log_partition(emissions, ok), rtol=0, atol=0)
    torch.testing.assert_close(made.viterbi(other, ok), made.viterbi(emissions, ok))
    for row, length in enumerate(LENGTHS[:-1]):
        alone = emissions[row : row + 1, :length], ok[row : row + 1, :length]
        torch.testing.assert_close(made.log_partition(*alone)[0], made.log_partition(emissions, ok)[row])
        torch.testing.assert_close(made.viterbi(*alone)[0], made.viterbi(emissions, ok)[row, :length])


def test_gradients_are_marginal_probabilities() -> None:
    made, (emissions, ok) = chain(3), sentences(3)
    emissions.requires_grad_()
    made.log_partition(emissions, ok).sum().backward()
    assert emissions.grad is not None
    torch.testing.assert_close(emissions.grad.sum(-1), ok.double())
    every = paths(made, emissions.detach()[0], LENGTHS[0])
    total = sum(map(math.exp, every.values()))
    share = sum(math.exp(value) for path, value in every.items() if path[1] == 2) / total
    assert math.isclose(float(emissions.grad[0, 1, 2]), share, rel_tol=1e-9)


def valid(tags: list[str], scheme: Scheme) -> bool:
    """Whether the scheme itself would write these tags, from the entities in them alone."""
    return write_entities(find_entities(tags), len(tags), scheme) == tags


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_the_rules_allow_exactly_the_valid_sequences(scheme: Scheme) -> None:
    names = tags_of(["LOC", "PER"], scheme)
    for sequence in itertools.product(names, repeat=3):
        follows = all(may_follow(a, b, scheme) for a, b in itertools.pairwise(sequence))
        allowed = may_start(sequence[0]) and follows and may_end(sequence[-1], scheme)
        assert allowed == valid(list(sequence), scheme), sequence


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_invalid_sequences_are_impossible(scheme: Scheme) -> None:
    names = tags_of(["LOC", "PER"], scheme)
    made = LinearChainCrf(len(names), AllowedTransitions.of(names, scheme))
    emissions = 1e3 * torch.randn(200, 7, len(names), generator=torch.Generator().manual_seed(0))
    ok = torch.arange(7) < torch.randint(1, 8, (200, 1), generator=torch.Generator().manual_seed(1))
    for row, best in zip(ok, made.viterbi(emissions, ok), strict=True):
        tags = [names[number] for number in best[row].tolist()]
        assert valid(tags, scheme), tags
    small, three = emissions[:1, :3] / 1e3, torch.ones(1, 3).bool()
    total = torch.zeros(())
    for sequence in itertools.product(range(len(names)), repeat=3):
        share = made.log_probability(small, torch.tensor([sequence]), three).exp()[0]
        assert (share > 0) == valid([names[number] for number in sequence], scheme)
        total = total + share.detach()
    assert math.isclose(float(total), 1.0, rel_tol=1e-5)


def test_gradients_are_finite_under_the_mask() -> None:
    names = tags_of(["LOC"], "bioes")
    made = LinearChainCrf(len(names), AllowedTransitions.of(names, "bioes"))
    emissions, ok = torch.randn(2, 5, len(names), requires_grad=True), torch.tensor([[True] * 5, [True] + [False] * 4])
    tags = torch.zeros(2, 5, dtype=torch.long)
    (-made.log_probability(emissions, tags, ok)).sum().backward()
    for parameter in (emissions, *made.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
