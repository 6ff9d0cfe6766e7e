"""Learning from rewards: the expected gradient is the exact one, whatever the baseline, and draws are those of the model."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.helpers import tiny
from tests.helpers.translation_task import gradient, make_batch, make_model
from weft.config.registry import build
from weft.data.batch import EOS
from weft.decoding.ngram_blocking_and_rules import FORBIDDEN
from weft.errors import ConfigError
from weft.evaluation.metrics import Bleu
from weft.losses.log_likelihood import log_likelihoods
from weft.losses.minimum_risk_and_reinforce import MinimumRisk, RewardLoss, SampledTexts, without_dropout
from weft.models.base import Model
from weft.runs.open_run import open_run
from weft.runs.weight_files import read_tensors
from weft.tasks.translation.task import TranslationTask
from weft.training import checkpoint

LETTERS = (4, 5)
TEXTS = [(*text, EOS) for length in range(2) for text in product(LETTERS, repeat=length)] + [*product(LETTERS, repeat=2)]
"""Everything that a model of two letters can write in at most two tokens."""
REWARD = torch.tensor([0.3, 0.9, 0.1, 0.2, 0.7, 0.4, 0.8], dtype=torch.float64)


def log_probabilities(model: Model) -> Tensor:
    """[7]: of all texts, given one source."""
    batch = make_batch([[4, 5, EOS]] * len(TEXTS), [text[:-1] for text in TEXTS])
    labels = batch.labels.clone()
    for row, text in enumerate(TEXTS):
        labels[row, len(text) - 1] = text[-1]
    found = model(batch.source, batch.target, batch.target_layout)
    return log_likelihoods(model.decoder, found.hidden, labels, FORBIDDEN).sum(1)


def objective(kind: str, **options: Any) -> Any:
    return build("weft.losses:REWARD_OBJECTIVES", {"kind": kind, **options})


def exact(model: Model) -> Tensor:
    """The gradient of the expected loss, −E[R]."""
    chances = log_probabilities(model).exp()
    assert float(chances.detach().sum()) == pytest.approx(1)
    return gradient(-(chances * REWARD).sum(), model)


def mean_gradient(model: Model, samples: int, **options: Any) -> Tensor:
    """The mean gradient of REINFORCE over everything that may be drawn."""
    chances, moving = log_probabilities(model).exp().detach(), torch.tensor(0.37, dtype=torch.float64)
    learner, total = objective("reinforce", samples=samples, **options), torch.zeros((), dtype=torch.float64)
    log_prob = log_probabilities(model)
    for rows in product(range(len(TEXTS)), repeat=samples):
        drawn = SampledTexts(log_prob[list(rows)][None], REWARD[list(rows)][None], torch.ones(1, samples, dtype=torch.bool))
        total = total + chances[list(rows)].prod() * learner.loss(drawn, moving if learner.moving else None).sum()
    return gradient(total, model)


def test_the_mean_gradient_of_reinforce_is_exact_with_every_baseline() -> None:
    model = make_model(6)
    expected = exact(model)
    assert float(expected.abs().max()) > 1e-4
    for samples, baseline in ((1, "none"), (1, "moving"), (2, "samples"), (2, "none")):
        found = mean_gradient(model, samples, baseline=baseline)
        assert torch.allclose(found, expected, atol=1e-12), baseline


def test_a_greedy_baseline_leaves_the_mean_gradient_as_it_is() -> None:
    model = make_model(6)
    chances, log_prob = log_probabilities(model).exp().detach(), log_probabilities(model)
    drawn = SampledTexts(log_prob[:, None], REWARD[:, None], torch.ones(7, 1, dtype=torch.bool), torch.full((7,), 0.6))
    assert torch.allclose(gradient((chances * objective("self_critical").loss(drawn)).sum(), model), exact(model), atol=1e-12)


def test_minimum_risk_is_its_formula_over_different_texts() -> None:
    log_prob = torch.tensor([[-1.0, -2.0, -1.0, -4.0]], requires_grad=True)
    reward = torch.tensor([[0.5, 0.1, 0.5, 1.0]])
    drawn = SampledTexts(log_prob, reward, torch.tensor([[True, True, False, True]]))
    shares = [math.exp(0.5 * value) for value in (-1, -2, -4)]
    expected = -sum(share * value for share, value in zip(shares, (0.5, 0.1, 1.0), strict=True)) / sum(shares)
    loss = objective("minimum_risk", alpha=0.5).loss(drawn)
    assert float(loss) == pytest.approx(expected)
    (slope,) = torch.autograd.grad(loss.sum(), log_prob)
    assert float(slope[0, 2]) == 0 and float(slope.sum()) == pytest.approx(0, abs=1e-7)
    constant = SampledTexts(log_prob, torch.ones(1, 4), drawn.first)
    assert torch.autograd.grad(objective("minimum_risk").loss(constant).sum(), log_prob)[0].abs().max() < 1e-7


def test_draws_have_the_probabilities_of_the_model_and_no_dropout(reverse_run: Path) -> None:
    task, model = opened(reverse_run, {"kind": "reinforce"})
    torch.manual_seed(0)
    model.train()
    source = [*task.source.encode("a b"), EOS]
    with torch.no_grad(), without_dropout(model):
        texts = [tuple(each) for row in task.draw(model, [source] * 50, 40) for each in row]
        unique = list(dict.fromkeys(texts))
        found = task.rewarding.log_probabilities(model, [source], [[list(each) for each in unique]])[0].exp()  # type: ignore[union-attr]
    assert model.training
    counts = Counter(texts)
    for each, chance in zip(unique, found.tolist(), strict=True):
        assert abs(counts[each] / len(texts) - chance) < 5 * math.sqrt(chance * (1 - chance) / len(texts)) + 1e-3


def test_in_bf16_the_gradient_reaches_every_weight(reverse_run: Path) -> None:
    task, model = opened(reverse_run, {"kind": "self_critical"})
    batch = make_batch([[4, 5, EOS]] * 4, [[5, 4]] * 4)
    with torch.autocast("cpu", torch.bfloat16):
        (loss,) = task.losses(model.train(), batch, 1)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def opened(run: Path, reward: dict[str, Any]) -> tuple[TranslationTask, Model]:
    trained = open_run(run, [f"task.reward={reward}".replace("'", "")])
    assert isinstance(trained.task, TranslationTask) and isinstance(trained.model, Model)
    return trained.task, trained.model


def test_rewards_are_those_of_texts(reverse_run: Path) -> None:
    task, _ = opened(reverse_run, {"kind": "reinforce"})
    assert task.rewarding is not None
    ids, short = ([*task.target.encode(text), EOS] for text in ("c b a", "c b"))
    found = task.rewarding.rewards([[ids, short]], [ids], [ids])
    bleu = Bleu(effective_order=True)
    assert found == [[1.0, pytest.approx(float(bleu.value(bleu.count(["c b"], ["c b a"]))[0]) / 100)]]
    chrf, constant = (build("weft.evaluation:REWARDS", kind) for kind in ("chrf", "constant"))
    assert chrf(["c b"], ["c b a"], ["a b c"])[0] < chrf(["c b a"], ["c b a"], ["a b c"])[0] == 1
    assert constant(["x"], ["y"], ["z"]) == [1.0]


REWARDED: dict[str, Any] = {
    "train.steps": 3,
    "train.save_every": 1,
    "train.validate_every": 0,
    "train.batch_tokens": 64,
    "train.log_every": 1,
    "train.keep_best": False,
    "train.schedule": {"kind": "constant", "rate": 0.001},
}


@pytest.mark.parametrize(
    "reward",
    [
        {"kind": "minimum_risk", "samples": 3, "teacher_weight": 0.5},
        {"kind": "reinforce", "samples": 2, "baseline": "moving", "metric": "chrf"},
        {"kind": "self_critical"},
    ],
    ids=lambda reward: str(reward["kind"]),
)
def test_a_run_on_rewards_resumes_exactly(reward: dict[str, Any], reverse_run: Path, tmp_path: Path) -> None:
    data = {"data": tiny.generated("reverse", 40), "valid": tiny.generated("reverse", 5, "valid")}
    weft.train(start=reverse_run, out=tmp_path / "whole", set={**REWARDED, "task.reward": reward}, **data)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for step in (2, 3):
        shutil.rmtree(checkpoint.folder_of(tmp_path / "killed", step))
    weft.train(out=tmp_path / "killed", resume=True)
    first, second, before = (
        read_tensors(run / "model.safetensors") for run in (tmp_path / "whole", tmp_path / "killed", reverse_run)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], before[name]) for name in first)
    assert "reward" in (tmp_path / "whole" / "log.jsonl").read_text()


def test_what_does_not_work_is_said() -> None:
    with pytest.raises(ConfigError, match="needs two or more texts"):
        objective("reinforce", samples=1)
    with pytest.raises(ConfigError, match="there is no 'blue'; did you mean 'bleu'"):
        objective("reinforce", metric="blue")


@pytest.mark.parametrize("found", [[1.0], [1.0, 2.0, 3.0], [1.0, math.nan], 1.0, None, ["a", "b"]])
def test_a_reward_is_a_number_for_each_text(found: Any) -> None:
    rewarding = object.__new__(RewardLoss)
    rewarding.objective = MinimumRisk(metric={"kind": "mine"})
    assert rewarding.checked([1, 2.5], 2) == [1.0, 2.5]
    with pytest.raises(ConfigError, match=r"task.reward.metric: mine has to return a finite number for each of 2 texts"):
        rewarding.checked(found, 2)
