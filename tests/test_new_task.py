"""A whole new task in one file: the number that a text stands for, read by any encoder and averaged over its positions."""

import torch

from weft.batch import EOS, LabelBatch, Layout, Source
from weft.data.batching import Batches, evaluation_batches, lay_out, spread
from weft.data.corpus import Column, prepare
from weft.data.formats import open_pairs
from weft.inference.predictor import Part, Prediction, Predictor, pad
from weft.models.base import Sizes
from weft.models.classifier import Classifier
from weft.models.composing import build_encoder
from weft.pooling.mean_max import MeanPooling
from weft.tasks.base import LOSS, Loss, Measure, Task


class NumberPredictor(Predictor):
    def read(self, inputs, first_line):
        return [[Part([*line.encode(), EOS])] for line in inputs]

    def run(self, parts, control=None):
        layout = Layout.padded([len(part.ids) for part in parts])
        return self.model(Source(pad([part.ids for part in parts]), layout)).logits[:, 0].tolist()

    def join(self, given, parts, results):
        return Prediction(f"{results[0]:.0f}", results[0])


class NumberTask(Task):
    measures = (Measure("error", "mean error", higher_is_better=False), LOSS)

    def __init__(self, setting):
        self.config, self.run = setting.config, setting.run

    def prepare(self):
        self.train, self.valid = (self.corpus(open_pairs(*specs)) for specs in (self.config.data.train, self.config.data.valid))
        return self.reopen()

    def reopen(self):
        return Sizes(256)

    def corpus(self, pairs):
        def encode(chunk):
            return {"source": [[*text.encode(), EOS] for text, _ in chunk], "value": [[float(value)] for _, value in chunk]}, {}

        columns = {"source": Column("uint8"), "value": Column("float32")}
        return prepare(pairs, pairs.digest(), encode, columns, sized=["source"], folder=self.run / "cache", name=pairs.name)

    def build(self, spec, sizes):
        encoder = build_encoder(spec, sizes)
        return Classifier(encoder, MeanPooling(encoder.width), labels=1)

    def batch(self, corpus, rows):
        (entries, lengths), (values, _) = corpus.gather("source", rows), corpus.gather("value", rows)
        (layout,) = lay_out(lengths[:, None])
        return LabelBatch(torch.from_numpy(rows), Source(spread(entries, layout), layout), torch.from_numpy(values))

    def batches(self, position):
        stream = Batches(self.train.lengths, 256, seed=1).stream(position)
        return ((self.batch(self.train, rows), after) for rows, after in stream)

    def errors(self, model, batch):
        return model(batch.source).logits[:, 0] - batch.labels

    def losses(self, model, batch, update):
        errors = self.errors(model, batch)
        yield Loss(errors.square().sum(), torch.tensor(len(errors)))

    def evaluate(self, model):
        errors = torch.cat([self.errors(model, self.batch(self.valid, rows)) for rows in evaluation_batches(self.valid, 999)])
        return {"error": errors.abs().mean().item(), "loss": errors.square().mean().item()}

    def predictor(self, model, resolved, warn=None):
        return NumberPredictor(model, resolved, warn)
