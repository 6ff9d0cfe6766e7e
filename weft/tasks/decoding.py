"""From lines of text to their translations: streaming, in order, a sentence's text independent of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice, repeat

import numpy as np
import torch
from numpy.typing import NDArray

from weft.batch import BOS, EOS, PAD, Layout, Source, power_of_two
from weft.config.sections import DecodeSection
from weft.data.copying import Numbering
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError, DataError
from weft.kernels.cpp import using
from weft.kernels.graphs import Compiler
from weft.models.base import Model
from weft.models.narrowed import NarrowedDecoder
from weft.search.choosers import Limits
from weft.search.loop import CHECK, PLAINLY, generate
from weft.search.recorded import Recorded, Recorder, recorder_of
from weft.search.tables import Hypothesis, Tables
from weft.search.terms import Avoid
from weft.tasks.choosing import chooser, constraints
from weft.tasks.cutting import cut
from weft.tasks.forcing import attention_of
from weft.tasks.placing import autocasts, budget, native, settled, workers
from weft.tasks.shortlist import Narrow, Shortlist
from weft.tasks.terms import Terms, book, constrained
from weft.tasks.workers import Workers

WINDOWS = (8, 32, 128, 512, 2048)
"""Lines read at once: few at first, so that the first translations come soon, then more, so that batches fill well."""

TOGETHER = (8192,)
"""And of lines that are all there already, where nobody waits for the first."""

ROUND = 16
"""On a GPU sources are filled up to a multiple of so many tokens, so that searches come in few sizes."""


@dataclass
class Translation:
    """One translation.

    text · score, the log-probability divided by lengthᵅ · ids as the model said them, EOS included · tokens and source_tokens,
    pieces for display · attention: weights [heads, tokens, tokens attended to] by layer, where asked for · alternatives: the
    rest of the n best.
    """

    text: str
    score: float
    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)
    attention: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    alternatives: list[Translation] = field(default_factory=list)


@dataclass
class Piece:
    """A part of a line that is translated in one go: its ids (EOS at the end), the forced prefix, its unknown words, its terms.

    Unknown words are here only where the model can copy them: the first has the first id beyond the vocabulary, and so on.
    """

    ids: list[int]
    prefix: list[int]
    words: list[str] = field(default_factory=list)
    terms: Terms = field(default_factory=Terms)
    found: list[Translation] = field(default_factory=list)

    @property
    def number(self) -> int:
        """A number that names the sentence to sampling: it depends on what is read alone, not on where it stands."""
        said = np.array([len(self.ids), *self.ids, *self.prefix], dtype=np.int64).tobytes()
        return int.from_bytes(blake2b(said, digest_size=8).digest(), "little") >> 1


Found = list[list[Translation]]
"""The translations of each piece of a batch."""


class Decoding:
    """A model with its tokenizers and the settings of search.

    A line of more tokens than `max_source` (the model's positions, or decode.max_source) is cut between words into pieces
    that are translated one by one and joined by spaces; `warn` is told. `shortlist`: the tokens to choose among, by source
    token, where decode.shortlist asks for that; lines with terms, and traces, choose among all.
    """

    def __init__(
        self,
        model: Model,
        source: Tokenizer,
        target: Tokenizer,
        options: DecodeSection,
        *,
        warn: Callable[[str], None] | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.model, self.source, self.target, self.options = model, source, target, settled(options, model.device)
        self.recorder = recorder_of(model)
        self.warn = warn or (lambda message: None)
        self.compiler, self.kernels = Compiler(self.warn) if options.compile else None, native(options, model.device, self.warn)
        limits = [options.max_source] + ([] if model.max_source is None else [model.max_source])
        self.max_source = min(limits)
        self.shortlist = shortlist
        if shortlist:
            model.decoder.among(torch.tensor([EOS], device=model.device))  # what fails, or is kept for all searches, does now

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        attention: bool = False,
        first_line: int = 1,
    ) -> Iterator[Translation]:
        """A translation for each line, in order. Lines are read as they are needed, so any number of them will do."""
        texts, windows = iter(lines), TOGETHER if isinstance(lines, Sequence) else WINDOWS
        starts = None if prefixes is None else iter(prefixes)
        wishes = repeat(Terms()) if terms is None else iter(terms)
        number, turn = first_line, 0
        with Workers(workers(self.options), self._found) as crew:
            while window := list(islice(texts, windows[min(turn, len(windows) - 1)])):
                forced = [""] * len(window) if starts is None else list(islice(starts, len(window)))
                if len(forced) < len(window):
                    raise DataError(
                        f"line {number + len(forced)} has no prefix: there must be one for every line, if only empty"
                    )
                pieces = self.pieces(window, forced, number)
                self._give(pieces, list(islice(wishes, len(window))), number)
                yield from self._window(pieces, attention, crew)
                number, turn = number + len(window), turn + 1
        if starts is not None and next(starts, None) is not None:
            raise DataError(f"there are more prefixes than lines to translate: line {number} is missing")

    def _give(self, groups: list[list[Piece]], terms: Sequence[Terms], number: int) -> None:
        """Each piece gets its line's terms."""
        for at, (group, wanted) in enumerate(zip(groups, terms, strict=True), start=number):
            if wanted and self.model.copies:
                raise ConfigError("a model that copies source words (model.kind: pointer) cannot be given terms")
            if wanted.use and len(group) > 1:
                raise DataError(f"line {at} is cut into {len(group)} parts, so no term can be asked of it; make it shorter")
            for piece in group:
                piece.terms = wanted

    def _window(self, pieces: list[list[Piece]], attention: bool, crew: Workers[list[Piece], Found]) -> Iterator[Translation]:
        waiting = [piece for group in pieces for piece in group]
        for batch, found in crew.run(self._batches(waiting)):
            for piece, each in zip(batch, found, strict=True):
                piece.found = each
                if attention:
                    self._look(piece)
        for group in pieces:
            yield _join([piece.found for piece in group])

    def _found(self, batch: list[Piece]) -> Found:
        self.search(batch)
        return [piece.found for piece in batch]

    def pieces(self, lines: Sequence[str], prefixes: Sequence[str], number: int) -> list[list[Piece]]:
        """For each line its pieces: none if it is blank, one as a rule, several if it is too long."""
        room = max(1, self.max_source - 1)
        starts = self.target.encode_batch(list(prefixes))
        encoded = self.source.encode_batch(["" if line.isspace() else line for line in lines])
        groups: list[list[Piece]] = []
        for at, (line, ids, start, prefix) in enumerate(zip(lines, encoded, prefixes, starts, strict=True), start=number):
            if self.model.max_target is not None and len(prefix) + 1 >= self.model.max_target:
                raise DataError(
                    f"line {at}: its prefix has {len(prefix):,} tokens, and the model has {self.model.max_target:,} positions"
                )
            numbering = Numbering(self.source) if self.model.copies else None
            parts = [ids if numbering is None else numbering.number(line, ids)] if ids else []
            if len(ids) > room:
                parts = cut(line, numbering or self.source, room)
                self.warn(f"line {at} has {len(ids):,} tokens, more than {room:,}: translated in {len(parts)} parts")
            group = [Piece([*part, EOS], [] if k else prefix) for k, part in enumerate(parts)]
            groups.append(group if numbering is None else [self._copying(piece, numbering, start) for piece in group])
        return groups

    def _copying(self, piece: Piece, numbering: Numbering, start: str) -> Piece:
        """A piece whose unknown words have ids of their own: those of the line, given anew; in the prefix `start` too."""
        ids, words = numbering.alone(piece.ids)
        return Piece(ids, Numbering(self.target, words).find(start, piece.prefix), words)

    def _batches(self, pieces: list[Piece]) -> Iterator[list[Piece]]:
        """Pieces of like length together, the longest first, within the token budget; those with terms apart."""
        batch: list[Piece] = []
        room, most = budget(self.options), -(-len(pieces) // workers(self.options))
        for piece in sorted(pieces, key=lambda piece: (bool(piece.terms), -len(piece.ids))):
            full = batch and (len(batch[0].ids) * (len(batch) + 1) > room or len(batch) == most)
            if full or (batch and bool(batch[0].terms) != bool(piece.terms)):
                # Searches are filled up to powers of two where they are recorded: better by the next pieces than by nothing.
                whole = self.recorder is None or bool(batch[0].terms) != bool(piece.terms)
                size = len(batch) if whole else power_of_two(len(batch) + 1) // 2
                yield batch[:size]
                batch = batch[size:]
            batch.append(piece)
        if batch:
            yield batch

    def search(self, pieces: list[Piece], *, trace: bool = False) -> Tables:
        """Finds the translations of some pieces. With `trace`, the beam tree is in the tables that come back."""
        options, device = self.options, self.model.device
        rows = pieces if self.recorder is None else _rounded(pieces)
        lengths = [len(piece.ids) for piece in rows]
        narrow = None if trace or any(piece.terms for piece in pieces) else self._narrow(rows)
        prefixes = [[BOS, *(narrow.numbers(piece.prefix) if narrow else piece.prefix)] for piece in rows]
        limits = self.limits(rows, len(pieces), narrow)
        first, ragged = pad(prefixes).to(device), len({len(prefix) for prefix in prefixes}) > 1
        first_layout = Layout.padded([len(prefix) for prefix in prefixes]).to(device) if ragged else None
        use = book(self.target, [piece.terms.use for piece in rows], device)
        avoid = book(self.target, [piece.terms.avoid for piece in rows], device, early=True)
        autocast = autocasts(options, next(self.model.parameters()).dtype, self.kernels)
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=autocast), using(self.kernels):
            block = pad([piece.ids for piece in rows], 1 if self.recorder is None else ROUND).to(device)
            # For a recorder searches with and without a layout would be of different sizes.
            full = set(lengths) == {block.size(1)} and self.recorder is None
            source = Source(block, None if full else Layout.padded(lengths, block.size(1)).to(device))
            recorded = None if self.recorder is None or use or avoid or narrow else self._recorded(self.recorder)
            found, tables = generate(
                self.model.decoder if narrow is None else NarrowedDecoder(self.model.decoder, narrow.ids),
                self.model.encode(source) if recorded is None else recorded.encode(self.model, source),
                chooser(options) if use is None else constrained(options, use, use.read(first, first_layout)),
                first=first,
                first_layout=first_layout,
                limits=limits,
                constraints=constraints(options, first.size(1) + int(limits.longest.max())) + ([Avoid(avoid)] if avoid else []),
                best=options.n_best,
                check=1 if trace else CHECK,
                trace=trace,
                stepping=recorded or PLAINLY,
            )
        for piece, hypotheses in zip(pieces, found[: len(pieces)], strict=True):
            piece.found = [self._translation(piece, hypothesis, narrow) for hypothesis in hypotheses]
        return tables

    def _narrow(self, pieces: list[Piece]) -> Narrow | None:
        """The tokens that the pieces choose among, if there is a shortlist."""
        given = [(piece.ids, piece.prefix) for piece in pieces]
        return None if self.shortlist is None else self.shortlist.narrow(given, self.options.shortlist, self.model.device)

    def _recorded(self, recorder: Recorder) -> Recorded:
        return recorder.stepping(self.options.model_dump_json(), self.compiler)

    def limits(self, pieces: list[Piece], real: int, narrow: Narrow | None = None) -> Limits:
        """How long texts may become; those of pieces behind the `real` ones end at once."""
        options, most = self.options, self.model.max_target
        longest = [min(options.max_length, int(options.max_ratio * len(piece.ids)) + 10) for piece in pieces]
        if most is not None:
            longest = [min(each, most - len(piece.prefix) - 1) for each, piece in zip(longest, pieces, strict=True)]
        longest = [max(1, each) if k < real else 1 for k, each in enumerate(longest)]
        shortest = [min(options.min_length, each - 1) for each in longest]
        columns = [torch.tensor(each, device=self.model.device) for each in (longest, shortest, [p.number for p in pieces])]
        return Limits(columns[0], columns[1], columns[2], None if narrow is None else narrow.bias)

    def _translation(self, piece: Piece, hypothesis: Hypothesis, narrow: Narrow | None) -> Translation:
        ids = [*piece.prefix, *(narrow.tokens(hypothesis.tokens) if narrow else hypothesis.tokens)]
        source, target = self.source.named(piece.words), self.target.named(piece.words)
        text = target.decode([token for token in ids if token != EOS])
        return Translation(text, hypothesis.score, ids, target.tokens(ids), source.tokens(piece.ids))

    def _look(self, piece: Piece) -> None:
        for best in piece.found[:1]:
            best.attention = attention_of(self.model, piece.ids, best.ids)


def _rounded(pieces: list[Piece]) -> list[Piece]:
    """Pieces with more of them behind, to make up one of few sizes that a recorder can meet again."""
    missing = power_of_two(len(pieces)) - len(pieces)
    return [*pieces, *(Piece([EOS], []) for _ in range(missing))]


def _join(parts: list[list[Translation]]) -> Translation:
    """The translation of a line from those of its parts; the n best only where there is one part."""
    if not parts or any(not part for part in parts):
        return Translation("", 0.0)
    if len(parts) == 1:
        only, *rest = parts[0]
        only.alternatives = rest
        return only
    best = [part[0] for part in parts]
    whole = Translation(" ".join(part.text for part in best), sum(part.score for part in best) / len(best))
    for part in best:
        whole.ids += part.ids
        whole.tokens += part.tokens
        whole.source_tokens += part.source_tokens
    return whole


def pad(rows: Sequence[Sequence[int]], multiple: int = 1) -> torch.Tensor:
    """Rows of ids as one block, filled up with PAD to a multiple of so many tokens."""
    extent = -(-max(len(row) for row in rows) // multiple) * multiple
    return torch.tensor([[*row, *[PAD] * (extent - len(row))] for row in rows])
