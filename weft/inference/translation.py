"""Translation: lines of text to lines of text. The text of a sentence does not depend on its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from weft.batch import BOS, EOS, Layout, Source, power_of_two
from weft.data.copying import Numbering
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError, DataError
from weft.inference.cutting import cut
from weft.inference.predictor import Part, Prediction, Predictor, pad, refuse
from weft.inference.resolve import Resolved
from weft.inference.shortlist import Narrow, Shortlist
from weft.inference.teacher_forcing import force
from weft.inference.terms import NO_TERMS, Terms, book
from weft.kernels.graphs import Compiler
from weft.models.base import Model, NarrowedDecoder
from weft.objectives.likelihoods import log_likelihoods
from weft.search.choosers import Limits
from weft.search.constraints import Constraint, usual_constraints
from weft.search.loop import CHECK, EAGER, Control
from weft.search.recorded import Recorded, recorder_of
from weft.search.tables import Hypothesis, Tables
from weft.search.terms import Avoid

ROUND = 16
"""On a GPU sources are padded to a multiple of this many tokens, so that recorded searches come in few sizes."""


@dataclass
class Translation(Prediction):
    """A translation. Its score is that of the search, such as the log-probability divided by lengthᵅ, or of the reranker."""


@dataclass(frozen=True)
class TranslationInput:
    """A text to translate.

    prefix: how the translation has to begin · terms: words it must use or avoid · attention: whether to add attention weights.
    """

    text: str
    prefix: str = ""
    terms: Terms = NO_TERMS
    attention: bool = False


@dataclass(eq=False)
class Piece(Part):
    """A line, or a piece of one that is too long. Its ids end with EOS.

    prefix: ids of the forced prefix · words: unknown words of the source, if the model can copy them; the first has the first
    id beyond the vocabulary, and so on · text: the text of the ids.
    """

    prefix: list[int]
    words: list[str] = field(default_factory=list)
    terms: Terms = NO_TERMS
    text: str = ""

    @property
    def seed(self) -> int:
        """Names the sentence to sampling. It depends only on what is read, not on the batch."""
        content = np.array([len(self.ids), *self.ids, *self.prefix], dtype=np.int64).tobytes()
        return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1


class TranslationPredictor(Predictor[TranslationInput, Translation]):
    """A model with its tokenizers.

    A line with more tokens than `max_source` (the model's positions, or decode.max_source) is cut between words. Its pieces are
    translated separately and joined by spaces. `shortlist` holds the likely target tokens per source token, for
    decode.shortlist; lines with terms, and traces, use the whole vocabulary.
    """

    def __init__(
        self,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        resolved: Resolved,
        *,
        warn: Callable[[str], None] | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.source, self.target, self.shortlist = source, target, shortlist
        self.recorder = recorder_of(model)
        self.compiler = Compiler(self.warn) if resolved.section.compile else None
        self.max_source = min(resolved.section.max_source, model.max_source or resolved.section.max_source)
        resolved.search.watched(model.decoder)  # fails now if the search cannot work with this decoder
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])
        if shortlist:
            resolved.search.check(["shortlist"])
            # Fails now if the model has no narrow output layer; otherwise it is prepared for all searches.
            model.decoder.among(torch.tensor([EOS], device=model.device))

    @property
    def rounds(self) -> bool:
        return self.recorder is not None

    def parse(
        self, line: str, *, prefix: str = "", terms: Terms = NO_TERMS, attention: bool = False, **fields: Any
    ) -> TranslationInput:
        refuse(fields, "a text to translate has no such field")
        return TranslationInput(line, prefix, terms, attention)

    def read(self, inputs: Sequence[TranslationInput], first_line: int) -> list[list[Piece]]:
        groups = self.pieces([given.text for given in inputs], [given.prefix for given in inputs], first_line)
        for line, (given, group) in enumerate(zip(inputs, groups, strict=True), start=first_line):
            self._check(given, f"line {line}: ")
            if given.terms.use and len(group) > 1:
                raise DataError(f"line {line} is cut into {len(group)} parts, so it cannot have terms to use; make it shorter")
            for piece in group:
                piece.terms = given.terms
        return groups

    def _check(self, given: TranslationInput, where: str) -> None:
        if given.terms and self.model.copies:
            raise ConfigError(f"{where}a model that copies source words (model.kind: pointer) does not support terms")
        if given.prefix or given.terms:
            wanted = {"prefix": given.prefix, "use": given.terms.use, "avoid": given.terms.avoid}
            self.resolved.search.check((name for name, value in wanted.items() if value), where)

    def pieces(self, lines: Sequence[str], prefixes: Sequence[str], first_line: int) -> list[list[Piece]]:
        """The pieces of each line: none if it is blank, usually one, several if it is too long."""
        room = max(1, self.max_source - 1)
        starts = self.target.encode_batch(list(prefixes))
        encoded = self.source.encode_batch(["" if line.isspace() else line for line in lines])
        groups: list[list[Piece]] = []
        most = self.model.max_target
        for number, (line, ids, start, prefix) in enumerate(
            zip(lines, encoded, prefixes, starts, strict=True), start=first_line
        ):
            if most is not None and len(prefix) + 1 >= most:
                raise DataError(f"line {number}: its prefix has {len(prefix):,} tokens, and the model has {most:,} positions")
            numbering = Numbering(self.source) if self.model.copies else None
            parts = [ids if numbering is None else numbering.number(line, ids)] if ids else []
            if len(ids) > room:
                parts = cut(line, numbering or self.source, room)
                self.warn(f"line {number} has {len(ids):,} tokens, more than {room:,}: translated in {len(parts)} parts")
            group = [Piece([*part, EOS], [] if k else prefix, text=line) for k, part in enumerate(parts)]
            if numbering is not None:
                group = [self._copying(piece, numbering, start) for piece in group]
            if len(group) > 1:
                for piece in group:
                    piece.text = self.source.named(piece.words).decode(piece.ids[:-1])
            groups.append(group)
        return groups

    def _copying(self, piece: Piece, numbering: Numbering, start: str) -> Piece:
        """The piece with ids for its own unknown words, which the prefix `start` may use too."""
        ids, words = numbering.alone(piece.ids)
        return Piece(ids, Numbering(self.target, words).find(start, piece.prefix), words, text=piece.text)

    def group(self, part: Piece) -> tuple[bool, bool]:
        """Required terms need another search, and terms exclude shortlists and recorded graphs, so they are batched apart."""
        return bool(part.terms.use), bool(part.terms.avoid)

    def run(self, parts: list[Piece], control: Control | None = None) -> list[list[Translation]]:
        found, _ = self.search(parts, control=control)
        rerank = self.resolved.rerank
        if rerank is None:
            return found
        return [self._reranked(each, rerank.scores(piece.text, each)) for piece, each in zip(parts, found, strict=True)]

    def _reranked(self, found: list[Translation], scores: list[float]) -> list[Translation]:
        """The n best by these scores, each text once."""
        ranked = sorted((replace(each, score=score) for each, score in zip(found, scores, strict=True)), key=lambda t: -t.score)
        return list({each.text: each for each in reversed(ranked)}.values())[::-1][: self.resolved.section.n_best]

    def join(self, given: TranslationInput, parts: list[Piece], results: list[list[Translation]]) -> Translation:
        """The translation of a line; only an uncut line has alternatives and attention weights of its own."""
        if not results or not all(results):
            return Translation("", 0.0)
        if given.attention:
            for piece, found in zip(parts, results, strict=True):
                forced = force(self.model, piece.ids, found[0].ids)
                found[0].attention, found[0].uses = forced.weights, forced.uses
        if len(results) == 1:
            results[0][0].alternatives = results[0][1:]
            return results[0][0]
        best = [found[0] for found in results]
        whole = Translation(" ".join(part.text for part in best), sum(part.score for part in best) / len(best))
        for part in best:
            whole.ids += part.ids
            whole.tokens += part.tokens
            whole.source_tokens += part.source_tokens
        return whole

    def search(
        self, pieces: list[Piece], *, trace: bool = False, control: Control | None = None
    ) -> tuple[list[list[Translation]], Tables | None]:
        """The translations of some pieces, not reranked, and the tables of the search; with `trace` they hold the beam tree."""
        device, resolved = self.model.device, self.resolved
        # Recorded searches come in few sizes, so the batch is padded with empty pieces to a power of two.
        missing = power_of_two(len(pieces)) - len(pieces) if self.rounds else 0
        rows = [*pieces, *(Piece([EOS], []) for _ in range(missing))]
        narrow = None
        if self.shortlist is not None and not trace and not any(piece.terms for piece in pieces):
            narrow = self.shortlist.narrow([(row.ids, row.prefix) for row in rows], resolved.section.shortlist, device)
        prefixes = [[BOS, *(narrow.numbers(piece.prefix) if narrow else piece.prefix)] for piece in rows]
        lengths = [len(prefix) for prefix in prefixes]
        use = book(self.target, [piece.terms.use for piece in rows], device)
        avoid = book(self.target, [piece.terms.avoid for piece in rows], device, early=True)
        limits = self.limits(rows, len(pieces), narrow)
        longest = max(lengths) + int(limits.longest.max())
        constraints: list[Constraint] = usual_constraints(resolved.section.no_repeat_ngram, longest)
        recorded = None
        if self.recorder is not None and not (use or avoid or narrow):
            recorded = self.recorder.stepping(resolved.section.model_dump_json(), self.compiler)
        with resolved.arithmetic(next(self.model.parameters()).dtype, resolved.beams):
            decoder = self.model.decoder if narrow is None else NarrowedDecoder(self.model.decoder, narrow.ids)
            found, tables = resolved.search.find(
                decoder,
                self._encode(rows, recorded),
                limits=limits,
                first=pad(prefixes).to(device),
                first_layout=Layout.padded(lengths).to(device) if len(set(lengths)) > 1 else None,
                best=resolved.candidates,
                constraints=[*constraints, *([Avoid(avoid)] if avoid else [])],
                required=use,
                stepping=recorded or EAGER,
                check=1 if trace else CHECK,
                trace=trace,
                control=control,
            )
        pairs = zip(pieces, found[: len(pieces)], strict=True)
        return [[self._translation(piece, each, narrow) for each in hypotheses] for piece, hypotheses in pairs], tables

    def _encode(self, rows: list[Piece], recorded: Recorded | None) -> Any:
        block = pad([piece.ids for piece in rows], ROUND if self.rounds else 1).to(self.model.device)
        lengths = [len(piece.ids) for piece in rows]
        # Searches with and without a layout would be recorded separately, so on a GPU there always is one.
        full = set(lengths) == {block.size(1)} and not self.rounds
        source = Source(block, None if full else Layout.padded(lengths, block.size(1)).to(self.model.device))
        return self.model.encode(source) if recorded is None else recorded.encode(self.model, source)

    def limits(self, pieces: list[Piece], real: int, narrow: Narrow | None = None) -> Limits:
        """Length limits per piece; pieces from number `real` on only pad the batch and end at once."""
        section, most = self.resolved.section, self.model.max_target
        longest = [min(section.max_length, int(section.max_ratio * len(piece.ids)) + 10) for piece in pieces]
        if most is not None:
            longest = [min(each, most - len(piece.prefix) - 1) for each, piece in zip(longest, pieces, strict=True)]
        longest = [max(1, each) if k < real else 1 for k, each in enumerate(longest)]
        shortest = [min(section.min_length, each - 1) for each in longest]
        columns = [torch.tensor(each, device=self.model.device) for each in (longest, shortest, [p.seed for p in pieces])]
        return Limits(columns[0], columns[1], columns[2], None if narrow is None else narrow.bias)

    def _translation(self, piece: Piece, hypothesis: Hypothesis, narrow: Narrow | None) -> Translation:
        ids = [*piece.prefix, *(narrow.tokens(hypothesis.tokens) if narrow else hypothesis.tokens)]
        source, target = self.source.named(piece.words), self.target.named(piece.words)
        text = target.decode([token for token in ids if token != EOS])
        return Translation(text, hypothesis.score, ids, target.tokens(ids), source.tokens(piece.ids))

    def log_likelihoods(self, source: str, targets: Sequence[str]) -> list[tuple[float, int]]:
        """See `Scorer`. Texts longer than the model's positions are cut off; the targets are scored in their own batch."""
        pieces = self.pieces([source], [""], 1)[0]
        if not pieces or not targets:
            return [(0.0, 1)] * len(targets)
        numbering = Numbering(self.target, pieces[0].words)
        most = self.model.max_target and self.model.max_target - 1
        rows = [[*numbering.find(text, ids)[:most], EOS] for text, ids in zip(targets, self.target.encode_batch(list(targets)))]
        labels = pad(rows).to(self.model.device)
        block = torch.tensor([pieces[0].ids] * len(rows), device=self.model.device)
        layout = Layout.padded([len(row) for row in rows]).to(self.model.device)
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
            hidden = self.model(Source(block), fed, layout).hidden
            found = log_likelihoods(self.model.decoder, hidden, labels).sum(1).tolist()
        return [(score, len(row)) for score, row in zip(found, rows, strict=True)]
