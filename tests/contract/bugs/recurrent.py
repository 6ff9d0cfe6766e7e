"""Bugs of recurrent models."""

from __future__ import annotations

from tests.contract.planting import Bug

RECURRENT = [
    Bug(
        "recurrent layers read padding",
        "layers.recurrent",
        "counts = np.array(layout.counts, dtype=np.int64)",
        "counts = np.full(len(layout.counts), extent)",
        ("rnn-padding", "rnn-sutskever-padding", "rnn-luong-ragged"),
    ),
    Bug(
        "a row without a token remembers one",
        "layers.recurrent",
        "if packing.empty is not None:",
        "if False:",
        ("rnn-luong-ragged", "rnn-sutskever-ragged"),
    ),
    Bug(
        "padding of unknown length changes the state",
        "layers.recurrent",
        "marks[width : 2 * width, 0] = HELD",
        "pass",
        ("rnn-rounded", "rnn-sutskever-rounded"),
    ),
    Bug(
        "steps of padding are taken",
        "models.rnn",
        "else after_own_steps(history, layout)",
        "else history[-1]",
        ("rnn-ragged", "rnn-input-feeding-ragged"),
    ),
    Bug(
        "a recurrent decoder sees the padding of the source",
        "models.rnn",
        "self.cross.init_state(source.memory, source.layout)",
        "self.cross.init_state(source.memory)",
        ("rnn-padding",),
    ),
    Bug(
        "every row has the first source's context",
        "models.rnn",
        "context = spread(state.summary, x.size(0))[:, None].expand(-1, x.size(1), -1)",
        "context = state.summary[:1, None].expand(x.size(0), x.size(1), -1)",
        ("rnn-cho-beams", "rnn-cho-rows"),
    ),
    Bug(
        "the fed-back context is lost between calls",
        "models.rnn",
        "fed=last[-1][0] if self.input_feeding else None, attention=attention)",
        "attention=attention)",
        ("rnn-input-feeding-chunks",),
    ),
    Bug(
        "dropout between recurrent layers outside training",
        "layers.recurrent",
        "if not self.training or self.share == 0:",
        "if self.share == 0:",
        ("rnn-deep-maxout-pure",),
    ),
    Bug(
        "a decoder that is bidirectional",
        "layers.recurrent",
        "read = x if packing is None else packing.pack(x)",
        "read = x + x.flip(1) if packing is None else packing.pack(x)",
        ("rnn-luong-causality",),
    ),
]
