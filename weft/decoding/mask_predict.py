"""Searches for decoders that write all tokens at once: one pass over the positions, or several (mask-predict).

Shapes: G sources · B rows, one per source and canvas · T target positions · V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from weft.data.batch import BOS, EOS, PAD, UNK
from weft.decoding.cpp_search import nonautoregressive_states
from weft.decoding.hypotheses import Hypothesis, RefinementPass
from weft.decoding.ngram_blocking_and_rules import Constraint, ForbidTokens, constrained_argmax
from weft.decoding.noisy_decoding import ranked
from weft.decoding.search_loop import SearchRequest
from weft.decoding.search_methods import Search, SearchResult
from weft.decoding.token_selection import NEVER, most_probable, uniform
from weft.errors import ConfigError
from weft.models.base import Decoder, Encoded
from weft.models.nonautoregressive import Holds, NonAutoregressiveDecoder, TargetCanvas, chosen_rows, joined

POSITIONS = {"cpu": 1 << 13, "cuda": 1 << 14}
"""Positions whose logits are computed together."""

ROUND = {"cuda": 8}
"""Canvases are as long as a multiple of this, so that recorded passes come in few sizes."""


@dataclass(frozen=True)
class HashedUniform:
    """Uniform numbers that are a hash of the seed, the sentence [G], the draw and the place."""

    seed: int
    ids: Tensor

    def __call__(self, number: int, places: int) -> Tensor:
        draw = torch.arange(number, number + 1, device=self.ids.device)
        return uniform(self.seed, self.ids, draw, torch.arange(places, device=self.ids.device))


@dataclass
class RefinementState:
    """Texts on a canvas: tokens [B, T] and their log-probabilities [B, T].

    passes: the tokens after each pass, and which of them it wrote.
    """

    tokens: Tensor
    logp: Tensor
    passes: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def refine(
    decoder: NonAutoregressiveDecoder,
    source: Encoded,
    canvas: TargetCanvas,
    iterations: int = 1,
    shortest: Tensor | None = None,
    constraints: Sequence[Constraint] = (),
    owner: Tensor | None = None,
) -> RefinementState:
    """Writes on a canvas: everything, then again the ⌊N (I − i) / I⌋ least confident tokens in iteration i (mask-predict).

    Only masked tokens change, and only they get new log-probabilities. owner [B]: the source of each row, for constraints.
    """
    state, layout = decoder.open(source, canvas), canvas.layout
    lengths = layout.lengths
    refined = RefinementState(
        torch.full_like(layout.positions, decoder.blank), torch.zeros_like(layout.positions, dtype=torch.float32)
    )
    for iteration in range(iterations):
        masked = layout.mask
        if iteration:
            count = lengths * (iterations - iteration) // iterations
            rank = refined.logp.masked_fill(~layout.mask, float("inf")).argsort(dim=1, stable=True).argsort(dim=1)
            masked = (rank < count[:, None]) & layout.mask
        fed = refined.tokens.masked_fill(masked, decoder.blank)
        logits = decoder.logits(nonautoregressive_states(decoder, fed, state, layout)).float()
        for symbol in (PAD, BOS, UNK, decoder.blank):
            logits[..., symbol] = NEVER
        logits = _without_end(decoder, logits, shortest)
        kept = None if iteration == 0 else torch.where(masked | ~layout.mask, -1, refined.tokens)
        if depends_on_prefix(constraints):
            rows = torch.arange(len(lengths), device=lengths.device) if owner is None else owner
            best, tokens = constrained_argmax(logits.log_softmax(-1)[..., : decoder.blank], constraints, rows, kept)
            changed = masked if kept is None else masked | ((tokens != refined.tokens) & layout.mask)
        else:
            (best, tokens), changed = most_probable(logits), masked
        refined.tokens, refined.logp = tokens.where(changed, refined.tokens), best.where(changed, refined.logp)
        refined.passes.append((refined.tokens, changed))
    return refined


def _without_end(decoder: NonAutoregressiveDecoder, logits: Tensor, shortest: Tensor | None) -> Tensor:
    """Logits without EOS, where texts have no end or may not end yet."""
    if decoder.canvases.holds == "text":
        logits[..., EOS] = NEVER
    elif shortest is not None:
        early = torch.arange(logits.size(1), device=logits.device) < shortest[:, None]
        logits[..., EOS] = logits[..., EOS].masked_fill(early, NEVER)
    return logits


def depends_on_prefix(constraints: Sequence[Constraint]) -> bool:
    """Whether a constraint depends on the tokens before, so that tokens have to be chosen from left to right."""
    return any(not isinstance(each, ForbidTokens) for each in constraints)


class NonAutoregressiveSearch(Search):
    """A search for decoders that write all tokens at once. holds: what their canvas may hold."""

    instead = "use a model that writes one token after the other"
    holds: ClassVar[frozenset[Holds]]
    length_penalty = 1.0

    def wrap_decoder(self, decoder: Decoder) -> NonAutoregressiveDecoder:
        if not isinstance(decoder, NonAutoregressiveDecoder):
            raise ConfigError(f"decode.search: {self.kind} needs a decoder that writes all tokens at once; set it to beam")
        if decoder.canvases.holds not in self.holds:
            other = "ctc or ctc_beam" if decoder.canvases.holds == "path" else "one_pass"
            raise ConfigError(f"decode.search: {self.kind} does not suit the canvas of this decoder; set it to {other}")
        return decoder

    def width(self, n_best: int) -> int:
        return n_best

    def find(self, decoder: Decoder, source: Any, request: SearchRequest) -> SearchResult:
        """The texts of each source, best first. What belongs to one token after the other is refused before, or ignored."""
        with torch.inference_mode():
            results = self.texts(self.wrap_decoder(decoder), source, request)
        return [ranked(each)[: request.n_best or 1] for each in results], None

    @abstractmethod
    def texts(self, decoder: NonAutoregressiveDecoder, source: Encoded, request: SearchRequest) -> list[list[Hypothesis]]:
        """The texts of each source, in any order."""


class OnePassSearch(NonAutoregressiveSearch):
    """Takes the most probable token at every position, all at once, on one or several canvases per source.

    lengths: canvases per source: the most probable lengths, or fertilities of which all but the first are drawn at random
    seed: of the random numbers
    """

    kind = "one_pass"
    accepts = frozenset({"n_best", "avoid", "trace"})
    holds = frozenset({"text", "ended"})
    iterations = 1

    def __init__(self, *, lengths: PositiveInt = 1, seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1) -> None:
        self.lengths, self.seed = lengths, seed

    def width(self, n_best: int) -> int:
        return max(self.lengths, n_best)

    def texts(self, decoder: NonAutoregressiveDecoder, source: Encoded, request: SearchRequest) -> list[list[Hypothesis]]:
        limits, groups = request.limits, source.memory.size(0)
        count = self.width(request.n_best or 1) if decoder.canvases.several else 1
        canvases = decoder.canvases.propose(source, count, limits.max_tokens, HashedUniform(self.seed, limits.ids))
        results: list[list[Hypothesis]] = [[] for _ in range(groups)]
        for some in _chunks(canvases, groups, source.memory.device.type):
            canvas = joined(some, ROUND.get(source.memory.device.type, 1))
            rows = torch.arange(groups, device=source.memory.device).repeat(len(some))
            many = chosen_rows(source, rows) if len(some) > 1 else source
            refined = self._write(decoder, many, canvas, rows, request)
            ended = decoder.canvases.holds == "ended"
            for row, text in enumerate(_texts(refined, canvas, limits.max_tokens[rows].tolist(), ended, request.trace)):
                results[row % groups].append(text)
        return results

    def _write(
        self, decoder: NonAutoregressiveDecoder, source: Encoded, canvas: TargetCanvas, rows: Tensor, request: SearchRequest
    ) -> RefinementState:
        shortest, passes = request.limits.min_tokens[rows], self.iterations
        if depends_on_prefix(request.constraints):
            return refine(decoder, source, canvas, passes, shortest, request.constraints, rows)

        def work(given: tuple[Encoded, TargetCanvas, Tensor]) -> RefinementState:
            return refine(decoder, given[0], given[1], passes, given[2])

        return request.runner.opening(("write", passes), work, (source, canvas, shortest))


class RefineSearch(OnePassSearch):
    """Writes all tokens at once, then masks the least confident ones and writes them again (mask-predict).

    iterations: passes over the text; the first writes all tokens
    lengths: canvases per source, which are refined side by side
    """

    kind = "refine"
    holds = frozenset({"text"})

    def __init__(self, *, iterations: PositiveInt = 10, lengths: PositiveInt = 5) -> None:
        super().__init__(lengths=lengths)
        self.iterations = iterations


def _chunks(canvases: Sequence[TargetCanvas], groups: int, device: str) -> list[Sequence[TargetCanvas]]:
    """Canvases that are written on together, within the limit of positions."""
    extent = max(each.layout.positions.size(1) for each in canvases)
    size = max(1, POSITIONS.get(device, POSITIONS["cpu"]) // max(1, groups * extent))
    return [canvases[start : start + size] for start in range(0, len(canvases), size)]


def _texts(refined: RefinementState, canvas: TargetCanvas, longest: list[int], ended: bool, trace: bool) -> list[Hypothesis]:
    """The text of each row. A score is the log-probability of its length and its tokens, per token."""
    results = []
    lengths = canvas.layout.lengths.tolist()
    before = [0.0] * len(lengths) if canvas.logp is None else canvas.logp.tolist()
    passes = [(tokens.tolist(), written.tolist()) for tokens, written in refined.passes if trace]
    rows = zip(refined.tokens.tolist(), refined.logp.tolist(), lengths, longest, before, strict=True)
    for row, (tokens, logp, length, most, start) in enumerate(rows):
        size = min(length, most)
        if ended and EOS in tokens[:size]:
            size = tokens.index(EOS) + 1
        own = [RefinementPass(every[row][:length], written[row][:length]) for every, written in passes]
        results.append(Hypothesis((start + sum(logp[:size])) / max(1, size), tokens[:size], own))
    return results
