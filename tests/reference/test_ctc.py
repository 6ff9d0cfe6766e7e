"""Connectionist temporal classification against enumeration of all paths."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import torch

from weft.decoding.ctc_decoding import alignment_marks, best_paths, collapse, prefix_beams, texts_of
from weft.losses.ctc_loss import alignable, best_alignment, ctc_loss

BLANK = 2
"""Not the first symbol, and not PAD."""


def enumerated(logp: torch.Tensor) -> dict[tuple[int, ...], list[tuple[float, tuple[int, ...]]]]:
    """All paths with their log-probabilities, by text."""
    texts = defaultdict(list)
    for path in product(range(logp.size(1)), repeat=logp.size(0)):
        merged = [symbol for i, symbol in enumerate(path) if i == 0 or symbol != path[i - 1]]
        text = tuple(symbol for symbol in merged if symbol != BLANK)
        texts[text].append((sum(float(logp[t, symbol]) for t, symbol in enumerate(path)), path))
    return texts


def total(paths: list[tuple[float, tuple[int, ...]]]) -> float:
    return float(np.logaddexp.reduce([score for score, _ in paths]))


@pytest.mark.parametrize("length", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_best_alignment_equal_enumeration(length: int, seed: int) -> None:
    """All texts of up to 4 tokens at once, in rows with padding behind them; those without a path are counted."""
    logits = 2 * torch.randn(1, 7, 3, generator=torch.Generator().manual_seed(seed))
    paths = enumerated(logits[0, :length].log_softmax(-1))
    texts = [text for count in range(5) for text in product((0, 1), repeat=count)]
    rows = logits.expand(len(texts), 7, 3).contiguous().requires_grad_()
    targets = torch.tensor([[*text, *[0] * (4 - len(text))] for text in texts])
    lengths, counts = torch.full((len(texts),), length), torch.tensor([len(text) for text in texts])
    found = ctc_loss(rows, lengths, targets, counts, blank=BLANK)
    assert found.alignable.tolist() == [text in paths for text in texts]
    expected = [-total(paths[text]) if text in paths else 0.0 for text in texts]
    assert found.nll.tolist() == pytest.approx(expected, abs=1e-4)
    best = best_alignment(rows, lengths, targets, counts, blank=BLANK).tolist()
    for text, path in zip(texts, best, strict=True):
        wanted = max(paths[text])[1] if text in paths else (BLANK,) * length
        assert tuple(path) == (*wanted, *[BLANK] * (7 - length))
    found.nll.sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
    assert not rows.grad[:, length:].any()
    assert not rows.grad[~found.alignable].any()


def test_a_repeated_token_needs_a_blank() -> None:
    targets = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
    counts = torch.tensor([3, 3, 3, 1])
    assert alignable(torch.tensor([3, 3, 5, 1]), targets, counts).tolist() == [False, True, True, True]


@pytest.mark.parametrize("seed", range(2))
def test_prefix_beam_equals_enumeration(seed: int) -> None:
    logits = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([6, 4])
    for row, found in enumerate(prefix_beams(logits, lengths, blank=BLANK, width=200, best=200)):
        paths = enumerated(logits[row, : lengths[row]].log_softmax(-1))
        expected = {text: total(some) for text, some in paths.items()}
        assert {tuple(each.tokens): each.score for each in found} == pytest.approx(expected, abs=1e-4)
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
        path = max(one for some in paths.values() for one in some)
        greedy = texts_of(*best_paths(logits, lengths), lengths, blank=BLANK)[row]
        assert (greedy.tokens, greedy.score) == (collapse(path[1], BLANK), pytest.approx(path[0], abs=1e-4))


def test_prefix_beam_finds_a_text_whose_best_path_is_not_the_best() -> None:
    """Graves 2006, figure 2: the blank is best at each vector, but "a" has more paths."""
    logp, lengths = torch.tensor([[[0.4, 1e-9, 0.6], [0.4, 1e-9, 0.6]]]).log(), torch.tensor([2])
    assert prefix_beams(logp, lengths, blank=BLANK, width=2)[0][0].tokens == [0]
    assert texts_of(*best_paths(logp, lengths), lengths, blank=BLANK)[0].tokens == []


def test_a_bonus_moves_the_choice() -> None:
    logp, lengths = torch.tensor([[[0.4, 0.1, 0.5]]]).log(), torch.tensor([1])
    assert prefix_beams(logp, lengths, blank=BLANK, width=4)[0][0].tokens == []
    found = prefix_beams(logp, lengths, blank=BLANK, width=4, bonus=1.0)[0][0]
    assert found.tokens == [0]
    assert found.score == pytest.approx(np.log(0.4) + 1)


def test_a_text_without_tokens_has_no_marks() -> None:
    assert alignment_marks(torch.zeros(1, 5, BLANK + 1), torch.tensor([5]), [], blank=BLANK).shape == (0, 5)
    assert alignment_marks(torch.zeros(1, 5, BLANK + 1), torch.tensor([5]), [1], blank=BLANK).sum() > 0
