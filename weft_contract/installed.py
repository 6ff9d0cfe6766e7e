"""The parts of installed packages (entry points of the group `weft.parts`), except weft's own, and the cases that check them.

Each part is checked with its default options. Attentions, mixers and poolings get every check of their table; attentions and
mixers are also put into the slots of a Transformer, and cross-attentions into ConvS2S. Encoders, decoders and fronts become
part of a small composed model. In training they must not be random at `dropout: 0`, if they have that option.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import pytest

from weft.config.plugins import installed_parts, is_bundled, package_of
from weft.config.registry import build, find_table
from weft.errors import ConfigError
from weft.models.base import Reads, Sizes
from weft.models.frontends.base import FrontendSite
from weft_contract.mechanism_checks import check_refused, refusals
from weft_contract.mechanism_entries import Entry, entries
from weft_contract.model_entries import DecoderEntry, cross_slots, cross_variants, self_slots
from weft_contract.pooling_checks import PoolingEntry
from weft_contract.suite import Case, cross_cases, decoder_cases, mechanism_cases, pooling_cases


def installed_cases() -> Iterator[Case]:
    """Every case of every installed part, named after its package. One that skips, if no package adds a part to check."""
    parts = {part: entry for part, entry in installed_parts().items() if not is_bundled(entry)}
    checked = [(PARTS[kind], name, entry) for (kind, name), entry in parts.items() if kind in PARTS]
    for cases, name, entry in checked:
        package = package_of(entry)
        try:
            yield from [(f"{package}-{case}", check) for case, check in cases(name)]
        except Exception as error:  # other parts are still checked
            yield f"{package}-{entry.name}-built", partial(pytest.fail, f"{entry.name} of {package} cannot be built: {error}")
    if not checked:
        yield "nothing-installed", partial(pytest.skip, f"no installed package adds a part to check ({', '.join(PARTS)})")


def _attention(kind: str) -> Iterator[Case]:
    yield from _mechanism(list(entries([kind], [])), {**self_slots([kind]), **cross_slots([kind])})
    yield from cross_cases(cross_variants([kind]))


def _mixer(kind: str) -> Iterator[Case]:
    yield from _mechanism(list(entries([], [kind])), self_slots([kind]))


def _mechanism(uses: list[Entry], slots: dict[str, dict[str, Any]]) -> Iterator[Case]:
    yield from mechanism_cases(uses)
    for kind, options, use in refusals([uses[0].kind]):
        yield f"{kind}-{use}-refused", partial(check_refused, kind, options, use)
    if uses[0].facts.receptive_field != "data":  # otherwise rounding may change a choice, and everything after it
        yield from decoder_cases(DecoderEntry("transformer", *slot) for slot in slots.items())


def _pooling(kind: str) -> Iterator[Case]:
    yield from pooling_cases([PoolingEntry(kind)])


def _composed(kind: str, *parts: str) -> Iterator[Case]:
    """A small composed Transformer, in which the last of `parts` is checked; all of them are of this kind."""
    yield from decoder_cases([DecoderEntry("composed", f"{parts[-1]}-{kind}", {part: {"kind": kind} for part in parts})])


def _encoder(kind: str) -> Iterator[Case]:
    yield from _composed(kind, "encoder")


def _decoder(kind: str) -> Iterator[Case]:
    """If there is an encoder of the same name, the decoder reads it: the two may be made for each other."""
    yield from _composed(kind, *(["encoder"] if kind in find_table("weft.models:ENCODERS") else []), "decoder")


def _front(kind: str) -> Iterator[Case]:
    reads = [each for each in get_args(Reads) if _builds(kind, each)]
    if reads and "tokens" not in reads:
        yield f"front-{kind}", partial(pytest.skip, f"{kind} reads {reads[0]}; only fronts that read tokens are checked")
    else:
        yield from _composed(kind, "front")


def _builds(kind: str, reads: Reads) -> bool:
    try:
        build("weft.models:FRONTS", kind, FrontendSite(Sizes(3, reads=reads), 16))
    except ConfigError:
        return False
    return True


PARTS: dict[str, Callable[[str], Iterator[Case]]] = {
    "attention": _attention,
    "mixer": _mixer,
    "pooling": _pooling,
    "front": _front,
    "encoder": _encoder,
    "decoder": _decoder,
}
"""Kind of part → the cases of a part of that kind, given its name."""
