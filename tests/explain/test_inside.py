"""Every number of one prediction: what is recorded, that the formulas give it, and that nobody pays who does not listen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.explain.explanation import Explanation
from weft.explain.inside import Inside

RNN = {
    **{name: value for name, value in tiny.SETTINGS.items() if not name.startswith("model.")},
    "model.dim": 16,
    "model.encoder_dim": 24,
    "model.embedding": 8,
    "train.steps": 2,
}


@pytest.fixture(scope="module")
def rnn_run(shared_folder: Path) -> Path:
    """A hardly trained RNN with the attention of Bahdanau et al. 2015."""
    data = tiny.generated("reverse", 100)
    return tiny.once(
        shared_folder / "inside-rnn", lambda out: weft.train("rnn-bahdanau", out=out, set=RNN, data=data, valid=data)
    )


def of_run(run: Path, text: str = "a b c", **options: object) -> Inside:
    found = weft.load(run).explain(text, inside=True, **options)
    assert isinstance(found, Explanation) and found.inside is not None
    return found.inside


def holds(inside: Inside) -> None:
    for step in inside.values():
        if step.formula:
            np.testing.assert_allclose(step.recompute(), step.values, rtol=1e-4, atol=1e-5, err_msg=step.name)


def test_a_transformer_shows_every_step_by_formulas_that_hold(reverse_run: Path) -> None:
    inside = of_run(reverse_run)
    holds(inside)
    attention = "decoder.layers.0.mixer.attention"
    names = ["queries", "products", "scores", "masked scores", "weights", "context", "output"]
    order = list(inside)
    places = [order.index(f"{attention}.{name}") for name in names]
    assert places == sorted(places)
    assert inside["encoder.embedding"].labels["token"] == ["a", "b", "c", "end"]
    assert inside[f"{attention}.weights"].labels == {"query": ["c", "b", "a", "end"], "key": ["begin", "c", "b", "a"]}
    chances = inside["decoder.probabilities"]
    assert chances.labels["vocabulary"][chances.values[0].argmax()] == "c"


def test_operands_name_the_steps_that_they_come_from(reverse_run: Path) -> None:
    inside = of_run(reverse_run)
    for step in inside.values():
        for name, operand in step.operands.items():
            if not isinstance(operand, float | int) and operand.step:
                np.testing.assert_array_equal(operand.values, inside[operand.step].values, err_msg=f"{step.name} {name}")
    weights = inside["decoder.layers.0.cross.weights"].operands["scores"]
    assert not isinstance(weights, float) and weights.step == "decoder.layers.0.cross.scores"


def test_energies_weights_contexts_and_states_of_an_rnn(rnn_run: Path) -> None:
    """e, α, c and s of Bahdanau et al. 2015, by hand from the weights of the model."""
    inside = of_run(rnn_run, target="c b a")
    holds(inside)
    decoder = weft.load(rnn_run).model.decoder
    e, alpha, c = (inside[f"decoder.cross.{name}"] for name in ("scores", "weights", "context"))
    s, h = inside["decoder.stack.layers.0.state"], inside["encoder.stack.layers.0.states"]
    assert e.axes == alpha.axes == ("query", "key") and c.axes == ("query", "channel") and s.axes == ("token", "channel")
    score = decoder.cross.head.score
    before = torch.from_numpy(inside["decoder.stack.layers.0.state before"].values)
    with torch.no_grad():
        hidden = torch.tanh(score.query(before)[:, None] + score.key(torch.from_numpy(h.values))[None])
        energies = (hidden @ score.score.weight[0]).numpy()
    np.testing.assert_allclose(e.values, energies, rtol=1e-5, atol=1e-6)
    exponents = np.exp(e.values)
    np.testing.assert_allclose(alpha.values, exponents / exponents.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(c.values, alpha.values @ h.values, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(s.values[:-1], before[1:])


def test_nothing_is_recorded_unless_somebody_listens(reverse_run: Path) -> None:
    found = weft.load(reverse_run).explain("a b c")
    assert isinstance(found, Explanation) and found.inside is None


def test_recording_changes_no_bit(reverse_run: Path) -> None:
    from weft.decoding.score_given_targets import teacher_force
    from weft.layers.step_recorder import record_steps

    model = weft.load(reverse_run).model
    before = teacher_force(model, [5, 6, 7, 2], [7, 6, 5, 2])
    with record_steps(model):
        during = teacher_force(model, [5, 6, 7, 2], [7, 6, 5, 2])
    assert torch.equal(before.logp, during.logp)
