"""Searches for decoders that write all tokens at once: one pass, refinement in several passes, and CTC.

Shapes: G sources · B rows, one per source and canvas · T target positions · V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from weft.data.batch import EOS, UNK
from weft.decoding.constraints import PrefixConstraints, constrained_ctc_path
from weft.decoding.cpp_search import cpp_ctc_paths, path_states
from weft.decoding.ctc_decoding import best_paths, prefix_beams, texts_of
from weft.decoding.hypotheses import BackpointerTables, Hypothesis, RefinementPass
from weft.decoding.mask_predict import HashedUniform, RefinementState, depends_on_prefix, path_logits, refine
from weft.decoding.noisy_decoding import ranked
from weft.decoding.search_loop import SearchRequest
from weft.decoding.search_methods import Search
from weft.errors import ConfigError
from weft.models.base import Decoder, Encoded
from weft.models.nonautoregressive import Holds, NonAutoregressiveDecoder, TargetCanvas, chosen_rows, joined

POSITIONS = {"cpu": 1 << 13, "cuda": 1 << 14}
"""Positions whose logits are computed together."""

ROUND = {"cuda": 8}
"""Canvases are as long as a multiple of this, so that recorded passes come in few sizes."""


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

    def find(
        self, decoder: Decoder, source: Any, request: SearchRequest
    ) -> tuple[list[list[Hypothesis]], BackpointerTables | None]:
        """The texts of each source, best first. What belongs to one token after the other is refused before, or ignored."""
        with torch.inference_mode():
            found = self.texts(self.wrap_decoder(decoder), source, request)
        return [ranked(each)[: request.n_best or 1] for each in found], None

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
        found: list[list[Hypothesis]] = [[] for _ in range(groups)]
        for some in _chunks(canvases, groups, source.memory.device.type):
            canvas = joined(some, ROUND.get(source.memory.device.type, 1))
            rows = torch.arange(groups, device=source.memory.device).repeat(len(some))
            many = chosen_rows(source, rows) if len(some) > 1 else source
            writing = self._write(decoder, many, canvas, rows, request)
            ended = decoder.canvases.holds == "ended"
            for row, text in enumerate(_texts(writing, canvas, limits.max_tokens[rows].tolist(), ended, request.trace)):
                found[row % groups].append(text)
        return found

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
    """Writes all tokens at once, then masks the least sure ones and writes them again (mask-predict).

    iterations: passes over the text; the first writes all tokens
    lengths: canvases per source, which are refined side by side
    """

    kind = "refine"
    holds = frozenset({"text"})

    def __init__(self, *, iterations: PositiveInt = 10, lengths: PositiveInt = 5) -> None:
        super().__init__(lengths=lengths)
        self.iterations = iterations


class CtcSearch(NonAutoregressiveSearch):
    """Takes the text of the most probable path (CTC, greedy)."""

    kind = "ctc"
    instead = "set decode.search: ctc_beam for several texts, or use a model that writes one token after the other"
    accepts = frozenset({"avoid", "trace"})
    holds = frozenset({"path"})

    def __init__(self) -> None:
        """There is nothing to set."""

    def texts(self, decoder: NonAutoregressiveDecoder, source: Encoded, request: SearchRequest) -> list[list[Hypothesis]]:
        if depends_on_prefix(request.constraints):
            hidden, lengths = path_states(decoder, source)
            path, scores = constrained_ctc_path(path_logits(decoder, hidden), lengths, decoder.blank, request.constraints)
        else:
            path, scores, lengths = request.runner.opening("ctc", lambda given: _best(decoder, given), source)
        found = [[text] for text in texts_of(path, scores, lengths, blank=decoder.blank)]
        return _finished(found, request, path, lengths)


class CtcBeamSearch(NonAutoregressiveSearch):
    """Sums over the paths of each text and keeps the most probable ones (CTC prefix beam search).

    width: texts per source that are kept
    length_bonus: added to the log-probability for each token
    """

    kind = "ctc_beam"
    accepts = frozenset({"n_best", "avoid", "trace"})
    holds = frozenset({"path"})

    def __init__(self, *, width: PositiveInt = 8, length_bonus: NonNegativeFloat = 0.0) -> None:
        self.beam, self.length_bonus = width, length_bonus

    def width(self, n_best: int) -> int:
        return max(self.beam, n_best)

    def texts(self, decoder: NonAutoregressiveDecoder, source: Encoded, request: SearchRequest) -> list[list[Hypothesis]]:
        hidden, lengths = request.runner.opening("states", lambda given: path_states(decoder, given), source)
        width, found, paths = self.width(request.n_best or 1), list[list[Hypothesis]](), []
        options = {"blank": decoder.blank, "width": width, "best": request.n_best or 1}
        for some, counts in zip(*_parts(hidden, lengths), strict=True):
            logits, following = path_logits(decoder, some), None
            if depends_on_prefix(request.constraints):
                owner = torch.arange(len(found), len(found) + len(some), device=some.device).repeat_interleave(width)
                following = PrefixConstraints.start(request.constraints, owner)
            found += prefix_beams(logits, counts, bonus=self.length_bonus, following=following, **options)
            paths.append(logits.argmax(-1))
        return _finished(found, request, torch.cat(paths), lengths)


def _best(decoder: NonAutoregressiveDecoder, source: Encoded) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable paths, their log-probabilities and their lengths."""
    if (found := cpp_ctc_paths(decoder, source, UNK + 1)) is not None:
        return found
    hidden, lengths = path_states(decoder, source)
    parts = zip(*_parts(hidden, lengths), strict=True)
    paths, scores = zip(*(best_paths(path_logits(decoder, some), counts) for some, counts in parts), strict=True)
    return torch.cat(paths), torch.cat(scores), lengths


def _parts(hidden: Tensor, lengths: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Rows whose logits are computed together, within the limit of positions."""
    size = max(1, POSITIONS.get(hidden.device.type, POSITIONS["cpu"]) // max(1, hidden.size(1)))
    return hidden.split(size), lengths.split(size)


def _chunks(canvases: Sequence[TargetCanvas], groups: int, device: str) -> list[Sequence[TargetCanvas]]:
    """Canvases that are written on together, within the limit of positions."""
    extent = max(each.layout.positions.size(1) for each in canvases)
    size = max(1, POSITIONS.get(device, POSITIONS["cpu"]) // max(1, groups * extent))
    return [canvases[start : start + size] for start in range(0, len(canvases), size)]


def _texts(writing: RefinementState, canvas: TargetCanvas, longest: list[int], ended: bool, trace: bool) -> list[Hypothesis]:
    """The text of each row. A score is the log-probability of its length and its tokens, per token."""
    found = []
    lengths = canvas.layout.lengths.tolist()
    before = [0.0] * len(lengths) if canvas.logp is None else canvas.logp.tolist()
    passes = [(tokens.tolist(), written.tolist()) for tokens, written in writing.passes if trace]
    rows = zip(writing.tokens.tolist(), writing.logp.tolist(), lengths, longest, before, strict=True)
    for row, (tokens, logp, length, most, start) in enumerate(rows):
        size = min(length, most)
        if ended and EOS in tokens[:size]:
            size = tokens.index(EOS) + 1
        own = [RefinementPass(every[row][:length], written[row][:length]) for every, written in passes]
        found.append(Hypothesis((start + sum(logp[:size])) / max(1, size), tokens[:size], own))
    return found


def _finished(found: list[list[Hypothesis]], request: SearchRequest, path: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Texts of CTC with their log-probability per token, cut off at the longest length; traced, with the best path [G, T]."""
    passes: list[list[RefinementPass]] = [[] for _ in found]
    if request.trace:
        rows = zip(path.tolist(), lengths.tolist(), strict=True)
        passes = [[RefinementPass(symbols[:count], [True] * count)] for symbols, count in rows]
    return [
        [Hypothesis(text.score / max(1, len(text.tokens)), text.tokens[:longest], own) for text in texts]
        for texts, longest, own in zip(found, request.limits.max_tokens.tolist(), passes, strict=True)
    ]
