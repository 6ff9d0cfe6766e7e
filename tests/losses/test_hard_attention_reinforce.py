"""REINFORCE in the translation task: its expected gradient is the exact one, whatever the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.translation_task import gradient, make_batch, make_model, make_task, the_loss, value
from weft.attention.hard import HardAttention
from weft.data.batch import Batch
from weft.errors import ConfigError
from weft.losses.hard_attention_reinforce import MovingBaseline, to_go
from weft.models.base import HiddenStates, Model

Draw = tuple[int, ...]
"""The source positions looked at, one a target position."""


def make_hard() -> Model:
    return make_model(8, attention={"kind": "hard"})


def look_at(rows: Sequence[Draw], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes hard attention look at these positions in place of drawn ones, step by step."""
    steps: Iterator[Tensor] = iter(torch.tensor(rows).t()[..., None, None])
    monkeypatch.setattr(HardAttention, "_choose", lambda self, log_probs: next(steps))


def outcome(model: Model, batch: Batch, rows: Sequence[Draw], monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, HiddenStates]:
    """(log-likelihood of the targets, what the model found) where attention looks at these positions."""
    look_at(rows, monkeypatch)
    found = model(batch.source, batch.target, batch.target_layout)
    return -model.decoder.loss(found.hidden, batch.labels)[0], found


def exact_gradient(model: Model, batch: Batch, draws: Sequence[tuple[Draw, ...]], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Of −E[log p(y)], summed over everything that may be drawn."""
    expected = torch.zeros((), dtype=torch.float64)
    for rows in draws:
        likelihood, found = outcome(model, batch, rows, monkeypatch)
        expected = expected + found.extras["log_prob"].where(batch.target_layout.mask, 0.0).sum().exp() * likelihood
    return gradient(-expected, model)


def test_with_two_draws_the_mean_gradient_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_hard(), make_batch([[4, 5]], [[6, 7]])
    task = make_task(draws=2, reinforce_discount=1.0, entropy_weight=0.0, label_smoothing=0.0)
    single = list(product(range(2), repeat=3))
    chance = {draw: outcome(model, batch, [draw], monkeypatch)[1].extras["log_prob"].sum().exp().detach() for draw in single}
    assert float(sum(chance.values())) == pytest.approx(1)
    mean = torch.zeros(model.count_parameters(), dtype=torch.float64)
    for pair in product(single, repeat=2):
        look_at(pair, monkeypatch)
        mean += chance[pair[0]] * chance[pair[1]] * gradient(the_loss(task, model, batch).total, model)
    assert torch.allclose(mean, exact_gradient(model, batch, [(draw,) for draw in single], monkeypatch), atol=1e-10)


def test_with_one_draw_the_mean_gradient_is_exact_and_padding_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_hard(), make_batch([[4, 5], [5, 7]], [[6], []])
    task = make_task(reinforce_discount=1.0, entropy_weight=0.0, label_smoothing=0.0)
    # The second target is shorter: there the second position is padding, and what is looked at does not matter.
    draws = [(first, (second, 0)) for first in product(range(2), repeat=2) for second in range(2)]
    mean = torch.zeros(model.count_parameters(), dtype=torch.float64)
    for rows in draws:
        _, found = outcome(model, batch, rows, monkeypatch)
        chance = found.extras["log_prob"].where(batch.target_layout.mask, 0.0).sum().exp().detach()
        look_at(rows, monkeypatch)
        mean += chance * gradient(the_loss(task, model, batch).total, model)
    assert torch.allclose(mean, exact_gradient(model, batch, draws, monkeypatch), atol=1e-10)


def test_the_loss_is_that_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_hard(), make_batch([[4, 5, 6]], [[6, 7]])
    task = make_task(draws=3, reinforce_weight=0.7, reinforce_discount=0.5, entropy_weight=0.2, label_smoothing=0.1)
    rows: list[Draw] = [(0, 1, 2), (2, 2, 1), (1, 0, 0)]
    thrice = batch.repeat(3)
    _, found = outcome(model, thrice, rows, monkeypatch)
    likelihoods = model.decoder.logits(found.hidden).log_softmax(-1).gather(-1, thrice.labels[..., None])[..., 0]
    expected = model.decoder.loss(found.hidden, thrice.labels, 0.1)[0]
    for k, t in product(range(3), range(3)):
        others = [likelihoods[other] for other in range(3) if other != k]
        advantages = [likelihoods[k, later] - sum(other[later] for other in others) / 2 for later in range(t, 3)]
        reward = sum(0.5**after * advantage for after, advantage in enumerate(advantages))
        expected = expected - 0.7 * reward * found.extras["log_prob"][k, t] - 0.2 * found.extras["entropy"][k, t]
    look_at(rows, monkeypatch)
    loss = the_loss(task, model, batch)
    assert value(loss) == pytest.approx(float(expected.detach()) / 3)
    assert int(loss.count) == 3
    assert float(loss.metrics["nll"]) == pytest.approx(-float(likelihoods.detach().sum()) / 3)
    assert float(loss.metrics["entropy"]) == pytest.approx(float(found.extras["entropy"].detach().sum()) / 3)


def test_the_moving_baseline_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Xu et al. 2015, section 4.1: b_k = 0.9 b_{k−1} + 0.1 log p(y | samples of batch k); batch k uses b_{k−1}."""
    model = make_hard()
    task = make_task(reinforce_baseline="moving", reinforce_discount=1.0, entropy_weight=0.0, label_smoothing=0.0)
    batches = [make_batch([[4, 5, 6], [5, 6]], [[6, 7], [4]]), make_batch([[7, 5, 6]], [[6]]), make_batch([[4]], [[5, 5]])]
    draws: list[list[Draw]] = [[(0, 1, 2), (1, 0, 0)], [(2, 0)], [(0, 0, 0)]]
    baseline = 0.0
    for batch, rows in zip(batches, draws, strict=True):
        _, found = outcome(model, batch, rows, monkeypatch)
        likelihoods = model.decoder.logits(found.hidden).log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
        expected, lengths, total = model.decoder.loss(found.hidden, batch.labels)[0], batch.target_layout.lengths.tolist(), 0.0
        for row, length in enumerate(lengths):
            for t in range(length):
                reward = sum(likelihoods[row, later].detach() - baseline for later in range(t, length))
                expected = expected - reward * found.extras["log_prob"][row, t]
            total += float(likelihoods[row, :length].detach().sum())
        look_at(rows, monkeypatch)
        assert value(the_loss(task, model, batch)) == pytest.approx(float(expected.detach()))
        baseline = 0.9 * baseline + 0.1 * total / sum(lengths)
    assert float(task.extra_state()["baseline/0"]) == pytest.approx(baseline)


def test_a_reward_that_is_no_number_does_not_move_the_baseline() -> None:
    baseline, real = MovingBaseline("reward"), torch.ones(2, dtype=torch.bool)
    baseline.move(torch.tensor([1.0, 3.0]), real)
    before = float(baseline.on(torch.device("cpu")))
    for wrong in (torch.nan, torch.inf, -torch.inf):
        baseline.move(torch.tensor([1.0, wrong]), real)
    assert float(baseline.on(torch.device("cpu"))) == before == pytest.approx(0.2)


def test_the_moving_baseline_survives_a_checkpoint() -> None:
    model, batch = make_hard(), make_batch([[4, 5, 6]], [[6, 7]])
    one, other = (make_task(reinforce_baseline="moving") for _ in range(2))
    the_loss(one, model, batch)
    other.load_extra_state(one.extra_state())
    torch.manual_seed(5)
    wanted = value(the_loss(one, model, batch))
    torch.manual_seed(5)
    assert value(the_loss(other, model, batch)) == wanted
    assert make_task().extra_state() == {}


@pytest.mark.parametrize("draws", [1, 2])
def test_what_is_drawn_depends_on_the_seed_alone(draws: int) -> None:
    model, task = make_hard(), make_task(draws=draws)
    batch = make_batch([[4, 5, 6, 7], [7, 4]], [[5, 6, 4], [4]])

    def total(seed: int) -> float:
        torch.manual_seed(seed)
        return value(the_loss(task, model, batch))

    assert total(1) == total(1)
    assert total(1) != total(2)


def test_one_sentence_alone_in_its_batch_learns_without_a_baseline() -> None:
    model, batch = make_hard(), make_batch([[4, 5]], [[6]])
    assert gradient(the_loss(make_task(), model, batch).total, model).isfinite().all()


def test_several_draws_of_a_model_that_draws_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.draws: 2 is for attention that samples, such as hard"):
        the_loss(make_task(draws=2), make_model(), make_batch([[4]], [[5]]))


@pytest.mark.parametrize("discount", [0.0, 0.3, 1.0])
def test_rewards_to_go_need_memory_that_is_linear_in_the_length(discount: float) -> None:
    values, largest = torch.randn(3, 37, dtype=torch.float64), 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            largest = max([largest, *(each.numel() for each in (made if isinstance(made, list | tuple) else [made]))])
            return made

    with Sizes():
        sums = to_go(values, discount)
    assert 0 < largest <= values.numel()
    wanted = [[sum(discount ** (k - t) * row[k] for k in range(t, 37)) for t in range(37)] for row in values.tolist()]
    torch.testing.assert_close(sums, torch.tensor(wanted, dtype=torch.float64))
