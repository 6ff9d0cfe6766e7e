"""The base of search methods, which `decode.search` names. A constructor's keyword-only parameters are its options.

Shapes: G sources · P prefix tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from weft.decoding.hypotheses import BackpointerTables, Hypothesis
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import TokenSelector
from weft.errors import ConfigError
from weft.models.base import Decoder

if TYPE_CHECKING:
    from weft.decoding.lexical_constraints import TermAutomata

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
    continuous: its texts may begin at different steps, so that others are searched as soon as one is complete: `find` is that
      of this class, and the selector takes a number of steps per source
    """

    kind: ClassVar[str]
    instead: ClassVar[str] = "set decode.search: beam"
    accepts: ClassVar[frozenset[str]]
    continuous: ClassVar[bool] = False
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

    def constrained_selector(self, required: "TermAutomata", state: Tensor, n_best: int) -> TokenSelector:
        """Selects tokens so that the texts have all required terms. state [G, M]: of their automata after the prefix."""
        raise ConfigError(f"decode.search: {self.kind} does not support {FEATURES['use']}; {self.instead}")

    def final(self, n_best: int) -> bool:
        """Whether a token is part of the text as soon as it is chosen, because hypotheses do not compete."""
        return True

    def find(self, decoder: Decoder, source: Any, request: SearchRequest) -> SearchResult:
        """The texts of each source, best first, and the tables of the search, if it has any."""
        n_best, required = request.n_best or 1, request.required
        selector = request.selector or self.selector(n_best)
        if required is not None:
            # The prefix may already contain some of the terms.
            selector = self.constrained_selector(required, required.read(request.prefix, request.prefix_layout), n_best)
        return run_search(self.wrap_decoder(decoder), source, selector, request)
