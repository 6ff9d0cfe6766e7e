"""Bugs of mixers."""

from __future__ import annotations

from tests.contract.planting import Bug

MIXERS = [
    Bug(
        "an attention in a self slot loses its layout",
        "attention.base",
        "append=x, layout=layout, need",
        "append=x, need",
        ("mixer-full-encoder-padding-content",),
    ),
    Bug(
        "an attention in a self slot hides its reach",
        "attention.base",
        '"weights_sum", "receptive_field", "extras"',
        '"weights_sum", "extras"',
        ("mixer-local-encoder-reach",),
    ),
    Bug(
        "the tail of a convolution is padding",
        "layers.convolution",
        "if layout is None:\n            return row[:",
        "if True:\n            return row[:",
        ("convolution-causal-ragged",),
    ),
    Bug(
        "the tail of a convolution is one token short",
        "layers.convolution",
        "return row[:, row.size(1) - keep :]",
        "return F.pad(row[:, row.size(1) - keep + 1 :], (0, 0, 1, 0))",
        ("convolution-causal-chunks",),
    ),
    Bug(
        "a convolution reads padding",
        "layers.convolution",
        "x = torch.where(layout.mask[..., None], x, 0)",
        "pass",
        ("convolution-encoder-padding-content",),
    ),
    Bug(
        "a convolution reads the neighbouring sentence",
        "layers.convolution",
        "if layout is not None and layout.packed:",
        "if False:",
        ("convolution-encoder-packed",),
    ),
    Bug(
        "a causal convolution sees the future",
        "layers.convolution",
        "torch.cat([tail.to(x.dtype), x], 1)",
        "torch.cat([tail[:, 1:].to(x.dtype), x, x[:, -1:]], 1)",
        ("convolution-causal-future",),
    ),
    Bug(
        "a recurrent mixer reads padding",
        "attention.mixers.convolution_and_recurrence",
        "self.stack(x, state, layout)",
        "self.stack(x, state, None)",
        ("recurrent-causal-ragged", "recurrent-encoder-padding-length"),
    ),
    Bug(
        "lower recurrent layers read padding",
        "layers.recurrent",
        "layer(x if mask is None else x * mask, before, layout)",
        "layer(x if mask is None else x * mask, before, layout if layer is self.layers[-1] else None)",
        ("recurrent-two-layers-causal-ragged",),
    ),
    Bug(
        "a recurrent encoder reads one way",
        "attention.mixers.convolution_and_recurrence",
        'both=site.use == "encoder"',
        "both=False",
        ("recurrent-encoder-reach",),
    ),
    Bug(
        "a recurrent decoder is bidirectional",
        "attention.mixers.convolution_and_recurrence",
        'both=site.use == "encoder"',
        "both=True",
        ("recurrent-causal-future", "recurrent-lstm-causal-chunks"),
    ),
    Bug(
        "rows are reversed with their padding",
        "layers.recurrent",
        "torch.arange(x.size(1), device=x.device), layout.lengths[:, None]",
        "torch.arange(x.size(1), device=x.device), torch.full_like(layout.lengths, x.size(1))[:, None]",
        ("rnn-sutskever-padding",),
    ),
]
