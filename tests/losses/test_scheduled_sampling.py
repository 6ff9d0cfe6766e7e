"""What a decoder is fed while it learns: each kind of sampling against its definition and in its limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.translation_task import make_batch, make_model, make_task, random_batch, the_loss, value
from weft.config.registry import build
from weft.data.batch import BOS, EOS, Layout, PairBatch, Source
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError
from weft.losses.log_likelihood import predictions
from weft.losses.scheduled_sampling import Sampling
from weft.models.base import Model

MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": {},
    "luong": {"style": "luong", "cell": "lstm", "input_feeding": True, "attention": {"kind": "dot"}},
    "transformer": {
        "kind": "transformer", "dim": 8, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 2
    },
    "convs2s": {"kind": "convs2s", "dim": 8, "channels": 8},
}  # fmt: skip
SCHEDULED = ["steps", "two_pass", "parallel"]


def make_sampling(kind: str, truth: float | None = None, **options: Any) -> Sampling:
    """With `truth`, that share of the truth in every update."""
    decay = {} if truth is None else {"decay": {"kind": "linear", "start": truth, "slope": 0}}
    sampling: Sampling = build("weft.losses:SAMPLINGS", {"kind": kind, **decay, **options})
    return sampling


def the_inputs(sampling: Sampling, model: Model, batch: PairBatch, update: int = 1, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    (fed,) = sampling.inputs(model, batch, update)
    return fed


def unsure(name: str) -> Model:
    """A model with predictions that depend on what it is fed, without dropout."""
    model = make_model(**{**MODELS[name], "dropout": 0.0})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.mark.parametrize("i", [0, 1, 10, 4000, 10**7])
def test_decays_follow_their_formulas(i: int) -> None:
    linear = build("weft.losses:DECAYS", {"kind": "linear", "start": 0.9, "slope": 0.01, "floor": 0.2})
    exponential = build("weft.losses:DECAYS", {"kind": "exponential", "base": 0.99})
    sigmoid = build("weft.losses:DECAYS", {"kind": "inverse_sigmoid", "k": 20.0})
    assert linear(i + 1) == pytest.approx(max(0.2, 0.9 - 0.01 * i))
    assert exponential(i + 1) == pytest.approx(0.99**i)
    assert sigmoid(i + 1) == pytest.approx(20 / (20 + math.exp(min(i / 20, 700))))


@pytest.mark.parametrize("kind", SCHEDULED)
def test_all_truth_is_teacher_forcing_to_the_bit(kind: str) -> None:
    model, batch = make_model(dropout=0.3), random_batch()
    sampling = {"kind": kind, "decay": {"kind": "linear", "start": 1, "slope": 0}}

    def loss(**options: Any) -> float:
        torch.manual_seed(1)
        return value(the_loss(make_task(**options), model, batch))

    assert loss(sampling=sampling) == loss()
    assert loss(sampling={**sampling, "decay": {"kind": "linear", "start": 0, "slope": 0}}) != loss()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["steps", "free"])
def test_no_truth_step_by_step_is_greedy_search(kind: str, name: str) -> None:
    model, batch = unsure(name), random_batch()
    fed = the_inputs(make_sampling(kind, None if kind == "free" else 0.0), model, batch)
    rows, extent = fed.shape
    limits = LengthLimits(torch.full((rows,), extent), torch.zeros(rows, dtype=torch.long), torch.arange(rows))
    with torch.no_grad():
        encoded = model.encode(batch.source)
        found, _ = run_search(
            model.decoder, encoded, GreedySelector(), SearchRequest(prefix=torch.full((rows, 1), BOS), limits=limits)
        )
    for row, length, (hypothesis, *_) in zip(fed.tolist(), batch.target_layout.counts, found, strict=True):
        said = hypothesis.tokens[: length - 1]
        assert row[0] == BOS and row[1 : 1 + len(said)] == said
        assert len(said) == length - 1 or said[-1] == EOS
        assert not any(row[length:])
    assert not torch.equal(fed, batch.target)


@pytest.mark.parametrize("name", MODELS)
def test_no_truth_in_two_passes_is_what_the_first_one_says_shifted(name: str) -> None:
    model, batch = unsure(name), random_batch()
    fed = the_inputs(make_sampling("two_pass", 0.0), model, batch)
    found = model(batch.source, batch.target, batch.target_layout)
    said = model.decoder.logits(found.hidden).argmax(-1)
    later = batch.target_layout.mask[:, 1:]
    assert torch.equal(fed[:, 0], batch.target[:, 0])
    assert torch.equal(fed[:, 1:][later], said[:, :-1][later])
    assert not fed[~batch.target_layout.mask].any()


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parallel_passes_as_tokens_are_step_by_step(name: str) -> None:
    model, batch = unsure(name), random_batch()
    steps = the_inputs(make_sampling("steps", 0.4), model, batch)
    parallel = [the_inputs(make_sampling("parallel", 0.4, passes=n), model, batch) for n in (1, batch.target.size(1) - 1)]
    assert torch.equal(parallel[1], steps)
    assert not torch.equal(parallel[0], steps)
    assert torch.equal(parallel[0], the_inputs(make_sampling("two_pass", 0.4), model, batch))


def test_packed_sentences_begin_with_bos_each() -> None:
    model, batch = unsure("transformer"), random_batch()
    lengths = [batch.source.layout.counts, batch.target_layout.counts]
    source, target = (Layout.pack(counts, sum(counts) + 3) for counts in lengths)

    def packed(tokens: Tensor, layout: Layout) -> Tensor:
        return torch.cat([tokens[layout.mask], torch.zeros(3, dtype=tokens.dtype)])[None]

    tokens = [
        packed(batch.source.values, batch.source.layout),
        *(packed(each, batch.target_layout) for each in (batch.target, batch.labels)),
    ]
    row = PairBatch(batch.rows, Source(tokens[0], source), tokens[1], target, tokens[2])
    padded = the_inputs(make_sampling("two_pass", 0.0), model, batch)
    assert torch.equal(the_inputs(make_sampling("two_pass", 0.0), model, row)[0, :-3], padded[batch.target_layout.mask])
    with pytest.raises(ConfigError, match=r"task.sampling: sampling token by token.*train.packed: false"):
        the_inputs(make_sampling("steps", 0.0), model, row)


@pytest.mark.parametrize("kind", SCHEDULED)
def test_about_the_share_of_the_truth_is_fed(kind: str) -> None:
    model, batch = make_model(50, dim=4), random_batch(rows=300, vocabulary=50)
    later = batch.target_layout.mask & (batch.target_layout.positions > 0)
    fed = the_inputs(make_sampling(kind, 0.3), model, batch)
    assert float((fed == batch.target)[later].double().mean()) == pytest.approx(0.3, abs=0.08)
    sampling = {"kind": kind, "decay": {"kind": "linear", "start": 0.3, "slope": 0}}
    loss = the_loss(make_task(sampling=sampling), model, batch)
    assert 0.3 < float(loss.metrics["true_inputs"] / loss.count) < 0.55  # BOS among them


@pytest.mark.parametrize("kind", SCHEDULED)
def test_inputs_depend_on_the_seed_and_the_update_alone(kind: str) -> None:
    model, batch = make_model(dropout=0.3), random_batch()
    decay = {"kind": "exponential", "base": 0.8}
    sampling = make_sampling(kind, decay=decay, choice="drawn")
    fresh = the_inputs(make_sampling(kind, decay=decay, choice="drawn"), model, batch, update=5)
    for update in range(1, 5):
        the_inputs(sampling, model, batch, update)
    assert torch.equal(the_inputs(sampling, model, batch, update=5), fresh)
    assert not torch.equal(the_inputs(sampling, model, batch, update=5, seed=2), fresh)
    assert torch.equal(the_inputs(sampling, model, batch, update=1), batch.target)


def test_drawn_predictions_have_the_models_probabilities() -> None:
    model = unsure("bahdanau")
    hidden = torch.randn(1, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    said = predictions(model.decoder, hidden.expand(200, 100, -1), "drawn")
    chances = model.decoder.logits(hidden)[0, 0].softmax(-1)
    assert torch.allclose(said.flatten().bincount(minlength=12) / 20000, chances.float(), atol=0.015)
    assert (predictions(model.decoder, hidden, "best") == chances.argmax()).all()


def test_both_passes_teach_half_and_half() -> None:
    model, batch = unsure("transformer"), random_batch()
    options = {"kind": "two_pass", "decay": {"kind": "linear", "start": 0, "slope": 0}}
    torch.manual_seed(1)
    losses = list(make_task(sampling={**options, "both": True}).losses(model, batch, 1))
    truth, mixed = value(the_loss(make_task(), model, batch)), value(the_loss(make_task(sampling=options), model, batch))
    assert [value(loss) for loss in losses] == pytest.approx([truth / 2, mixed / 2])
    assert sum(float(loss.count) for loss in losses) == float(batch.target_layout.mask.sum())


@pytest.mark.parametrize("kind", [*SCHEDULED, "free"])
def test_under_autocast_every_parameter_still_learns(kind: str) -> None:
    """Weights that autocast rounds while predicting, without gradient, must not stand for those that learn."""
    model, batch = unsure("transformer").float(), random_batch()
    options = {} if kind == "free" else {"decay": {"kind": "linear", "start": 0.5, "slope": 0}}
    with torch.autocast("cpu", torch.bfloat16):
        loss = the_loss(make_task(sampling={"kind": kind, **options}), model, batch)
    loss.total.backward()
    still = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert still == []


def test_a_single_token_has_nothing_to_sample() -> None:
    model, batch = make_model(), make_batch([[4]], [[]])
    for kind in SCHEDULED:
        assert torch.equal(the_inputs(make_sampling(kind, 0.0), model, batch), batch.target)
