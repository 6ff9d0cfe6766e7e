"""Every attention that looks at a source, in the decoders that are not tested with each of them at full length.

A model's own entries are in `contract.decoders`; there every check is made of every entry. Here a handful of checks shows that
the two fit each other: the query, the memory, what is found, the state, and the gradients of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.decoders import VARIANTS, DecoderEntry
from weft.attention import ATTENTIONS
from weft.config.registry import load

CHECKS = ("ragged", "rows", "padding", "loss")


def crosses() -> Iterator[DecoderEntry]:
    """ConvS2S with each kind of attention in place of its own."""
    for kind in ATTENTIONS:
        if "cross" in load(ATTENTIONS, kind).uses and f"cross-{kind}" not in VARIANTS["convs2s"]:
            yield DecoderEntry("convs2s", f"cross-{kind}", {"cross": {"kind": kind}, "heads": 2})
