"""Checks of models that can be planned: in C++ they compute what they compute in torch."""

from typing import Any

import torch
from torch import nn

from weft.data.batch import BOS, PAD, UNK, Layout, Source
from weft.decoding import cpp_search as native
from weft.decoding.beam_search import BeamSelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.sampling import SamplingSelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.kernels.cpp import CannotBuild, Kernels, kernels, using
from weft.layers.kernels.cpp_plan import NotPlanned
from weft.models.base import Encoded, Model
from weft_contract.mechanism_entries import same
from weft_contract.model_entries import SOURCE, ids

PREFIXES, LONGEST = (3, 1, 2, 3), (12, 9, 14, 11)
"""Tokens that are given, and the most that are written, for each source."""


def plannable(model: Any) -> bool:
    """Whether the decoder has a plan and writes one token after the other. Otherwise the other checks cover it."""
    if model.decoder.parallel:
        return False
    try:
        native.plan_decoder(model.decoder)
    except NotPlanned:
        return False
    return True


@torch.inference_mode()
def check_native(entry: Any) -> None:
    """Beam search and sampling in C++, from a ragged prefix, find the texts and scores of the ordinary loop."""
    try:
        compiled = kernels()
    except CannotBuild:
        return
    model = entry.make()
    source, fast = _encoded(model, None), _encoded(model, compiled)
    same(fast.memory, source.memory, "the memory")
    for selector in (BeamSelector(4), SamplingSelector(2, 1.0, seed=3)):
        usual, found = (_search(model.decoder, each, selector, way) for each, way in ((source, None), (fast, compiled)))
        for texts, others in zip(found, usual, strict=True):
            assert [each.tokens for each in texts] == [each.tokens for each in others], f"{entry}: another text"
            same(*(torch.tensor([each.score for each in some]) for some in (texts, others)), "scores", atol=1e-4)


def _encoded(model: Any, compiled: Kernels | None) -> Encoded:
    """Padded sources, with zeros in the padding. A language model has none."""
    if not isinstance(model, Model):
        nothing: Encoded = model.nothing(len(SOURCE))
        return nothing
    layout = Layout.padded(SOURCE)
    with using(compiled):
        encoded = native.encode(model, Source(ids(len(SOURCE), layout.longest, seed=2), layout))
    assert encoded.layout is not None
    encoded.memory = encoded.memory * encoded.layout.mask[..., None]
    return encoded


def _search(decoder: nn.Module, source: Encoded, selector: TokenSelector, compiled: Kernels | None) -> list[list[Hypothesis]]:
    longest, first = torch.tensor(LONGEST), ids(len(PREFIXES), max(PREFIXES), seed=3)
    first[:, 0] = BOS
    with using(compiled):
        found, _ = run_search(
            decoder,  # type: ignore[arg-type]
            source,
            selector,
            SearchRequest(
                prefix=first,
                prefix_layout=Layout.padded(PREFIXES),
                limits=LengthLimits(longest, longest // 2, torch.arange(len(LONGEST))),
                constraints=[ForbidTokens([PAD, BOS, UNK])],
            ),
        )
    return found
