"""Search methods: what `decode.search` may name. A constructor's keyword-only parameters are its options.

Shapes: G sources · P prefix tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from weft.decoding.beam_search import BeamSelector, GreedySelector
from weft.decoding.coverage_penalty import CoverageDecoder
from weft.decoding.hypotheses import BackpointerTables, Hypothesis
from weft.decoding.lexical_constraints import ConstrainedBeamSelector
from weft.decoding.sampling import SamplingSelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import TokenSelector
from weft.errors import ConfigError
from weft.models.base import Decoder

BANKS = 8
"""The narrowest beam for required terms: hypotheses that already contain them share it with those that do not."""

SearchResult = tuple[list[list[Hypothesis]], BackpointerTables | None]
"""The texts of each source, best first, and the tables of the search, if it has any."""

FEATURES = {
    "n_best": "several texts per source (decode.n_best, decode.rerank)",
    "prefix": "a forced prefix",
    "use": "terms that must be used",
    "avoid": "terms to avoid",
    "rules": "decode.rules",
    "shortlist": "decode.shortlist",
    "trace": "tracing",
}
"""Features that a search may accept, and what error messages call them."""


class Search(ABC):
    """A way to find texts for encoded sources: one token after the other, selected by `selector`, unless `find` is overridden.

    kind: its name in the table
    accepts: the features that it supports, any of n_best, prefix, use, avoid, rules, shortlist and trace
    instead: advice in errors about features that it does not support
    length_penalty: exponent of the length by which it divides scores
    length_offset: added to the length before (Wu et al. 2016 have 5)
    """

    kind: ClassVar[str]
    instead: ClassVar[str] = "set decode.search: beam"
    accepts: ClassVar[frozenset[str]]
    length_penalty: float = 0.0
    length_offset: float = 0.0

    def divisor(self, length: int) -> float:
        """The length penalty: the log-probability of a text of `length` tokens is divided by it to give its score."""
        size = length if self.length_offset == 0 else (length + self.length_offset) / (1 + self.length_offset)
        return float(size**self.length_penalty)

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        """The decoder as this search needs it. Raises ConfigError if it cannot be searched in this way."""
        if decoder.parallel:
            raise ConfigError(
                f"decode.search: {self.kind} writes one token after the other, but this model writes all at once; set it to "
                "one_pass, refine, ctc or ctc_beam"
            )
        return decoder

    def check(self, features: Iterable[str], where: str = "") -> None:
        """Raises ConfigError for the first feature that this search does not support."""
        for feature in features:
            if feature not in self.accepts:
                raise ConfigError(f"{where}decode.search: {self.kind} does not support {FEATURES[feature]}; {self.instead}")

    @abstractmethod
    def width(self, n_best: int) -> int:
        """Hypotheses per source that are computed side by side."""

    def rows(self, n_best: int, *, required: bool) -> int:
        """Rows of the decoder per source; `required`: the source has terms that must be used."""
        width = self.width(n_best)
        return max(BANKS, 2 * width) if required else width

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        """Selects tokens; `length_penalty` replaces the configured one."""
        raise ConfigError(f"decode.search: {self.kind} does not write one token after the other; set decode.search: beam")

    def final(self, n_best: int) -> bool:
        """Whether a token is part of the text as soon as it is chosen, because hypotheses do not compete."""
        return True

    def find(self, decoder: Decoder, source: Any, request: SearchRequest) -> SearchResult:
        """The texts of each source, best first, and the tables of the search, if it has any."""
        n_best, required = request.n_best or 1, request.required
        selector = request.selector or self.selector(n_best)
        if required is not None:
            # The prefix may already contain some of the terms.
            state, rows = required.read(request.prefix, request.prefix_layout), self.rows(n_best, required=True)
            keep = self.width(n_best)
            selector = ConstrainedBeamSelector(rows, required, state, self.length_penalty, keep, self.length_offset)
        return run_search(self.wrap_decoder(decoder), source, selector, request)


class BeamSearch(Search):
    """Keeps the most probable hypotheses of each step (beam search).

    width: hypotheses per source; decode.n_best and decode.rerank may widen it
    length_penalty: a finished score is the log-probability divided by length to this power
    length_offset: the length is replaced by (offset + length) / (offset + 1); Wu et al. 2016 use 5
    coverage_penalty: weight β of β Σ log(min(attention to a source token, 1)), which is added to a finished score (Wu et al.
        2016); attention is the mean over all heads and layers that attend to the source
    stop: when a source is done: exact, when no running hypothesis can still win; length and first are faster heuristics
    """

    kind = "beam"
    accepts = frozenset(FEATURES)

    def __init__(
        self,
        *,
        width: PositiveInt = 4,
        length_penalty: float = 1.0,
        length_offset: NonNegativeFloat = 0.0,
        coverage_penalty: NonNegativeFloat = 0.0,
        stop: Literal["exact", "length", "first"] = "exact",
    ) -> None:
        self.beam, self.length_penalty, self.stop = width, length_penalty, stop
        self.length_offset, self.coverage_penalty = length_offset, coverage_penalty

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        decoder = super().wrap_decoder(decoder)
        return CoverageDecoder(decoder, self.coverage_penalty) if self.coverage_penalty else decoder

    def width(self, n_best: int) -> int:
        return max(self.beam, n_best)

    def final(self, n_best: int) -> bool:
        return self.width(n_best) == 1

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        penalty, width = self.length_penalty if length_penalty is None else length_penalty, self.width(n_best)
        if width == 1:
            return GreedySelector(penalty, self.length_offset)
        return BeamSelector(width, penalty, stop=self.stop, offset=self.length_offset)


class GreedySearch(BeamSearch):
    """Takes the most probable token at each step.

    length_penalty: a score is the log-probability divided by length to this power
    """

    kind = "greedy"
    accepts = frozenset({"prefix", "avoid", "rules", "shortlist", "trace"})

    def __init__(self, *, length_penalty: float = 1.0) -> None:
        super().__init__(width=1, length_penalty=length_penalty)


@dataclass(kw_only=True, eq=False)
class SampleSearch(Search):
    """Draws texts at random, decode.n_best per source; a score is the log-probability.

    temperature: below 1 is safer, above 1 bolder
    top_k: sample among this many of the most probable tokens; 0 means all
    top_p: sample among the most probable tokens that together have this probability
    seed: of the random numbers
    """

    kind = "sample"
    accepts = frozenset(FEATURES) - {"use"}

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1

    def width(self, n_best: int) -> int:
        return n_best

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        return SamplingSelector(n_best, self.temperature, self.top_k, self.top_p, self.seed)
