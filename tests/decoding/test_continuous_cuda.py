"""Continuous batching on a GPU: recorded steps and admissions find what a batch finds."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from tests.decoding.test_continuous_search import SEARCHES, RandomFeed, ask, request, sentences
from tests.decoding.test_search_cuda import SIZE
from weft.decoding.continuous_search import search_continuously
from weft.decoding.cuda_graph_search import search_graphs_of
from weft.decoding.generate import generate
from weft.decoding.tensor_slots import TensorSlots
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    spec = {"kind": "transformer", "dim": 64, "heads": 4, "feedforward": 128, "encoder_layers": 2, "decoder_layers": 2}
    made: Model = build_model(spec, Sizes(SIZE, SIZE, True)).cuda().eval()
    return made


@pytest.mark.parametrize("kind", SEARCHES)
def test_texts_are_those_of_a_batch(model: Model, kind: str) -> None:
    recorder, chance = search_graphs_of(model), random.Random(kind)
    assert recorder is not None
    some = sentences(150, chance)
    with torch.inference_mode():
        plain = generate(model, [each.ids for each in some], request(some, kind))[0]
        for _ in range(3):
            feed, runner = RandomFeed(list(some), chance), recorder.runner(f"continuous {kind}")
            with closing(TensorSlots(model, replace(request(some, kind), max_tokens=[]), runner, 25, 64)) as slots:
                search_continuously(slots, feed.take(20), feed, ask(kind), lambda parts, texts: texts)
            alike = sum(feed.found[each.number][0].tokens == texts[0].tokens for each, texts in zip(some, plain, strict=True))
            assert alike >= 0.9 * len(some)  # rounding decides between the others
    assert not recorder.refused and any(what == "change" for what, _, _ in recorder.graphs)
