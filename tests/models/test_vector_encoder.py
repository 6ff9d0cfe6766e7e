"""A new encoder over vectors instead of ids, and a new front, added by two table entries; the built-in front works as well."""

import numpy as np
import pytest
import torch
from torch import nn

import weft
from tests import test_new_task
from tests.helpers import tiny
from weft.data.corpus import Encoding
from weft.models import ENCODERS, FRONTS
from weft.models.base import Encoded, Sizes
from weft.models.encoder_decoder import VectorEncoder
from weft.models.frontends.base import Frontend
from weft.runs.translator import load_trained
from weft.tasks import TASKS


class ScaledFront(Frontend):
    """Frames times a factor, projected.

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

    placeholder_sizes = reopen

    def encode(self, pairs, *, training, folder, progress):
        def columns(rows):
            frames = [np.eye(10, dtype=np.float32)[[int(digit) for digit in text]] for text, _ in rows]
            return {"source": frames, "value": [[float(value)] for _, value in rows]}, {}

        types = {"source": "(10,)float32", "value": "float32"}
        return Encoding("frames", columns, types, ["source"]).prepare(pairs, folder=folder)


@pytest.mark.parametrize("front", [{"kind": "scaled", "factor": 2.0}, {"kind": "frames", "convolutions": 1, "channels": 8}])
def test_an_encoder_of_vectors_trains_and_loads(front, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "frames", f"{__name__}:FrameTask")
    monkeypatch.setitem(FRONTS, "scaled", f"{__name__}:ScaledFront")
    monkeypatch.setitem(ENCODERS, "shallow", f"{__name__}:ShallowEncoder")
    (tmp_path / "n.tsv").write_text("".join(f"{n % 8}{n // 8}\t{n // 8 + n % 8}\n" for n in range(64)))
    data = {"data": str(tmp_path / "n.tsv"), "valid": str(tmp_path / "n.tsv")}
    sets = {key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")}
    model = {"kind": "composed", "front": front, "encoder": "shallow"}
    result = weft.train("transformer-tiny", out=tmp_path / "run", set={**sets, "task": "frames", "model": model}, **data)
    assert result.scores["error"] < 0.2
    trained = load_trained(tmp_path / "run", device="cpu")
    assert trained.config.model["encoder"] == {"kind": "shallow", "dim": 16}
    assert trained.score(data["valid"])["error"] == pytest.approx(result.scores["error"], abs=1e-3)
    with pytest.raises(weft.WeftError, match=r"model\.front: tokens reads tokens, but this task provides frames"):
        weft.train("transformer-tiny", out=tmp_path / "bad", set={**sets, "task": "frames"}, **data)
