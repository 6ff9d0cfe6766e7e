"""Bugs of native plans."""

from __future__ import annotations

from tests.contract.planting import Bug

NATIVE = [
    Bug(
        "a plan without positions",
        "layers.embeddings_and_rotary_positions",
        "return draft.embed(self.table, self.scale, first_positions(self.position))",
        "return draft.embed(self.table, self.scale, None)",
        ("transformer-native", "language_model-native"),
    ),
    Bug(
        "a plan that forgets what it fed",
        "models.rnn",
        "draft.hold(fed, hidden)",
        "pass",
        ("rnn-input-feeding-native",),
    ),
    Bug(
        "a plan that begins with zeros",
        "models.rnn",
        "[*(torch.cat(cell, -1) for cell in first.layers), *more]",
        "[*(0 * torch.cat(cell, -1) for cell in first.layers), *more]",
        ("rnn-native", "rnn-sutskever-native"),
    ),
    Bug(
        "a plan that sees the padding of the source",
        "attention.core.rnn_attention",
        "return Keys.masked(self.keys, self.values, self.key_mask)",
        "return Keys.masked(self.keys, self.values, None)",
        ("rnn-native", "rnn-cross-dot-native"),
    ),
    Bug(
        "a plan that does not undo the loss of variance",
        "attention.multistep",
        "gain=self.counts[:, 1].float().sqrt()",
        "gain=None",
        ("convs2s-native",),
    ),
    Bug(
        "a window that forgets its tail",
        "layers.kernels.cpp_plan",
        "heads=width, width=dim, past=distance",
        "heads=1, width=dim, past=distance",
        ("convs2s-native",),
    ),
    Bug(
        "sums whose norm is one of the values",
        "attention.linear",
        "extended_width(layers.width)",
        "layers.width",
        ("transformer-cross-linear-native",),
    ),
    Bug(
        "a result is fused away although others read it",
        "layers.kernels.cpp_plan",
        "or readers[product.to] > 1",
        "",
        ("convs2s-native",),
    ),
    Bug(
        "registers are shared too early",
        "layers.kernels.cpp_plan",
        "if last[register] == at and at + 1 < len(ops):",
        "if at + 1 < len(ops):",
        ("transformer-native", "convs2s-native"),
    ),
]
