"""Every cross-attention, in the decoders that the full list of checks does not combine with all of them.

Entries of `weft_contract.models` get every check. Here a few checks show that decoder and attention fit together: the query,
the memory, the context, the state, and all gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.attention import ATTENTIONS
from weft_contract.entries import facts_of
from weft_contract.models import VARIANTS, DecoderEntry

CHECKS = ("ragged", "rows", "padding", "loss")


def crosses(kinds: Iterable[str] = ATTENTIONS) -> Iterator[DecoderEntry]:
    """ConvS2S with each kind of cross-attention instead of its own."""
    for kind in kinds:
        if "cross" in facts_of(kind).uses and f"cross-{kind}" not in VARIANTS["convs2s"]:
            yield DecoderEntry("convs2s", f"cross-{kind}", {"cross": {"kind": kind}, "heads": 2})
