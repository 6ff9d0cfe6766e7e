"""A recurrent translator of width 2 whose weights are chosen by hand, so that chapter 3 can compute it on paper."""

from __future__ import annotations

from pathlib import Path

import torch

import weft
from weft.data.batch import EOS

SETTINGS = {
    "data.tokenizer": "words",
    "model": {
        "kind": "composed",
        "encoder": {"kind": "identity", "dim": 2},
        "decoder": {
            "kind": "rnn",
            "style": "bahdanau",
            "cell": "gru",
            "dim": 2,
            "embedding": 2,
            "attention": {"kind": "additive"},
            "bridge": "tanh",
            "readout": "tanh",
            "dropout": 0.0,
        },
    },
    "train.steps": 1,
    "train.precision": "float32",
    "train.device": "cpu",
    "train.ema": 0,
    "train.validate_every": 0,
    "train.tensorboard": False,
    "decode.search": {"kind": "greedy"},
    "decode.max_length": 2,
}


def translator(folder: Path) -> weft.Translator:
    """The translator, a run in `folder` whose weights are then replaced.

    Its source has two states, h₁ = (1, 0) for the word ja and h₂ = (0, 1) for the end of the sentence. s₀ = (0.5, 0), W = U = I
    and v = (1, −1). The gates of the GRU are ½, and its candidate is tanh of the context, which the readout reads too.
    """
    pairs = folder / "pairs.tsv"
    pairs.write_text("ja\tyes\nnein\tno\n" * 10, "utf-8")
    weft.train("rnn-bahdanau", data=str(pairs), valid=str(pairs), out=folder / "run", set=SETTINGS)
    made = weft.load(folder / "run", device="cpu")
    for name, value in weights(made).items():
        made.model.get_parameter(name).data.copy_(value)
    return made


def weights(made: weft.Translator) -> dict[str, torch.Tensor]:
    """The weights by name; all that is not mentioned above is 0."""
    first, second, identity, zero = *torch.eye(2), torch.eye(2), torch.zeros(2, 2)
    source, target = torch.zeros(made.source.size, 2), torch.zeros(made.target.size, 2)
    (ja,), end = made.source.encode("ja"), EOS
    # Normalised, (10, −10) is (1, −1); times ½ plus ½ that is (1, 0).
    source[ja], source[end] = 10 * (first - second), 10 * (second - first)
    target[made.target.encode("yes")[0]], target[made.target.encode("no")[0]] = 4 * first, 4 * second
    return {
        "encoder.front.table.weight": source,
        "encoder.norm.weight": torch.full((2,), 0.5),
        "encoder.norm.bias": torch.full((2,), 0.5),
        "decoder.embedding.table.weight": target,
        "decoder.bridge.project.weight": zero,
        "decoder.bridge.project.bias": torch.atanh(torch.tensor([0.5, 0.0])),
        "decoder.cross.head.score.query.weight": identity,
        "decoder.cross.head.score.query.bias": torch.zeros(2),
        "decoder.cross.head.score.key.weight": identity,
        "decoder.cross.head.score.score.weight": (first - second)[None],
        # The rows of a GRU are its gates r and z, then the candidate; its columns are the last word, then the context.
        "decoder.stack.layers.0.rnn.weight_ih_l0": torch.cat([torch.zeros(4, 4), torch.cat([zero, identity], 1)]),
        "decoder.stack.layers.0.rnn.weight_hh_l0": torch.zeros(6, 2),
        "decoder.stack.layers.0.rnn.bias_ih_l0": torch.zeros(6),
        "decoder.stack.layers.0.rnn.bias_hh_l0": torch.zeros(6),
        "decoder.readout.mix.weight": torch.cat([zero, zero, identity], 1),
        "decoder.readout.mix.bias": torch.zeros(2),
    }
