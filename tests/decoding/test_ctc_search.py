"""The search `ctc_beam`: one score decides what is kept, the order of the results, and what they report."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import torch

from tests.reference.parallel_models import decoder_of, found, make, sources
from weft.data.batch import EOS
from weft.decoding.beam_search import BeamSearch
from weft.decoding.cpp_search import path_states
from weft.decoding.ctc_decoding import CtcBeamSearch, CtcSearch, collapse, path_logits
from weft.decoding.greedy_search import GreedySearch
from weft.decoding.search_methods import Search
from weft.losses.ctc_loss import ctc_loss
from weft.tasks.translation.segmenter import TextSegment, Translation, join_segments


@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_the_first_text_is_the_same_however_many_are_wanted(bonus: float) -> None:
    model, draw = make("upsampled"), torch.Generator().manual_seed(5)
    rows = [[*torch.randint(5, 11, (1 + row % 6,), generator=draw).tolist(), EOS] for row in range(24)]
    alone = found(model, "ctc_beam", rows, best=1, width=8, length_bonus=bonus)
    several = found(model, "ctc_beam", rows, best=8, width=8, length_bonus=bonus)
    assert any(len(texts[0].tokens) != len(texts[-1].tokens) for texts in several), "normalising by length would matter"
    for (first,), texts in zip(alone, several, strict=True):
        assert first == texts[0]
        scores = [text.score for text in texts]
        assert len(texts) > 1 and scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("search", "whole"),
    [
        (CtcSearch(), -25.557),  # three log-probabilities of −8.519 are that of the text
        (CtcBeamSearch(), -25.557),
        (GreedySearch(length_penalty=0.0), -25.557),
        (GreedySearch(), -8.519),
        (BeamSearch(length_penalty=1.0), -8.519),
        (BeamSearch(length_penalty=1.0, length_offset=5.0), -8.519 * 3 * (8 / 6) / (14 / 6)),
    ],
)
def test_the_score_of_several_sentences_is_that_of_one_text(search: Search, whole: float) -> None:
    segment, part = TextSegment([5, EOS], []), Translation("a", -8.519, ids=[7, 8, EOS])
    assert join_segments([segment] * 3, [part] * 3, search).score == pytest.approx(whole)
    assert join_segments([segment] * 3, [part] * 3, None).score == pytest.approx(-8.519), "a reranker's"


@torch.inference_mode()
def test_scores_are_those_of_exhaustive_search() -> None:
    """With a beam that keeps everything, the texts are the most probable ones of all, with their log-probabilities."""
    model = make("upsampled")
    decoder = decoder_of(model)
    for row in ([7, EOS], [5, EOS], [10, EOS]):
        hidden, lengths = path_states(decoder, model.encode(sources([row])))
        logits = path_logits(decoder, hidden)
        logp, chances = logits[0].log_softmax(-1), defaultdict[tuple[int, ...], list[float]](list)
        symbols = [symbol for symbol in range(logp.size(1)) if logp[0, symbol] > -torch.inf]
        for path in product(symbols, repeat=int(lengths[0])):
            chances[tuple(collapse(path, decoder.blank))].append(float(sum(logp[t, symbol] for t, symbol in enumerate(path))))
        wanted = sorted(((float(np.logaddexp.reduce(each)), list(text)) for text, each in chances.items()), reverse=True)
        for text, (score, tokens) in zip(found(model, "ctc_beam", [row], best=4, width=500)[0], wanted, strict=False):
            assert text.tokens == tokens and text.score == pytest.approx(score, abs=1e-4)
            count = torch.tensor([len(tokens)])
            loss = ctc_loss(logits, lengths, torch.tensor([tokens], dtype=torch.long), count, blank=decoder.blank)
            assert text.score == pytest.approx(-float(loss.nll), abs=1e-4)
