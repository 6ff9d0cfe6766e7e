"""Bugs of mixing without attention, the traps of the published forms among them."""

from __future__ import annotations

from contract.planting import Bug

ATTENTION_FREE = [
    Bug(
        "a Fourier transform of the padded row",
        "mixers.fnet",
        "any(count != extent for count in layout.known)",
        "False",
        ("fnet-encoder-padding-length",),
    ),
    Bug(
        "a Fourier transform reads padding",
        "mixers.fnet",
        "torch.where(layout.ok[..., None], x, 0.0).float()",
        "x.float()",
        ("fnet-encoder-padding-content",),
    ),
    Bug(
        "angles of a chirp in half the digits they need",
        "mixers.fnet",
        "(place.square() % (2 * count)).double() / count",
        "place.square().float() / count",
        ("attention_free: fnet_keeps_its_precision_on_long_rows",),
    ),
    Bug(
        "the other half of the channels is not mirrored",
        "mixers.fnet",
        "(count - layout.positions) % count",
        "layout.positions % count",
        ("fnet-encoder-padding-length",),
    ),
    Bug(
        "keys are weighed relative to the largest to come",
        "layers.prefix",
        "top = torch.maximum(self.top, other.top)",
        "top = torch.maximum(self.top, other.top).amax(1, keepdim=True).expand_as(self.total)",
        ("attention_free: a_large_key_to_come_changes_nothing_before_it(simple)",),
    ),
    Bug(
        "keys among the chunk of queries are seen before they come",
        "mixers.aft",
        "seen = (own <= own[:, None])[..., None]",
        "seen = (own <= own[-1:, None])[..., None]",
        ("aft-full-causal-future",),
    ),
    Bug(
        "the sums of prefixes take padding for tokens",
        "mixers.aft",
        "Weighted.of(k, v, None if layout is None else layout.ok[..., None])",
        "Weighted.of(k, v)",
        ("aft-causal-ragged",),
    ),
    Bug(
        "a history counts padding",
        "mixers.history",
        "(extent if layout is None else layout.lengths)",
        "extent",
        ("gmlp-causal-ragged", "aft-local-causal-ragged"),
    ),
    Bug(
        "a history forgets how long it is",
        "mixers.history",
        "place = self.length[:, None] + ",
        "place = 0 * self.length[:, None] + ",
        ("gmlp-causal-chunks",),
    ),
    Bug("a gate sees the future", "mixers.gmlp", "weight.tril()", "weight", ("gmlp-causal-future",)),
    Bug(
        "a gate from a history sees cells without tokens",
        "mixers.gmlp",
        "cells <= place[..., None]",
        "cells >= 0",
        ("gmlp-causal-chunks",),
    ),
    Bug("a gate reads padding", "mixers.gmlp", "if layout is not None:", "if False:", ("gmlp-encoder-padding-content",)),
    Bug(
        "a network over positions reads padding",
        "mixers.mlp_mixer",
        "if layout is not None:",
        "if False:",
        ("mlp_mixer-encoder-padding-content",),
    ),
    Bug(
        "points look at padding",
        "mixers.isab",
        "-1, -1), x, layout)",
        "-1, -1), x)",
        ("isab-encoder-padding-content", "transformer-encoder-isab-padding"),
    ),
    Bug(
        "seeds look at padding",
        "pooling.pma",
        "F.relu(self.network(memory)), layout, need",
        "F.relu(self.network(memory)), None, need",
        ("pma-padding", "pma-weights"),
    ),
    Bug(
        "the pool of nothing is something",
        "pooling.pma",
        "if layout is not None:",
        "if False:",
        ("pma-empty-row",),
    ),
    Bug(
        "the largest value may be padding",
        "pooling.max",
        "memory.masked_fill(~layout.ok[..., None], -torch.inf)",
        "memory",
        ("max-padding",),
    ),
    Bug(
        "packed sentences are put back one row off",
        "layers.packing",
        "(layout.segments[0].long() - 1).clamp_min(0)",
        "layout.segments[0].long().clamp_min(0)",
        ("fnet-encoder-packed", "gmlp-causal-packed"),
    ),
    Bug(
        "pieces of padding are taken for sentences",
        "layers.packing",
        " & layout.ok[0][where]",
        "",
        ("attention_free: packed_sentences_come_apart_and_together",),
    ),
]
