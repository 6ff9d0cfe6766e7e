"""A whole new task in one file: the number that a text stands for. Its texts are read by any encoder."""

import pytest
import torch

import weft
from tests.helpers import tiny
from weft.data.batch import EOS, LabelBatch, Layout, Source, pad
from weft.data.batching import lay_out, spread
from weft.data.corpus import Encoding
from weft.decoding.predictor import BatchItem, Prediction, Predictor
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft.models.pooling import MeanPooling
from weft.runs.translator import load_trained
from weft.runs.weight_files import read_tensors
from weft.tasks import TASKS
from weft.tasks.base import LOSS, Loss, Measure
from weft.tasks.classification.model import Classifier
from weft.tasks.corpus_task import CorpusTask


class NumberTask(CorpusTask):
    measures = (Measure("error", "mean error", higher_is_better=False), LOSS)

    def reopen(self):
        return Sizes(256)

    def encode(self, pairs, *, training, folder, progress):
        def columns(rows):
            return {"source": [[*text.encode(), EOS] for text, _ in rows], "value": [[float(value)] for _, value in rows]}, {}

        return Encoding("numbers", columns, {"source": "uint8", "value": "float32"}, ["source"]).prepare(pairs, folder=folder)

    def build(self, spec, sizes):
        encoder = build_encoder(spec, sizes)
        return Classifier(encoder, MeanPooling(encoder.width), labels=1)

    def collate(self, corpus, rows, **options):
        (entries, lengths), (values, _) = corpus.gather("source", rows), corpus.gather("value", rows)
        (layout,) = lay_out(lengths[:, None])
        return LabelBatch(torch.from_numpy(rows), Source(spread(entries, layout), layout), torch.from_numpy(values))

    def losses(self, model, batch, update):
        yield Loss((model(batch.source).logits[:, 0] - batch.labels).square().sum(), torch.tensor(len(batch.labels)))

    def evaluate(self, model):
        errors = torch.cat([model(batch.source).logits[:, 0] - batch.labels for batch in self.validation(model)])
        return {"error": errors.abs().mean().item(), "loss": errors.square().mean().item()}

    def predictor(self, model, resolved, warn=None):
        return NumberPredictor(model, resolved, warn)


class NumberPredictor(Predictor):
    def encode_input(self, inputs, first_line):
        return [[BatchItem([*line.encode(), EOS])] for line in inputs]

    def run(self, parts, control=None):
        layout = Layout.padded([part.size for part in parts])
        return self.model(Source(pad([part.ids for part in parts]), layout)).logits[:, 0].tolist()

    def join_outputs(self, given, parts, results):
        return Prediction(str(round(results[0])), results[0])


def test_train_evaluate_predict_save_resume_and_load(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "number", f"{__name__}:NumberTask")
    (tmp_path / "n.tsv").write_text("".join(f"{number % 8}{number // 8}\t{number // 8}\n" for number in range(64)))
    data = {"data": str(tmp_path / "n.tsv"), "valid": str(tmp_path / "n.tsv")}
    schedule = {"kind": "inverse_sqrt", "rate": 1e-2, "warmup": 40}
    sets = {**tiny.SETTINGS, "task": "number", "train.best_by": "error", "train.schedule": schedule}
    whole = weft.train("transformer-tiny", out=tmp_path / "whole", set=sets, **data)
    weft.train("transformer-tiny", out=tmp_path / "parts", set={**sets, "train.steps": 200}, **data)
    weft.train(out=tmp_path / "parts", resume=True, set={"train.steps": 400})
    one, two = (read_tensors(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    trained = load_trained(tmp_path / "whole", device="cpu")
    assert 0.4 > whole.scores["error"] == pytest.approx(trained.score(data["valid"])["error"], abs=1e-3)
    assert [each.text for each in trained.stream(["30", "16", "75"])] == ["0", "6", "5"]
