"""The hierarchical attention network against a loop over the equations of Yang et al. 2016, in float64, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.base import Encoder, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.models.frontends.words_and_sentences import SentenceFrontend
from weft.models.pooling import SelfAttentivePooling
from weft.tasks.classification.model import Classifier

WORDS, WIDTH, LABELS = 17, 6, 3
DOCUMENTS = [[5, 1, 3], [2], [4, 4, 1, 6, 2]]
"""The number of words of each sentence of each document."""


def make(words: dict[str, Any] | None = None, sentences: dict[str, Any] | None = None) -> Classifier:
    torch.manual_seed(3)
    level = {"kind": "rnn", "dim": WIDTH, "dropout": 0.0}
    front = {"kind": "sentences", "encoder": words or level}
    encoder = build_encoder(
        {"kind": "composed", "front": front, "encoder": sentences or level}, Sizes(WORDS, reads="sentences")
    )
    model = Classifier(encoder, SelfAttentivePooling(encoder.width), LABELS).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def draw(sizes: Sequence[Sequence[int]] = DOCUMENTS) -> list[list[Tensor]]:
    """Random documents: one tensor of ids for each sentence."""
    torch.manual_seed(5)
    return [[torch.randint(4, WORDS, (size,)) for size in sentences] for sentences in sizes]


def source(documents: Sequence[Sequence[Tensor]], wider: int = 0, longer: int = 0, more: int = 0) -> Source:
    """Documents as a source, optionally with more padding: of sentences, of documents, and of sentences of no document."""
    rows = [sentence for document in documents for sentence in document]
    lengths = [len(row) for row in rows] + [0] * more
    words = Layout.padded(lengths, max(lengths) + wider)
    extent = words.segments.size(1)
    values = torch.stack([pad(row, (0, extent - len(row)), value=9) for row in rows] + [torch.full((extent,), 9)] * more)
    counts = [len(document) for document in documents]
    return Source(values, words, Layout.padded(counts, max(counts) + longer))


def gru(x: Tensor, h: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Equations 1 to 4; z of the paper is 1 − z of torch, and torch has a second bias."""
    wi, wh, bi, bh = weights
    (ir, iz, ih), (hr, hz, hh) = (wi @ x + bi).chunk(3), (wh @ h + bh).chunk(3)
    r, z = (ir + hr).sigmoid(), 1 - (iz + hz).sigmoid()
    return (1 - z) * h + z * (ih + r * hh).tanh()


def both_ways(vectors: Sequence[Tensor], rnn: nn.GRU) -> list[Tensor]:
    """The annotation of each vector: the states of both directions side by side."""
    ways = []
    for weights, order in zip(rnn.all_weights, (vectors, vectors[::-1]), strict=True):
        state, states = torch.zeros(WIDTH // 2, dtype=torch.float64), []
        for vector in order:
            state = gru(vector, state, weights)
            states.append(state)
        ways.append(states)
    return [torch.cat(pair) for pair in zip(ways[0], ways[1][::-1], strict=True)]


def attend(annotations: Sequence[Tensor], pooling: SelfAttentivePooling) -> tuple[Tensor, Tensor]:
    """Equations 5 to 7: u = tanh(W h + b), softmax of u · context, the weighted sum of h; and the weights."""
    context = pooling.questions.weight[0]
    scores = torch.stack([torch.tanh(pooling.hidden.weight @ h + pooling.hidden.bias) @ context for h in annotations])
    weights = scores.exp() / scores.exp().sum()
    return sum((w * h for w, h in zip(weights, annotations, strict=True)), torch.zeros(WIDTH)), weights


def parts(model: Classifier) -> tuple[SentenceFrontend, Any, SelfAttentivePooling]:
    encoder: Any = model.encoder
    assert isinstance(encoder, Encoder)
    assert isinstance(model.pooling, SelfAttentivePooling)
    return encoder.front, encoder, model.pooling


def read(model: Classifier, document: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The logits of a document and the weights of its sentences, word by word and sentence by sentence."""
    front, encoder, above = parts(model)
    table: Any = front.words.front
    vectors = []
    for sentence in document:
        embedded = [table.table.weight[word] * table.scale for word in sentence]
        vectors.append(attend(both_ways(embedded, front.words.stack.layers[0].rnn), front.pooling)[0])
    vector, weights = attend(both_ways(vectors, encoder.stack.layers[0].rnn), above)
    return model.output.weight @ vector + model.output.bias, weights


@torch.no_grad()
def test_han_equals_a_loop_over_the_equations() -> None:
    model, documents = make(), draw()
    judged = model(source(documents))
    for row, document in enumerate(documents):
        logits, weights = read(model, document)
        torch.testing.assert_close(judged.logits[row], logits)
        torch.testing.assert_close(judged.weights[row, 0, : len(document)], weights)
        assert not judged.weights[row, 0, len(document) :].any()


@torch.no_grad()
def test_padding_and_the_other_documents_change_nothing() -> None:
    model, documents = make(), draw()
    together = model(source(documents)).logits
    for options in ({"wider": 3}, {"longer": 2}, {"more": 4}, {"wider": 1, "longer": 1, "more": 1}):
        torch.testing.assert_close(model(source(documents, **options)).logits, together)
    for row, document in enumerate(documents):
        torch.testing.assert_close(model(source([document])).logits[0], together[row])
    torch.testing.assert_close(model(source(documents[::-1])).logits, together.flip(0))


@torch.no_grad()
def test_one_sentence_is_the_word_level_alone() -> None:
    """The upper level sees one vector, to which it gives all weight."""
    model, sizes = make(), [[5], [3], [1]]
    front, encoder, _ = parts(model)
    documents = draw(sizes)
    given = source(documents)
    judged = model(given)
    assert torch.equal(judged.weights, torch.ones(3, 1, 1).double())
    words = front.words(Source(given.values, given.layout))
    vectors = front.pooling(words.memory, words.layout).vectors
    torch.testing.assert_close(judged.logits, model.output(encoder.read(vectors, None).memory[:, 0]))
    assert torch.equal(judged.logits, model(Source(given.values, given.layout)).logits)


@torch.no_grad()
def test_a_context_of_zero_is_the_mean() -> None:
    model, documents = make(), draw()
    front, encoder, above = parts(model)
    for pooling in (front.pooling, above):
        assert isinstance(pooling, SelfAttentivePooling)
        pooling.questions.weight.zero_()
    judged = model(source(documents))
    for row, document in enumerate(documents):
        vectors = torch.stack([front.words(Source(sentence[None])).memory[0].mean(0) for sentence in document])
        torch.testing.assert_close(judged.logits[row], model.output(encoder.read(vectors[None], None).memory[0].mean(0)))
        torch.testing.assert_close(
            judged.weights[row, 0, : len(document)], torch.full((len(document),), 1.0 / len(document)).double()
        )


@torch.no_grad()
@pytest.mark.parametrize("kind", ["transformer", "convs2s", "bytenet", "rnn"])
def test_any_encoder_reads_words_and_sentences(kind: str) -> None:
    level = {"kind": kind, "dim": 8, "dropout": 0.0} | ({"heads": 2} if kind == "transformer" else {})
    above = {**level, "dim": 16} if kind == "convs2s" else level  # its memory holds keys and values side by side
    model, documents = make(level, above), draw()
    together = model(source(documents, wider=1, longer=1, more=1)).logits
    for row, document in enumerate(documents):
        torch.testing.assert_close(model(source([document])).logits[0], together[row])


def test_levels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"width of 8, but model.encoder reads 6; set the dim"):
        make({"kind": "rnn", "dim": 8})
    with pytest.raises(ConfigError, match="tokens reads tokens, but this task provides sentences; choose another front"):
        build_encoder({"kind": "transformer", "dim": 8}, Sizes(WORDS, reads="sentences"))
    with pytest.raises(ConfigError, match="sentences reads sentences, but this task provides tokens"):
        build_encoder({"kind": "composed", "front": {"kind": "sentences"}}, Sizes(WORDS))
