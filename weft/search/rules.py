"""Rules that tie a text to its source token by token, as the second line of a couplet is tied to the first.

Shapes: G sources · B rows · S source tokens · V vocabulary · T tokens just fed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from weft.batch import EOS, PAD, UNK, Layout
from weft.search.constraints import NEVER, append
from weft.state import State

Rule = Literal["same_length", "mirror_repeats", "no_shared"]
"""What `decode.rules` may name; see `Rules`."""


@dataclass
class Tied:
    """The state of `Rules`.

    written [B, S + 2]: BOS and the first S tokens of each text, −1 where there is none yet · count [B]: tokens fed, BOS too ·
    length [B]: tokens of the source · origin [B, S]: for each place, the place where the source has this token first · barred
    [B, S]: tokens that the text may not contain; PAD bars nothing.
    """

    written: Tensor
    count: Tensor
    length: Tensor
    origin: Tensor
    barred: Tensor


class Rules:
    """Constrains each token by the source.

    same_length: a text has exactly as many tokens as its source · mirror_repeats: where the source repeats its token of an
    earlier place, the text repeats its own token of that place · no_shared: the text contains no `barred` token. A repeated
    token of a forced prefix is written again even if it is barred.

    sources: the tokens of each source, without EOS.
    """

    def __init__(self, rules: Collection[Rule], sources: Sequence[Sequence[int]], barred: Sequence[Sequence[int]]) -> None:
        self.same_length, self.mirrors = "same_length" in rules, "mirror_repeats" in rules
        extent = max(1, *(len(source) for source in sources))
        self.length = torch.tensor([len(source) for source in sources])
        self.origin = torch.arange(extent).repeat(len(sources), 1)
        self.barred = torch.full((len(sources), extent), PAD)
        for row, source in enumerate(sources):
            self.origin[row, : len(source)] = torch.tensor([source.index(token) for token in source])
            if "no_shared" in rules:
                self.barred[row, : len(barred[row])] = torch.tensor(barred[row])

    def start(self, rows: int, device: torch.device) -> State:
        written = torch.full((rows, self.origin.size(1) + 2), -1, device=device)
        count = torch.zeros(rows, dtype=torch.long, device=device)
        return Tied(written, count, *(part.to(device) for part in (self.length, self.origin, self.barred)))

    def __call__(self, logits: Tensor, tokens: Tensor, state: Tied, layout: Layout | None) -> tuple[Tensor, Tied]:
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
