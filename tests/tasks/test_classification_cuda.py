"""Classifiers on a GPU: batches of few sizes whose work is recorded and replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.gradient_descent import losses
from weft.attention.mixers import SELF
from weft.config.sections import Config
from weft.data.batch import LabelBatch
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.tasks.base import TaskContext
from weft.tasks.classification.data import Labels, make_labelled
from weft.tasks.classification.task import ClassificationTask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VOCABULARY = 40


def batch(seed: int) -> LabelBatch:
    draw = np.random.default_rng(seed)
    lengths, labels = draw.integers(3, 30, 5), draw.integers(0, 3, 5)
    lengths[0] = 30
    words = draw.integers(4, VOCABULARY, lengths.sum())
    return make_labelled(words, labels, lengths, budget=256, rounded=True)


def found(kind: str, *, recorded: bool) -> list[float]:
    """Losses of six updates."""
    task = ClassificationTask(TaskContext(Config(), Path()), dropout=0.0)
    task.labels = Labels(["yes", "no", "maybe"])
    torch.manual_seed(0)
    sizes = {"dim": 64, "heads": 2, "feedforward": 64, "encoder_layers": 2, "dropout": 0.0}
    spec: dict[str, Any] = {"kind": "transformer", **sizes, "encoder_self": {"kind": kind}}
    model = task.build(spec, Sizes(VOCABULARY)).cuda().train()
    return losses(task, model, map(batch, range(6)), recorded=recorded)


@pytest.mark.parametrize("kind", list(SELF))
def test_replayed_batches_have_the_usual_losses(kind: str) -> None:
    try:
        usual = found(kind, recorded=False)
    except ConfigError as error:
        pytest.skip(str(error))
    assert found(kind, recorded=True) == pytest.approx(usual, rel=5e-3)
