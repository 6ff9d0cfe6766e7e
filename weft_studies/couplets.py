"""Couplets: rules that tie a second line to the first, token by token, and scores of second lines.

Shapes: G sources · B rows · S source tokens · V vocabulary · T tokens just fed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.data.batch import EOS, PAD, UNK, Layout
from weft.decoding.ngram_blocking_and_rules import NEVER, Rule, append
from weft.evaluation.metrics import Bleu, check_texts
from weft.layers.decoder_state import State


@dataclass
class SourceRuleState:
    """The state of `SourceRules`.

    written [B, S + 2]: BOS and the first S tokens of each text, −1 where there is none yet · count [B]: tokens fed, BOS too ·
    length [B]: tokens of the source · origin [B, S]: for each place, the place where the source has this token first · barred
    [B, S]: tokens that the text may not contain; PAD bars nothing.
    """

    written: Tensor
    count: Tensor
    length: Tensor
    origin: Tensor
    barred: Tensor


class SourceRules:
    """Constrains each token by the source.

    same_length: a text has exactly as many tokens as its source · mirror_repeats: where the source repeats its token of an
    earlier place, the text repeats its own token of that place · no_shared: the text contains no `barred` token. A repeated
    token of a forced prefix is written again even if it is barred.

    sources: the tokens of each source, without EOS.
    """

    def __init__(self, rules: Collection[str], sources: Sequence[Sequence[int]], barred: Sequence[Sequence[int]]) -> None:
        self.same_length, self.mirrors = "same_length" in rules, "mirror_repeats" in rules
        extent = max(1, *(len(source) for source in sources))
        self.length = torch.tensor([len(source) for source in sources])
        self.origin = torch.arange(extent).repeat(len(sources), 1)
        self.barred = torch.full((len(sources), extent), PAD)
        for row, source in enumerate(sources):
            self.origin[row, : len(source)] = torch.tensor([source.index(token) for token in source])
            if "no_shared" in rules:
                self.barred[row, : len(barred[row])] = torch.tensor(barred[row])

    def init_state(self, rows: int, device: torch.device) -> State:
        written = torch.full((rows, self.origin.size(1) + 2), -1, device=device)
        count = torch.zeros(rows, dtype=torch.long, device=device)
        return SourceRuleState(written, count, *(part.to(device) for part in (self.length, self.origin, self.barred)))

    def __call__(
        self, logits: Tensor, tokens: Tensor, state: SourceRuleState, layout: Layout | None
    ) -> tuple[Tensor, SourceRuleState]:
        written, count = append(state.written, state.count, tokens, layout)
        place = count - 1
        inside = place < state.length
        allowed = logits.scatter(1, state.barred, NEVER)  # PAD is never written
        if self.mirrors:
            origin = state.origin.gather(1, place.clamp_max(state.origin.size(1) - 1)[:, None])
            repeated = written.gather(1, origin + 1)
            again = inside & (origin[:, 0] < place) & (repeated[:, 0] != UNK)
            allowed = torch.where(again[:, None], _only(logits, repeated), allowed)
        if self.same_length:
            allowed = torch.where(inside[:, None], allowed, NEVER)
        # Neither barring nor mirroring concerns the end of a text.
        allowed[:, EOS] = logits[:, EOS].masked_fill(inside, NEVER) if self.same_length else logits[:, EOS]
        return allowed, replace(state, written=written, count=count)


def _only(logits: Tensor, tokens: Tensor) -> Tensor:
    """The logits of tokens [B, 1], and −inf for all others."""
    tokens = tokens.clamp_min(0)
    return torch.full_like(logits, NEVER).scatter(1, tokens, logits.gather(1, tokens))


class SameLength(Rule):
    """As many tokens as the source."""

    constraint = SourceRules
    same_length = True


class MirrorRepeats(Rule):
    """Tokens repeated at the same places as in the source."""

    constraint = SourceRules


class NoShared(Rule):
    """No token of the source, except punctuation."""

    constraint = SourceRules
    one_vocabulary = True


class CharacterBleu2(Bleu):
    """BLEU with single characters and pairs of them."""

    name = "BLEU-2"
    order = 2

    def __init__(self) -> None:
        super().__init__(tokenize="char")


@dataclass(frozen=True)
class CoupletScores:
    """Scores of second lines, in percent.

    length: as long as the first line · mirrored: of those whose first line repeats a character, how many have equal characters
    at the same places · shared: with a character of the first line, punctuation aside · bleu2: BLEU with single characters and
    pairs of them, against references.
    """

    length: float
    mirrored: float
    shared: float
    bleu2: float


def score_couplets(firsts: Sequence[str], seconds: Sequence[str], references: Sequence[str]) -> CoupletScores:
    """The scores of second lines. Without any repeat in the first lines, `mirrored` is 100."""
    check_texts(seconds, firsts, ("second lines", "first lines"))
    check_texts(seconds, references, ("second lines", "references"))
    pairs = list(zip(firsts, seconds, strict=True))
    repeating = [pair for pair in pairs if repeats(pair[0])]
    return CoupletScores(
        length=_percent([len(first) == len(second) for first, second in pairs]),
        mirrored=_percent([mirrors(*pair) for pair in repeating]) if repeating else 100.0,
        shared=_percent([shares(*pair) for pair in pairs]),
        bleu2=CharacterBleu2().inner.corpus_score(list(seconds), [list(references)]).score,
    )


def repeats(line: str) -> bool:
    """Whether a line repeats a character, punctuation aside."""
    characters = [character for character in line if character.isalnum()]
    return len(set(characters)) < len(characters)


def mirrors(first: str, second: str) -> bool:
    """Whether the second line has equal characters wherever the first line has."""
    places = [(first.index(character), place) for place, character in enumerate(first)]
    return len(second) >= len(first) and all(second[earlier] == second[place] for earlier, place in places)


def shares(first: str, second: str) -> bool:
    """Whether the lines have a character in common, punctuation aside."""
    return any(character.isalnum() for character in set(first) & set(second))


def _percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / len(flags)
