"""A new encoder over vectors instead of ids, and its front, added by two table entries and trained by a task on frames."""

import numpy as np
import pytest
import test_new_task
import torch
from torch import nn

import weft
from weft.data.corpus import Column, prepare
from weft.models import ENCODERS, FRONTS
from weft.models.base import Encoded, Front, Sizes, VectorEncoder
from weft.tasks import TASKS
from weft.translator import load_trained


class ScaledFront(Front):
    """Frames times a factor.

    factor: by which frames are multiplied
    """

    def __init__(self, site, *, factor: float = 1.0):
        super().__init__()
        site.check("frames", "scaled")
        self.factor, self.project = factor, nn.Linear(site.sizes.source, site.width)

    def forward(self, source):
        return self.project(source.values * self.factor), source.layout


class ShallowEncoder(VectorEncoder):
    """One layer per position.

    dim: width
    """

    def __init__(self, *, dim: int = 16):
        super().__init__()
        self.layer, self.input_width, self.width = nn.Linear(dim, dim), dim, dim

    def read(self, x, layout):
        return Encoded(torch.relu(self.layer(x)), layout)


class FrameTask(test_new_task.NumberTask):
    def reopen(self):
        return Sizes(10, reads="frames")

    def corpus(self, pairs):
        def encode(chunk):
            frames = [np.eye(10)[[int(digit) for digit in text]] for text, _ in chunk]
            return {"source": frames, "value": [[float(value)] for _, value in chunk]}, {}

        columns = {"source": Column("float32", (10,)), "value": Column("float32")}
        return prepare(pairs, pairs.digest(), encode, columns, sized=["source"], folder=self.run / "cache", name=pairs.name)


@pytest.mark.parametrize("front", [{"kind": "scaled", "factor": 2.0}, {"kind": "frames", "convolutions": 1, "channels": 8}])
def test_an_encoder_of_frames_trains_and_loads(front, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "frames", f"{__name__}:FrameTask")
    monkeypatch.setitem(FRONTS, "scaled", f"{__name__}:ScaledFront")
    monkeypatch.setitem(ENCODERS, "shallow", f"{__name__}:ShallowEncoder")
    recipe, data = test_new_task.write(tmp_path, "frames", {"kind": "composed", "front": front, "encoder": "shallow"})
    result = weft.train(recipe, out=tmp_path / "run", **data)
    assert result.scores["error"] < 3.0
    trained = load_trained(tmp_path / "run", device="cpu")
    assert trained.config.model["encoder"] == {"kind": "shallow", "dim": 16}
    assert trained.score(data["valid"])["error"] == pytest.approx(result.scores["error"], rel=1e-4)
