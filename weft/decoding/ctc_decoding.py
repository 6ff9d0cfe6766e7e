"""Texts from the outputs of connectionist temporal classification: the best path, and prefix beam search.

Shapes: B rows · T vectors · V symbols, the blank included · W texts per row · K symbols by which texts are extended.

Joint decoding: texts that attention and CTC propose, ranked by both probabilities (Watanabe et al. 2017, rescoring).

CTC sees every vector once, in order, so it rejects texts in which attention skips or repeats a part of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from weft.data.batch import EOS, UNK
from weft.decoding.cpp_search import cpp_ctc_paths, path_states
from weft.decoding.hypotheses import Hypothesis, RefinementPass
from weft.decoding.mask_predict import POSITIONS, NonAutoregressiveSearch, depends_on_prefix
from weft.decoding.ngram_blocking_and_rules import PrefixConstraints, constrained_ctc_path
from weft.decoding.noisy_decoding import in_chains, log_probabilities
from weft.decoding.search_loop import SearchRequest
from weft.decoding.token_selection import most_probable
from weft.layers.kernels import widest_float
from weft.losses.ctc_loss import best_alignment, ctc_loss
from weft.models.base import Decoder, Encoded
from weft.models.nonautoregressive import NonAutoregressiveDecoder

NEVER = -float("inf")
FACTOR = 6364136223846793005
"""Names of texts are polynomials in it, modulo 2⁶⁴."""


def collapse(path: Sequence[int], blank: int) -> list[int]:
    """The text of a path: repeated symbols are merged, then blanks are removed."""
    return [symbol for symbol, _ in groupby(path) if symbol != blank]


def best_paths(logits: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable path of each row [B, T], and its log-probability [B] (greedy decoding)."""
    logp, path = most_probable(logits)
    inside = torch.arange(logits.size(1), device=logits.device) < lengths[:, None]
    return path, logp.where(inside, 0.0).sum(1)


def alignment_marks(logits: Tensor, lengths: Tensor, ids: list[int], *, blank: int) -> NDArray[np.float32]:
    """[len(ids), T]: ones where the best path of a text through the vectors of one row says each of its tokens."""
    text = torch.tensor([ids], dtype=torch.long, device=logits.device)
    count = torch.tensor([len(ids)], device=logits.device)
    path = best_alignment(logits, lengths, text, count, blank=blank)[0].tolist()
    marks, place, before = np.zeros((len(ids), len(path)), np.float32), -1, blank
    for time, token in enumerate(path):
        place += token not in (blank, before)
        before = token
        if token != blank:
            marks[place, time] = 1
    return marks


def texts_of(path: Tensor, scores: Tensor, lengths: Tensor, *, blank: int) -> list[Hypothesis]:
    """The text of each path [B, T], with its score [B]."""
    rows = zip(scores.tolist(), path.tolist(), lengths.tolist(), strict=True)
    return [Hypothesis(score, collapse(symbols[:count], blank)) for score, symbols, count in rows]


@dataclass
class Prefixes:
    """The beginnings of texts that a beam keeps, W per row, best first.

    tokens [B, W, T] and their number `size` [B, W] · last [B, W]: the last token, −1 if there is none · name, parent [B, W]:
    numbers that identify the text, and the text without its last token · blank, token [B, W]: the log-probabilities of its
    paths that end with a blank, and of those that end with its last token.
    """

    tokens: Tensor
    size: Tensor
    last: Tensor
    name: Tensor
    parent: Tensor
    blank: Tensor
    token: Tensor

    @staticmethod
    def empty(rows: int, width: int, frames: int, device: torch.device) -> Prefixes:
        """One empty text per row, and room for others."""
        numbers = torch.zeros(rows, width, dtype=torch.long, device=device)
        never = torch.full((rows, width), NEVER, dtype=widest_float(device), device=device)
        tokens, first = numbers[..., None].repeat(1, 1, frames), never.clone()
        first[:, 0] = 0.0
        return Prefixes(tokens, numbers, numbers - 1, numbers, numbers - 1, first, never)

    @property
    def total(self) -> Tensor:
        return torch.logaddexp(self.blank, self.token)


def prefix_beams(
    logits: Tensor,
    lengths: Tensor,
    *,
    blank: int,
    width: int,
    best: int = 1,
    bonus: float = 0.0,
    following: PrefixConstraints | None = None,
) -> list[list[Hypothesis]]:
    """The `best` most probable texts of each row, best first (Graves 2006; Hannun et al. 2014).

    It sums the probabilities of all paths of a text, as far as the beam keeps its prefixes, and so it can find a text whose
    best path is not the best one. A text is extended by the `width + 1` most probable symbols of each vector. bonus: added to
    the score of a text for each token. following: constraints on texts, with W rows for each row of logits; the blank is then
    the last symbol.
    """
    rows, frames, symbols = logits.shape
    logp = logits.log_softmax(-1, dtype=torch.float32)
    values, likely = logp.topk(min(width + 1, symbols), dim=-1)
    wide = widest_float(logits.device)
    values = values.to(wide).masked_fill(likely == blank, NEVER)
    beam = Prefixes.empty(rows, width, frames, logits.device)
    for t in range(frames):
        frame = logp[:, t]
        own = frame.gather(1, beam.last.clamp_min(0)).to(wide)
        mine = values[:, t, None]
        if following is not None:
            allowed = following.allowed(frame[:, :blank].repeat_interleave(width, 0))
            mine = F.pad(allowed, (0, 1), value=NEVER).unflatten(0, (rows, width)).to(wide)
            mine = mine.gather(2, likely[:, t, None].expand(-1, width, -1))
        after, place = _advance(beam, own, frame[:, blank, None].to(wide), mine, likely[:, t], bonus)
        if following is not None:
            first = width * torch.arange(rows, device=logits.device)[:, None]
            grown = after.size > beam.size.gather(1, place)
            following.follow(after.last.flatten(), grown.flatten(), (first + place).flatten())
        running = t < lengths
        for name in after.__dataclass_fields__:
            old, new = getattr(beam, name), getattr(after, name)
            setattr(beam, name, torch.where(running.view(-1, *[1] * (new.dim() - 1)), new, old))
    scores = beam.total + bonus * beam.size
    texts = zip(*(each[:, :best].tolist() for each in (beam.tokens, beam.size, scores)), strict=True)
    return [[Hypothesis(score, text[:size]) for text, size, score in zip(*row, strict=True) if score > NEVER] for row in texts]


def _advance(
    beam: Prefixes, own: Tensor, blank: Tensor, values: Tensor, likely: Tensor, bonus: float
) -> tuple[Prefixes, Tensor]:
    """The beam after one more vector, which gives log-probabilities to each text's last token `own` [B, W], to the `blank`
    [B, 1], and the `values` [B, W or 1, K] to the `likely` symbols [B, K]; and which text [B, W] each one continues."""
    total, width = beam.total, beam.size.size(1)
    # A text of the beam that is another one and a token is reached from there as well.
    from_other = (beam.name[:, :, None] == beam.parent[:, None]) & (total > NEVER)[:, None]
    same = beam.last[:, :, None] == beam.last[:, None]
    begun = torch.where(same, beam.blank[:, :, None], total[:, :, None]).masked_fill(~from_other, NEVER).amax(1)
    stays_blank = total + blank
    stays_token = torch.logaddexp(beam.token + own, begun + own)
    # The same token again is a new one only after a blank.
    begun = torch.where(likely[:, None] == beam.last[..., None], beam.blank[..., None], total[..., None])
    known = from_other.float() @ (beam.last[..., None] == likely[:, None]).float() > 0
    longer = (begun + values).masked_fill(known, NEVER).flatten(1)
    sizes = torch.cat([beam.size, (beam.size[..., None] + 1).expand(-1, -1, likely.size(1)).flatten(1)], 1)
    scores = torch.cat([torch.logaddexp(stays_blank, stays_token), longer], 1)
    chosen = (scores + bonus * sizes).sort(dim=1, descending=True, stable=True).indices[:, :width]
    new = chosen >= width
    place = torch.where(new, (chosen - width).clamp_min(0) // likely.size(1), chosen)
    symbol = likely.gather(1, torch.where(new, (chosen - width).clamp_min(0) % likely.size(1), 0))
    size, name = beam.size.gather(1, place), beam.name.gather(1, place)
    tokens = beam.tokens.gather(1, place[..., None].expand_as(beam.tokens))
    here = torch.arange(tokens.size(2), device=tokens.device) == size[..., None]
    after = Prefixes(
        tokens=torch.where(here & new[..., None], symbol[..., None], tokens),
        size=size + new,
        last=torch.where(new, symbol, beam.last.gather(1, place)),
        name=torch.where(new, name * FACTOR + symbol + 1, name),
        parent=torch.where(new, name, beam.parent.gather(1, place)),
        blank=stays_blank.gather(1, place).masked_fill(new, NEVER),
        token=torch.where(new, scores.gather(1, chosen), stays_token.gather(1, place)),
    )
    return after, place


IMPOSSIBLE = -1e9
"""The log-probability of a text that CTC cannot align."""


def rescore_with_ctc(
    decoder: Decoder,
    encoded: Encoded,
    logits: Tensor,
    lengths: Tensor,
    candidates: list[list[list[int]]],
    *,
    blank: int,
    weight: float,
) -> list[list[Hypothesis]]:
    """The candidates of each source, without EOS, by weight · log p_CTC + (1 − weight) · log p_attention, best first.

    logits, lengths: see `ctc_loss`. The texts of the result end with EOS.
    """
    most = max(len(some) for some in candidates)
    texts = [text for some in candidates for text in [*some, *[some[-1]] * (most - len(some))]]
    owners = torch.arange(len(candidates), device=logits.device)
    many = in_chains(encoded, owners, most)
    attention = log_probabilities(decoder, many, [[*text, EOS] for text in texts])
    counts = [len(text) for text in texts]
    block = torch.zeros(len(texts), max(1, *counts), dtype=torch.long)
    for row, text in zip(block, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    rows = owners.repeat_interleave(most)
    loss = ctc_loss(
        logits[rows], lengths[rows], block.to(logits.device), torch.tensor(counts, device=logits.device), blank=blank
    )
    aligned = (-loss.nll).where(loss.alignable, IMPOSSIBLE).tolist()
    scores = [weight * ours + (1 - weight) * theirs for ours, theirs in zip(aligned, attention, strict=True)]
    ranked = []
    for number, some in enumerate(candidates):
        own = zip(scores[number * most :], some, strict=False)
        ranked.append(sorted((Hypothesis(score, [*text, EOS]) for score, text in own), key=lambda each: -each.score))
    return ranked


def path_logits(decoder: NonAutoregressiveDecoder, hidden: Tensor) -> Tensor:
    """Logits [G, T, V] of paths, without special tokens."""
    logits = decoder.logits(hidden).float()
    logits[..., : UNK + 1] = NEVER
    return logits


class CtcSearch(NonAutoregressiveSearch):
    """Takes the text of the most probable path (CTC, greedy). A score is the log-probability of the path."""

    kind = "ctc"
    length_penalty = 0.0
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
        results = [[text] for text in texts_of(path, scores, lengths, blank=decoder.blank)]
        return _finished(results, request, path, lengths)


class CtcBeamSearch(NonAutoregressiveSearch):
    """Sums over the paths of each text and keeps the most probable ones (CTC prefix beam search).

    A score is the log-probability of the text, plus the bonus. The search and the order of its results use this score.

    width: texts per source that are kept
    length_bonus: added to the log-probability for each token
    """

    kind = "ctc_beam"
    length_penalty = 0.0
    accepts = frozenset({"n_best", "avoid", "trace"})
    holds = frozenset({"path"})

    def __init__(self, *, width: PositiveInt = 8, length_bonus: NonNegativeFloat = 0.0) -> None:
        self.beam, self.length_bonus = width, length_bonus

    def width(self, n_best: int) -> int:
        return max(self.beam, n_best)

    def texts(self, decoder: NonAutoregressiveDecoder, source: Encoded, request: SearchRequest) -> list[list[Hypothesis]]:
        hidden, lengths = request.runner.opening("states", lambda given: path_states(decoder, given), source)
        width, results, paths = self.width(request.n_best or 1), list[list[Hypothesis]](), []
        options = {"blank": decoder.blank, "width": width, "best": request.n_best or 1}
        for some, counts in zip(*_parts(hidden, lengths), strict=True):
            logits, following = path_logits(decoder, some), None
            if depends_on_prefix(request.constraints):
                owner = torch.arange(len(results), len(results) + len(some), device=some.device).repeat_interleave(width)
                following = PrefixConstraints.start(request.constraints, owner)
            results += prefix_beams(logits, counts, bonus=self.length_bonus, following=following, **options)
            paths.append(logits.argmax(-1))
        return _finished(results, request, torch.cat(paths), lengths)


def _best(decoder: NonAutoregressiveDecoder, source: Encoded) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable paths, their log-probabilities and their lengths."""
    if (paths := cpp_ctc_paths(decoder, source, UNK + 1)) is not None:
        return paths
    hidden, lengths = path_states(decoder, source)
    parts = zip(*_parts(hidden, lengths), strict=True)
    paths, scores = zip(*(best_paths(path_logits(decoder, some), counts) for some, counts in parts), strict=True)
    return torch.cat(paths), torch.cat(scores), lengths


def _parts(hidden: Tensor, lengths: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Rows whose logits are computed together, within the limit of positions."""
    size = max(1, POSITIONS.get(hidden.device.type, POSITIONS["cpu"]) // max(1, hidden.size(1)))
    return hidden.split(size), lengths.split(size)


def _finished(results: list[list[Hypothesis]], request: SearchRequest, path: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Texts of CTC cut off at the longest length; traced, with the best path [G, T]."""
    passes: list[list[RefinementPass]] = [[] for _ in results]
    if request.trace:
        rows = zip(path.tolist(), lengths.tolist(), strict=True)
        passes = [[RefinementPass(symbols[:count], [True] * count)] for symbols, count in rows]
    return [
        [Hypothesis(text.score, text.tokens[:longest], own) for text in texts]
        for texts, longest, own in zip(results, request.limits.max_tokens.tolist(), passes, strict=True)
    ]
