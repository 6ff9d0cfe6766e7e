"""What the options of decoding say about choosing tokens."""

from __future__ import annotations

from weft.batch import BOS, PAD, UNK
from weft.config.sections import DecodeSection
from weft.search.choosers import Beam, Chooser, Greedy, Sample
from weft.search.constraints import Constraint, Forbid, NoRepeat


def chooser(options: DecodeSection) -> Chooser:
    if options.sample:
        return Sample(options.n_best, options.temperature, options.top_k, options.top_p, options.seed)
    width = max(options.beam, options.n_best)
    return Greedy(options.length_penalty) if width == 1 else Beam(width, options.length_penalty, stop=options.stop)


def constraints(options: DecodeSection, longest: int) -> list[Constraint]:
    """What no text may say; `longest`: the most tokens of any of them."""
    found: list[Constraint] = [Forbid([PAD, BOS, UNK])]
    if 0 < options.no_repeat_ngram <= longest:
        found.append(NoRepeat(options.no_repeat_ngram, longest + 1))
    return found
