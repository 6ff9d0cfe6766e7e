"""Every cross-attention, in the decoders that the full list of checks does not combine with all of them.

`contract.decoders` runs every check on every entry. Here a few checks show that decoder and attention fit together: the query,
the memory, the context, the state, and all gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.decoders import VARIANTS, DecoderEntry
from weft.attention import ATTENTIONS
from weft.config.registry import load

CHECKS = ("ragged", "rows", "padding", "loss")


def crosses() -> Iterator[DecoderEntry]:
    """ConvS2S with each kind of cross-attention instead of its own."""
    for kind in ATTENTIONS:
        if "cross" in load(ATTENTIONS, kind).uses and f"cross-{kind}" not in VARIANTS["convs2s"]:
            yield DecoderEntry("convs2s", f"cross-{kind}", {"cross": {"kind": kind}, "heads": 2})
