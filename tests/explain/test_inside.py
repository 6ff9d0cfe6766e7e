"""Every number of one prediction: what is recorded, that the formulas give it, and that nobody pays who does not listen."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn

import weft as package
from tests.helpers import tiny
from weft.attention.bahdanau import AdditiveAttention
from weft.attention.base import Site
from weft.data.batch import Layout, Source
from weft.decoding.score_given_targets import teacher_force
from weft.errors import ConfigError
from weft.explain.explanation import Explanation
from weft.explain.inside import Inside, record_inside
from weft.explain.inside_view import inside_data
from weft.layers.recurrent import RecurrentLayer
from weft.layers.step_recorder import record, record_steps
from weft_contract.mechanism_entries import Entry, entries
from weft_contract.model_entries import cross_variants, decoders, ids

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
        shared_folder / "inside-rnn", lambda out: package.train("rnn-bahdanau", out=out, set=RNN, data=data, valid=data)
    )


def of_run(run: Path, text: str = "a b c", **options: object) -> Inside:
    found = package.load(run).explain(text, inside=True, **options)
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
    decoder = package.load(rnn_run).model.decoder
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
    found = package.load(reverse_run).explain("a b c")
    assert isinstance(found, Explanation) and found.inside is None


def test_recording_changes_no_bit(reverse_run: Path) -> None:
    model = package.load(reverse_run).model
    before = teacher_force(model, [5, 6, 7, 2], [7, 6, 5, 2])
    with record_steps(model):
        during = teacher_force(model, [5, 6, 7, 2], [7, 6, 5, 2])
    assert torch.equal(before.logp, during.logp)


FAMILIES = {
    "convs2s": ["blocks.0.values A", "blocks.0.gates B", "blocks.0.gated", "layers.0.residual", "layers.0.cross.weights"],
    "bytenet": ["blocks.0.window of tokens", "blocks.0.residual", "decoder.source columns"],
    "rnn-luong": ["cross.scores", "cross.weights", "cross.context", "decoder.readout", "layers.0.forward reset gate"],
    "rnn-cross-monotonic": ["cross.energies", "cross.probabilities of stopping", "cross.weights"],
    "rnn-cross-hard": ["cross.probabilities", "cross.weights", "cross.context"],
    "transformer-self-xl_relative": ["attention.distance scores", "attention.content scores", "attention.weights"],
    "pointer": ["decoder.p_gen", "decoder.probabilities of copying", "decoder.mixture"],
}
"""Models of the contract suite, and steps that belong to their papers."""


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_shows_the_steps_of_its_paper(name: str) -> None:
    entry = next(each for each in (*decoders(), *cross_variants()) if str(each) == name)
    model = entry.make()
    with torch.no_grad(), record_inside(model) as recorder:
        encoded = model.encode(Source(ids(1, 6, seed=2)))
        model.decoder(ids(1, 5, seed=3), model.decoder.init_state(encoded))
    inside = Inside.of(recorder)
    for ending in FAMILIES[name]:
        assert inside.find(ending), f"{ending} is not among {list(inside)}"


def test_gates_are_those_of_the_fused_layers() -> None:
    """The states that follow from the gates are those that torch's GRU and LSTM return, in both directions."""
    for kind in ("gru", "lstm"):
        torch.manual_seed(1)
        layer, x = RecurrentLayer(kind, 3, 8, both=True), torch.randn(2, 5, 3)
        layout = Layout.padded((5, 3))
        with torch.no_grad(), record_steps(layer) as recorder:
            outputs, _ = layer(x, layer.init_state(2), layout)
        for row, length in enumerate((5, 3)):
            inside = Inside.of(recorder, row=row)
            both = np.concatenate([inside[f"{way} state"].values for way in ("forward", "backward")], -1)
            np.testing.assert_allclose(both[:length], outputs[row, :length], atol=1e-6)
            holds(inside)
        gate = inside["forward input gate" if kind == "lstm" else "forward update gate"].values
        assert ((gate > 0) & (gate < 1)).all()


def test_parts_of_other_packages_join_in() -> None:
    """A part names a step; layers of torch inside it are recorded by themselves, unless its own formula has their weights."""

    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            y = 2 * self.second(hidden)
            weights = (self.second.weight, "channel input")
            record("doubled", y, "row token channel", "2 * sum(W * h, input)", W=weights, h=(hidden, "row token input"))
            return y

    part = nn.Sequential(Doubled())
    with torch.no_grad(), record_steps(part) as recorder:
        part(torch.randn(1, 5, 3))
    inside = Inside.of(recorder)
    assert list(inside) == ["0.first", "0.doubled"]
    operand = inside["doubled"].operands["h"]
    assert not isinstance(operand, float) and operand.step == "0.first"
    holds(inside)


def test_calls_are_joined_and_only_the_last_run_is_kept() -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad(), record_steps(nn.ModuleDict({"a": layer, "b": nn.ReLU()})) as recorder:
        for length in (4, 1):
            layer(torch.zeros(1, length, 2))
    assert Inside.of(recorder)["a"].values.shape == (1, 2), "the first part began anew"
    attention = AdditiveAttention(Site("cross", 4))
    wrapped = nn.ModuleDict({"cross": attention})
    query, memory = torch.randn(1, 3, 4), torch.randn(1, 5, 4)
    with torch.no_grad(), record_inside(wrapped) as recorder:
        whole = attention(query, attention.init_state(memory)).context
        recorder.first, state = "", attention.init_state(memory)
        recorder.steps.clear()
        for step in query.split(1, 1):
            attention(step, state)
    inside = Inside.of(recorder)
    np.testing.assert_allclose(inside["context"].values, whole[0], atol=1e-6)
    assert inside["weights"].values.shape == (3, 5)
    holds(inside)


@pytest.mark.parametrize("entry", [each for each in entries() if not (each.variant or each.wrapped)], ids=str)
def test_every_mechanism_names_its_steps(entry: Entry) -> None:
    """Not only its linear layers, which are recorded by themselves."""
    part = entry.make()
    with torch.no_grad(), record_inside(nn.ModuleDict({"part": part.part})) as recorder:
        part.attend(part.keys(1, 9), need_weights=True)
    own = [step for step in recorder.found() if not step.automatic]
    assert sum(bool(step.formula) for step in own) > 2


def test_other_threads_are_not_recorded() -> None:
    layer = nn.Linear(2, 2)
    with record_steps(layer) as recorder:
        thread = Thread(target=lambda: record("x", torch.zeros(1), "row"))
        thread.start()
        thread.join()
    assert not recorder.steps


def test_a_name_is_found_by_its_end_or_refused_with_help(reverse_run: Path) -> None:
    inside = of_run(reverse_run)
    assert inside["cross.weights"] is inside["decoder.layers.0.cross.weights"]
    with pytest.raises(KeyError, match="give more of the name"):
        inside["weights"]
    with pytest.raises(KeyError, match="has all names"):
        inside["wait"]
    with pytest.raises(ConfigError, match="has no formula"):
        inside["encoder.front.ids"].recompute()


def test_the_command_writes_text_and_pages(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    weft("explain", reverse_run, "a b c", "--inside", "-o", tmp_path / "steps.txt")
    text = (tmp_path / "steps.txt").read_text("utf-8")
    part = text[text.index("decoder.layers.0.cross.weights [head 2, query 4, key 4]") :]
    lines = part.splitlines()
    assert lines[1:3] == ["  = softmax(scores, key)", "    scores: decoder.layers.0.cross.scores"]
    assert lines[3] == "  head 1" and lines[4].split() == ["a", "b", "c", "end"]
    assert sum(map(float, lines[5].split()[1:])) == pytest.approx(1, abs=1e-3)
    weft("explain", reverse_run, "a b c", "--inside", "-o", tmp_path / "page.html")
    assert "standardize" in (tmp_path / "page.html").read_text("utf-8")
    weft.fails("explain", reverse_run, "a b", "-o", tmp_path / "steps.txt", says=["steps.txt", "add --inside"])


def test_a_page_holds_fewer_tokens_rather_than_more_megabytes(reverse_run: Path) -> None:
    inside = of_run(reverse_run, "a b c d e f g", target="a b c d e f g")
    whole = inside_data(inside)
    small = inside_data(inside, budget=len(whole["numbers"]) // 2)
    shown = next(step for step in small["steps"] if step["title"] == "ids")
    assert shown["sizes"] == (8,) and shown["values"][1] == [4]
    assert len(small["numbers"]) < len(whole["numbers"])


def test_numbers_of_a_page_have_four_digits(reverse_run: Path) -> None:
    inside = of_run(reverse_run)
    data = inside_data(inside)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(data["numbers"])), np.uint8).reshape(4, -1)
    found = np.ascontiguousarray(planes.T).view("<f4")[:, 0]
    assert len(found) == data["count"]
    number = list(inside).index("decoder.layers.0.mixer.attention.masked scores")
    offset, shape = data["steps"][number]["values"]
    expected = inside["masked scores"].values if len(inside.find("masked scores")) == 1 else None
    assert expected is not None
    np.testing.assert_allclose(found[offset : offset + np.prod(shape)].reshape(shape), expected, rtol=2e-4)
