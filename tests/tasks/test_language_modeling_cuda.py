"""Language models on a GPU: segments whose work is recorded and replayed, with what is carried between them."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.gradient_descent import losses
from weft.attention.mixers import SELF
from weft.config.sections import Config
from weft.data.batch import Batch, Position
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.base import TaskContext
from weft.tasks.language_modeling.data import Streams
from weft.tasks.language_modeling.task import LanguageModelTask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VOCABULARY, SEGMENT, ROWS = 40, 32, 4
SIZES = Sizes(VOCABULARY, VOCABULARY, True)


def batches(count: int) -> list[Batch]:
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, 20 * ROWS * SEGMENT + 1)
    return [batch for batch, _ in islice(Streams(tokens, SEGMENT, ROWS, 1, 0).stream(Position()), count)]


def found(spec: dict[str, Any], carry: str, *, recorded: bool) -> list[float]:
    """Losses of eight updates."""
    torch.manual_seed(0)
    # Positions that begin anew in every segment would be wrong for what is carried.
    position = "sinusoidal" if carry == "nothing" else "none"
    options = {"dim": 64, "heads": 2, "feedforward": 64, "decoder_layers": 2, "dropout": 0.0, "position": position}
    model = build_model({"kind": "language_model", **options, "decoder_self": spec}, SIZES).cuda().train()
    task = LanguageModelTask(TaskContext(Config(), Path()), segment=SEGMENT, carry=carry, memory=SEGMENT)  # type: ignore[arg-type]
    task.carrying.check(model, SEGMENT)
    return losses(task, model, batches(8), recorded=recorded)


@pytest.mark.parametrize("kind", list(SELF))
@pytest.mark.parametrize("carry", ["nothing", "memory", "state"])
def test_replayed_segments_have_the_usual_losses(kind: str, carry: str) -> None:
    try:
        usual = found({"kind": kind}, carry, recorded=False)
    except ConfigError as error:
        pytest.skip(str(error))
    assert found({"kind": kind}, carry, recorded=True) == pytest.approx(usual, rel=2e-3)


@pytest.mark.parametrize("style", ["plain", "attention", "ngram"])
@pytest.mark.parametrize("carry", ["nothing", "memory", "state"])
def test_replayed_segments_of_recurrent_models_have_the_usual_losses(style: str, carry: str) -> None:
    def losses_of(recorded: bool) -> list[float]:
        torch.manual_seed(0)
        attention = {"kind": "key_value", "parts": 3, "span": 4}
        spec = {"kind": "rnn_language_model", "cell": "lstm", "dim": 48, "style": style, "attention": attention, "dropout": 0.0}
        model = build_model(spec, SIZES).cuda().train()
        task = LanguageModelTask(TaskContext(Config(), Path()), segment=SEGMENT, carry=carry, memory=SEGMENT)  # type: ignore[arg-type]
        return losses(task, model, batches(8), recorded=recorded)

    assert losses_of(True) == pytest.approx(losses_of(False), rel=2e-3)
