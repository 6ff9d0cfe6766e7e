"""Bugs of mixers."""

from __future__ import annotations

from contract.planting import Bug

MIXERS = [
    Bug(
        "an attention in a self slot loses its layout",
        "mixers.base",
        "append=x, layout=layout, need",
        "append=x, need",
        ("mixer-full-encoder-padding-content",),
    ),
    Bug(
        "an attention in a self slot hides what it reaches",
        "mixers.base",
        "attention.weights_sum, attention.reach, attention.terms",
        'attention.weights_sum, "all", attention.terms',
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
        "x = torch.where(layout.ok[..., None], x, 0)",
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
        "a causal convolution looks both ways",
        "layers.convolution",
        "torch.cat([tail.to(x.dtype), x], 1)",
        "torch.cat([tail[:, 1:].to(x.dtype), x, x[:, -1:]], 1)",
        ("convolution-causal-future",),
    ),
    Bug(
        "the state of a GRU is that after the padding",
        "mixers.recurrent",
        "            if layout is not None:\n                count",
        "            if False:\n                count",
        ("recurrent-causal-ragged",),
    ),
    Bug(
        "the state of a GRU is one token old",
        "mixers.recurrent",
        "at = (count - 1).clamp_min(0)",
        "at = (count - 2).clamp_min(0)",
        ("recurrent-causal-ragged",),
    ),
    Bug(
        "lower layers of a GRU run on into the padding",
        "mixers.recurrent",
        "hidden = torch.where(layout.ok[None, :, t, None], new, hidden)",
        "hidden = new",
        ("recurrent-two-layers-causal-ragged",),
    ),
    Bug(
        "the way back begins in the padding",
        "layers.recurrent",
        "torch.arange(x.size(1), device=x.device), layout.lengths[:, None]",
        "torch.arange(x.size(1), device=x.device), torch.full_like(layout.lengths, x.size(1))[:, None]",
        ("recurrent-encoder-padding-length",),
    ),
    Bug(
        "the way back is not turned round again",
        "mixers.recurrent",
        "torch.cat([forth, turn_round(back, layout)], -1)",
        "torch.cat([forth, back], -1)",
        ("limits: recurrent_encoder_is_a_gru_each_way",),
    ),
]
