"""Readers against loops over words, written from the papers: BiDAF (Seo et al. 2017), R-Net (Wang et al. 2017), aligned
question vectors (Chen et al. 2017), and the attention-sum reader (Kadlec et al. 2016)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.loops_over_words import both_ways, embed, linear, mean, normalise, relu, softmax, sources
from weft.models.base import Sizes
from weft.tasks.reading.model import ReadingModel, answer_loss, best_span, build_reading_model

WORDS, WIDTH = 11, 4
IDENTITY = {"kind": "identity", "dim": WIDTH}
INSIDE = {"modeling": {"kind": "identity", "dim": 4 * WIDTH}, "ending": {"kind": "identity", "dim": 4 * WIDTH}}
PAIRS = [([4, 5, 6, 4], [7, 5]), ([8, 9], [4, 9, 10, 5, 6]), ([6, 6, 5], [6])]
"""The passage and the question of each row."""


def make(reader: dict[str, Any], encoder: dict[str, Any] = IDENTITY) -> ReadingModel:
    torch.manual_seed(0)
    spec = {"kind": "composed", "encoder": encoder}
    model = build_reading_model(spec, Sizes(WORDS), reader, 0.5).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / 2)
    return model


def self_matching(part: Any, m: list[Tensor]) -> list[Tensor]:
    """Equations 7 to 9 of R-Net, whose gate is that of equation 6."""
    joined = []
    for query in m:
        scores = [part.score.weight[0] @ torch.tanh(part.keys.weight @ key + part.queries.weight @ query) for key in m]
        both = torch.cat([query, mean(softmax(scores), m)])
        joined.append((part.gate.weight @ both).sigmoid() * both)
    return both_ways(joined, part.rnn.rnn)


def pointer_network(part: Any, m: list[Tensor], u: list[Tensor]) -> Tensor:
    """Equations 10 and 11 of R-Net."""
    pooling, cell = part.pooling, part.cell
    h = mean(softmax([pooling.questions.weight[0] @ torch.tanh(linear(pooling.hidden, x)) for x in u]), u)
    logits = []
    for _ in range(2):
        scores = [part.score.weight[0] @ torch.tanh(part.keys.weight @ x + part.queries.weight @ h) for x in m]
        x = mean(softmax(scores), m)
        ir, iz, ih = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
        hr, hz, hh = (cell.weight_hh @ h + cell.bias_hh).chunk(3)
        keep = (iz + hz).sigmoid()
        h = (1 - keep) * (ih + (ir + hr).sigmoid() * hh).tanh() + keep * h
        logits.append(torch.stack(scores))
    return torch.stack(logits, -1)


def aligned(reader: Any, passage: list[int], question: list[int]) -> list[Tensor]:
    """Section 3.2 of Chen et al.: f_align(p_i) = Σ_j a_ij E(q_j); what is added to each embedding of the passage."""
    front, part = reader.encoder.front, reader.aligned
    p, q = ([front.table.weight[word] * front.scale for word in text] for text in (passage, question))
    alpha = [relu(linear(part.alpha, x)) for x in q]
    return [part.project.weight @ mean(softmax([relu(linear(part.alpha, x)) @ each for each in alpha]), q) for x in p]


def bidaf(model: ReadingModel, passage: list[int], question: list[int]) -> Tensor:
    """Equations 1 to 3 of Seo et al., with normalised vectors in the place of LSTMs."""
    made: Any = model.reader
    extra = None if made.aligned is None else aligned(made, passage, question)
    h, u = embed(made.encoder, passage, extra), embed(made.encoder, question)
    w = made.similarity.weight[0]
    scores = [[w @ torch.cat([x, y, x * y]) for y in u] for x in h]
    found = [mean(softmax(row), u) for row in scores]
    summary = mean(softmax([max(row) for row in scores]), h)
    g = [torch.cat([x, y, x * y, x * summary]) for x, y in zip(h, found, strict=True)]
    m = [normalise(made.modeling.norm, x) for x in g]
    if made.matching is not None:
        m = self_matching(made.matching, m)
    if made.network is not None:
        return pointer_network(made.network, m, u)
    last = [normalise(made.ending.norm, x) for x in m]
    each = zip(g, m, last, strict=True)
    return torch.stack(
        [torch.stack([made.first.weight[0] @ torch.cat([x, y]), made.last.weight[0] @ torch.cat([x, z])]) for x, y, z in each]
    )


def attention_sum(model: ReadingModel, passage: list[int], question: list[int]) -> Tensor:
    """Equations 1 and 2 of Kadlec et al.: s_i ∝ exp(f_i(d) · g(q)); g(q) are the last states of both directions."""
    encoder: Any = model.reader.encoder
    read, asked = (
        both_ways([encoder.front.table.weight[word] * encoder.front.scale for word in text], encoder.stack.layers[0].rnn)
        for text in (passage, question)
    )
    half = len(asked[0]) // 2
    summary = torch.cat([asked[-1][:half], asked[0][half:]])
    return torch.stack([state @ summary for state in read])[:, None]


FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "bidaf": (bidaf, {"kind": "bidaf", **INSIDE}, IDENTITY),
    "aligned": (bidaf, {"kind": "bidaf", "aligned": True, **INSIDE}, IDENTITY),
    "self-matching": (bidaf, {"kind": "bidaf", "self_matching": True, **INSIDE}, IDENTITY),
    "pointer network": (bidaf, {"kind": "bidaf", "self_matching": True, "pointer": "network", **INSIDE}, IDENTITY),
    "attention-sum": (attention_sum, {"kind": "attention_sum"}, {"kind": "rnn", "cell": "gru", "dim": WIDTH, "dropout": 0.0}),
}


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_a_reader_is_its_loop_and_padding_changes_nothing(form: str) -> None:
    loop, reader, encoder = FORMS[form]
    model = make(reader, encoder)
    found = model(*sources(PAIRS))
    for row, (passage, question) in enumerate(PAIRS):
        logits = loop(model, passage, question)
        torch.testing.assert_close(found.logits[row, : len(passage)], logits.float(), check_dtype=False)
        assert (found.logits[row, len(passage) :] == -math.inf).all()
        alone = model(*sources([(passage, question)])).logits[0]
        torch.testing.assert_close(found.logits[row, : len(passage)], alone)


@torch.no_grad()
def test_both_attentions_are_shown() -> None:
    weights = make(FORMS["self-matching"][1])(*sources(PAIRS)).weights
    for row, (passage, question) in enumerate(PAIRS):
        torch.testing.assert_close(
            weights["passage"][row, : len(passage), : len(question)].sum(1), torch.ones(len(passage), dtype=torch.float64)
        )
        for name in ("question", "self"):
            assert weights[name][row, ..., : len(passage)].sum(-1).flatten()[0].item() == pytest.approx(1)
            assert not weights[name][row, ..., len(passage) :].any()


def test_the_loss_adds_up_the_probabilities_of_all_places() -> None:
    logits = torch.randn(2, 5, 2, dtype=torch.float64)
    logits[1, 3:] = -math.inf
    spans = torch.tensor([[[0, 1], [3, 4]], [[2, 2], [-100, -100]]])
    first, last = logits.softmax(1).unbind(-1)
    wanted = [first[0, 0] * last[0, 1] + first[0, 3] * last[0, 4], first[1, 2] * last[1, 2]]
    torch.testing.assert_close(answer_loss(logits, spans), -torch.stack(wanted).log())
    one = logits[..., :1]
    wanted = [one.softmax(1)[0, 0, 0] + one.softmax(1)[0, 3, 0], one.softmax(1)[1, 2, 0]]
    torch.testing.assert_close(answer_loss(one, spans), -torch.stack(wanted).log())


@pytest.mark.parametrize("longest", [1, 2, 7])
def test_the_best_span_equals_enumeration(longest: int) -> None:
    for seed in range(30):
        logits = torch.randn(7, 2, generator=torch.Generator().manual_seed(seed))
        logs = logits.log_softmax(0)
        spans = [(a, b) for a, b in itertools.product(range(7), repeat=2) if 0 <= b - a < longest]
        best = max(spans, key=lambda span: float(logs[span[0], 0] + logs[span[1], 1]))
        first, last, score = best_span(logits, longest)
        assert (first, last) == best and score == pytest.approx(float(logs[first, 0] + logs[last, 1]))
