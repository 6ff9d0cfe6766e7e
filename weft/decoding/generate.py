"""Generation: token ids of sources in, hypotheses of token ids out. Predictors and training call the same `generate`.

Shapes: G sources · P prefix tokens · N tokens of a shortlist · V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import BOS, EOS, Layout, Source, pad, power_of_two
from weft.decoding.cpp_search import encode
from weft.decoding.cuda_graph_search import CapturedStepRunner
from weft.decoding.hypotheses import or_lost
from weft.decoding.lexical_constraints import TermAutomata
from weft.decoding.ngram_blocking_and_rules import Constraint, PaddedConstraint, usual_constraints
from weft.decoding.search_loop import CHECK, EAGER, Cancellation, SearchRequest
from weft.decoding.search_methods import Search, SearchResult
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.models.base import Decoder, Encoded, Model
from weft.models.ensembles_and_wrapped_decoders import BatchVocabulary, ShortlistDecoder

ROUND = 16
"""On a GPU, sources are padded to a multiple of this many tokens, so that searches come in few sizes."""


Sources = Sequence[Sequence[int]] | Source | Encoded


class Writer(Protocol):
    """A model that can write: a `Model`, or one that reads no source."""

    decoder: Any
    max_target: int | None

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class GenerationRequest:
    """The order to generate texts for some sources. Sequences, constraints and tensors have one entry per source.

    search: how texts are found · max_tokens: the most tokens of each text, EOS included; the positions of the model may allow
    fewer · min_tokens: the fewest of any text · n_best: texts per source · prefixes: tokens that are fed first, by default
    BOS; they are not part of the result · seeds: numbers that name the sources to sampling · no_repeat_ngram: the length of
    n-grams that no text may repeat; 0: it may repeat any · constraints: further ones · required: terms that texts must contain
    · bias [G, V]: added to the logits · shortlist: the tokens to choose from, if not all · selector: in place of that of the
    search · runner: captures searches as CUDA graphs, if they have no constraints, terms or shortlist of their own; with it,
    all batches are padded to few sizes · trace: keep the beam tree, or all passes · cancellation: stops sources that nobody
    waits for.
    """

    search: Search
    max_tokens: Sequence[int]
    min_tokens: int = 0
    n_best: int = 1
    prefixes: Sequence[Sequence[int]] = ()
    seeds: Sequence[int] = ()
    no_repeat_ngram: int = 0
    constraints: Sequence[Constraint] = ()
    required: TermAutomata | None = None
    bias: Tensor | None = None
    shortlist: BatchVocabulary | None = None
    selector: TokenSelector | None = None
    runner: CapturedStepRunner | None = None
    trace: bool = False
    cancellation: Cancellation | None = None

    @property
    def captured(self) -> bool:
        """Whether the search is captured."""
        return self.runner is not None and not (self.required or self.constraints or self.shortlist)


def generate(model: Writer, sources: Sources, request: GenerationRequest) -> SearchResult:
    """The texts of each source, best first, and the tables of the search, if it has any.

    sources: ids that end with EOS, full rows of a `Source`, or sources that are encoded already. The caller chooses the
    precision (`DecodingOptions.arithmetic`), and whether the model is in training.
    """
    count = len(request.max_tokens)
    if request.runner is not None and not isinstance(sources, Encoded | Source):
        sources, request = _padded(sources, request)
    shortlist = request.shortlist
    decoder: Decoder = model.decoder if shortlist is None else ShortlistDecoder(model.decoder, shortlist.ids)
    encoded = sources if isinstance(sources, Encoded) else encode_sources(model, sources, request)
    results, tables = request.search.find(decoder, encoded, search_request(model, request))
    if shortlist is not None:
        results = [[replace(text, tokens=shortlist.tokens(text.tokens)) for text in texts] for texts in results]
    if request.required is None:  # required terms may have no place in any text
        stopped = request.cancellation.stopped if request.cancellation is not None else ()
        results = [texts if row in stopped else or_lost(texts) for row, texts in enumerate(results)]
    return results[:count], tables


def search_request(model: Writer, request: GenerationRequest) -> SearchRequest:
    """The request as a search takes it: tensors on the device, limits that the positions of the model allow."""
    shortlist = request.shortlist
    prefixes = request.prefixes or [[BOS]] * len(request.max_tokens)
    if shortlist is not None:
        prefixes = [shortlist.numbers(prefix) for prefix in prefixes]
    lengths, most = [len(prefix) for prefix in prefixes], max_tokens(model, request)
    least = [min(request.min_tokens, each - 1) for each in most]
    longest, shortest, seeds = torch.tensor([most, least, request.seeds or [0] * len(most)], device=model.device)  # one copy
    return SearchRequest(
        prefix=pad(prefixes).to(model.device),
        prefix_layout=Layout.padded(lengths).to(model.device) if len(set(lengths)) > 1 else None,
        limits=LengthLimits(longest, shortest, seeds, request.bias if shortlist is None else shortlist.bias),
        n_best=request.n_best,
        constraints=[*usual_constraints(request.no_repeat_ngram, max(lengths) + max(most)), *request.constraints],
        required=request.required,
        selector=request.selector,
        runner=request.runner if request.captured and request.runner else EAGER,
        check=1 if request.trace else CHECK,
        trace=request.trace,
        cancellation=request.cancellation,
    )


def max_tokens(model: Writer, request: GenerationRequest) -> list[int]:
    """The most tokens of each text, as the request and the positions of the model allow."""
    if model.max_target is None:
        return [max(1, each) for each in request.max_tokens]
    lengths = [len(prefix) for prefix in request.prefixes] or [1] * len(request.max_tokens)
    return [max(1, min(each, model.max_target - fed)) for each, fed in zip(request.max_tokens, lengths, strict=True)]


def _padded(sources: Sequence[Sequence[int]], request: GenerationRequest) -> tuple[list[Sequence[int]], GenerationRequest]:
    """On a GPU, searches come in few sizes, so sources without words make up a power of two. Their texts end at once."""
    missing = power_of_two(len(sources)) - len(sources)
    bias, terms, shortlist = request.bias, request.required, request.shortlist

    def more_rows(table: Tensor) -> Tensor:
        return F.pad(table, (0, 0, 0, missing))

    return [*sources, *[[EOS]] * missing], replace(
        request,
        max_tokens=[*request.max_tokens, *[1] * missing],
        prefixes=[*request.prefixes, *[[BOS]] * missing] if request.prefixes else (),
        seeds=[*request.seeds, *[0] * missing] if request.seeds else (),
        constraints=[PaddedConstraint(each, len(sources), missing) for each in request.constraints],
        required=None if terms is None else replace(terms, which=more_rows(terms.which)),
        bias=None if bias is None else more_rows(bias),
        shortlist=None if shortlist is None else replace(shortlist, bias=more_rows(shortlist.bias)),
    )


def encode_sources(model: Writer, sources: Sequence[Sequence[int]] | Source, request: GenerationRequest) -> Encoded:
    """The encoded sources, as the searches of this request read them."""
    assert isinstance(model, Model)
    runner = request.runner
    source = sources if isinstance(sources, Source) else _block(sources, model.device, rounded=runner is not None)
    return runner.encode(model, source) if runner is not None and request.captured else encode(model, source)


def _block(sources: Sequence[Sequence[int]], device: torch.device, *, rounded: bool) -> Source:
    """Ids of sources in one block. rounded: in one of few sizes, for searches that are captured."""
    block, lengths = pad(sources, ROUND if rounded else 1).to(device), [len(source) for source in sources]
    # Searches with and without a layout would be captured separately, so they always have one.
    full = set(lengths) == {block.size(1)} and not rounded
    return Source(block, None if full else Layout.padded(lengths, block.size(1)).to(device))
