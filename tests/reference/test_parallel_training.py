"""What decoders that write all tokens at once learn from: blanks, masks, glances and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference.parallel_models import BLANK, SOURCES, decoder_of, make, pairs
from weft.config.sections import load_config
from weft.data.batch import EOS, PAD, Source
from weft.decoding.cpp_search import path_states
from weft.decoding.ctc_decoding import collapse, path_logits
from weft.losses.ctc_loss import best_alignment
from weft.models.nonautoregressive import LengthClassifier
from weft.tasks.base import TaskContext
from weft.tasks.nonautoregressive.fertility import counted_alignment, linked
from weft.tasks.nonautoregressive.task import (
    NonAutoregressiveTranslationTask,
    decoder_pass,
    glance,
    mask_some,
    with_fertilities,
)
from weft.tasks.translation.attention_alignment import TokenWeights


def test_every_number_of_masks_occurs() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(4, 10).repeat(3000, 1)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[:, 4:] = False
    masked = (mask_some(tokens, real, BLANK) == BLANK) & real
    counts = masked.sum(1).bincount(minlength=5).tolist()
    assert counts[0] == 0
    assert all(600 < count < 900 for count in counts[1:]), counts
    assert not (mask_some(tokens, real, BLANK) == BLANK)[:, 4:].any()


def test_glancing_shows_a_share_of_the_wrong_tokens() -> None:
    torch.manual_seed(0)
    truth = torch.tensor([[5, 6, 7, 8, 9, PAD], [5, 6, 7, 8, 9, 10]])
    predicted = torch.tensor([[5, 6, 7, 8, 9, 4], [9, 9, 9, 9, 9, 4]])
    shown = glance(truth, predicted, truth != PAD, 0.5, BLANK)
    assert (shown[0] == BLANK).all(), "nothing was wrong"
    assert (shown[1] != BLANK).sum() == 2, "half of the five wrong ones, rounded down"
    assert (shown[1][shown[1] != BLANK] == truth[1][shown[1] != BLANK]).all()


def task_of(**options: Any) -> NonAutoregressiveTranslationTask:
    config = load_config("nat-length").replaced({"task": {"kind": "parallel_translation", **options}})
    return NonAutoregressiveTranslationTask(TaskContext(config, Path()), **options)


TARGETS = [[6, 6, 7, 8], [9], [4, 10, 11, 12, 5]]


def test_the_loss_of_a_length_model_is_the_mean_over_its_tokens() -> None:
    """Σ −log p(token | blanks) − log p(T − S), as a plain loop over pairs without padding."""
    model = make("length")
    (loss,) = task_of(label_smoothing=0.0).losses(model, pairs(TARGETS), 1)
    decoder, total = decoder_of(model), 0.0
    plan = decoder.canvases
    assert isinstance(plan, LengthClassifier)
    with torch.no_grad():
        for row, target in zip(SOURCES, TARGETS, strict=True):
            source = model.encode(Source(torch.tensor([row])))
            blanks = torch.full((1, len(target)), BLANK)
            logp = decoder(blanks, decoder.init_state(source)).logits[0].log_softmax(-1)
            total -= float(sum(logp[place, token] for place, token in enumerate(target)))
            total -= float(plan.logp(source)[0, len(target) - len(row) + plan.offsets])
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-4)
    assert int(loss.count) == 10


def test_masked_tokens_alone_are_learned() -> None:
    model = make("length")
    torch.manual_seed(1)
    (loss,) = task_of(label_smoothing=0.0, masking=True).losses(model, pairs(TARGETS), 1)
    torch.manual_seed(1)
    labels = pairs(TARGETS).labels
    labels = labels.masked_fill(labels == EOS, PAD)
    assert int(loss.count) == int((mask_some(labels, labels != PAD, BLANK) == BLANK).sum())


def test_targets_without_a_path_are_counted_and_left_out() -> None:
    model, task = make("upsampled"), task_of(label_smoothing=0.0)
    (whole,) = task.losses(model, pairs(TARGETS), 1)
    (less,) = task.losses(model, pairs([TARGETS[0], [9, 9, 9, 9], TARGETS[2]]), 1)  # 7 symbols for 6 positions
    assert int(whole.metrics["unalignable"]) == 0
    assert int(less.metrics["unalignable"]) == 1
    assert int(less.count) == 9
    assert torch.isfinite(less.total)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("canvas", ["ratio", "length", "copied", "upsampled"])
def test_every_parameter_learns_from_a_glance(canvas: str, half: bool) -> None:
    model = make(canvas).float().train()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        (loss,) = task_of(glancing=0.5, glancing_end=0.3).losses(model, pairs(TARGETS), 1)
    loss.total.backward()
    assert [name for name, each in model.named_parameters() if each.grad is None or not each.grad.isfinite().all()] == []


def test_a_glance_at_a_path_shows_tokens_of_the_best_alignment() -> None:
    """With everything to be shown, what the decoder reads is the best alignment itself, and it spells the target."""
    model, task = make("upsampled"), task_of()
    batch = pairs(TARGETS)
    decoder, written = decoder_pass(model, batch)
    with torch.no_grad():
        shown = task._glance(decoder, model.encode(batch.source), written, torch.tensor(1.0))
        hidden, lengths = path_states(decoder, model.encode(batch.source))
        truth = best_alignment(path_logits(decoder, hidden), lengths, written.labels, written.lengths, blank=BLANK)
    for row, target in enumerate(TARGETS):
        assert collapse(truth[row].tolist(), BLANK) == target
        visible = shown[row] != BLANK
        assert visible.any()
        assert (shown[row][visible] == truth[row][visible]).all()


def test_fertilities_of_a_corpus_follow_its_words() -> None:
    """Source word n is translated by the target words n and n + 10, except that word 4 has no translation."""

    class Columns:
        def __init__(self) -> None:
            draw = np.random.default_rng(0)
            self.sources = [draw.integers(4, 10, draw.integers(2, 7)) for _ in range(300)]

        def __len__(self) -> int:
            return len(self.sources)

        def row(self, name: str, row: int) -> Any:
            source = self.sources[row]
            target = [each + more for each in source if each != 4 for more in (0, 10)]
            return np.array([*(source if name == "source" else target), EOS], np.int32)

    count = counted_alignment(Columns(), 40)  # type: ignore[arg-type]
    pairs = [([5, 4, 7, 8], [5, 15, 7, 17, 8, 18]), ([9, 39], [38, 9])]
    known, unknown = count([(np.array(source), np.array(target)) for source, target in pairs])
    assert known.tolist() == [2, 0, 2, 2]
    assert unknown.sum() == 2, "unknown words are aligned as well"


def test_weights_of_a_teacher_are_projected_to_other_tokens() -> None:
    """The teacher reads words and links "ab" with "w" and "cd" with "xyz"; the student reads characters."""
    teacher = TokenWeights(np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0]], np.float32), [(0, 3), (3, 4)], [(0, 2), (2, 4), (4, 4)])
    letters = [(float(place), place + 1.0) for place in range(4)]
    found = linked(teacher.between(letters, letters))
    assert found[:2].sum() == 1 and found[2:].sum() == 3
    assert linked(np.zeros((4, 2))).tolist() == [2, 2], "without weights, along the diagonal"


def test_a_fertility_model_learns_tokens_and_fertilities() -> None:
    model = make("fertility").train()
    given = torch.tensor([[2, 0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]])
    batch = with_fertilities(pairs(TARGETS), given)
    (loss,) = task_of().losses(model, batch, 1)
    loss.total.backward()
    assert int(loss.count) == 10
    assert [name for name, each in model.named_parameters() if each.grad is None] == []
