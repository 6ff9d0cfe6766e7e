"""From a sentence to all that can be seen of its translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.batch import BOS, EOS, PAD, UNK
from weft.data.copying import Numbering
from weft.data.tokenizer import Tokenizer
from weft.errors import DataError
from weft.explain.explanation import Explanation, Node, Option, Step
from weft.explain.looks import find_slots, look_closely
from weft.explain.text import make_side, shown
from weft.explain.tree import BeamTree
from weft.inference.translation import Piece, TranslationPredictor
from weft.models.base import Model
from weft.models.pointer import PointerDecoder
from weft.search.tables import Tables

OPTIONS = 5
"""The likeliest tokens that are named for each place."""

WAYS = 12
"""Places of a given target for which the model's own continuation is worked out: the first where it would go another way."""


def explain(
    predictor: TranslationPredictor, text: str, *, target: str | None = None, run: str = "", influence: bool | None = None
) -> Explanation:
    """What a model writes for a text, or thinks of a given `target`, token by token.

    `influence`: also how much each target token depends on each source token, by taking these away one by one; None: only
    where the model shows no weights over the source.
    """
    model, piece = predictor.model, read(predictor, text)
    predictor.resolved.search.check(["trace"])
    (found,), tables = predictor.search([piece], trace=True)
    if target is None and not found:
        raise DataError("the search found no translation to explain; raise decode.max_length")
    ids = found[0].ids if target is None else read_target(predictor, target, piece)
    with _gates(model) as gates:
        forced, looks = look_closely(model, piece.ids, ids, influence=influence)
    named = predictor.target.named(piece.words)
    steps = _steps(forced.logp, ids, named, gates)
    score = sum(step.logp for step in steps) / len(ids) ** predictor.resolved.search.length_penalty
    if target is not None:
        steps = _other_ways(predictor, piece, ids, forced.logp, steps)
    return Explanation(
        run=run,
        model=type(model).__name__,
        source=make_side(*given_ids(predictor.source, text)),
        target=make_side(named, ids) if target is None else make_side(*given_ids(predictor.target, target, piece.words)),
        score=found[0].score if target is None else score,
        steps=steps,
        looks=looks,
        best=found,
        tree=_tree(predictor, piece, tables, named),
        forced=target is not None,
        notes=[*_unread(predictor, text), *_unseen(model)],
    )


def read(predictor: TranslationPredictor, text: str) -> Piece:
    """A text as the model reads it; an error if it is blank, or too long to be read in one go."""
    pieces = predictor.pieces([text], [""], 1)[0]
    if not pieces:
        raise DataError("there is nothing to explain in an empty text; give a sentence")
    if len(pieces) > 1:
        raise DataError(
            f"the text has more than {predictor.max_source - 1:,} tokens, which the model reads at most in one go; "
            "give its sentences one by one"
        )
    return pieces[0]


def read_target(predictor: TranslationPredictor, target: str, piece: Piece) -> list[int]:
    """A given target as the model would write it, EOS included; words of the source that can only be copied have its ids."""
    ids = [*Numbering(predictor.target, piece.words).find(target, predictor.target.encode(target)), EOS]
    most = predictor.model.max_target
    if most is not None and len(ids) > most:
        raise DataError(f"the target has {len(ids):,} tokens, and the model has {most:,} positions; give a shorter one")
    return ids


def given_ids(tokenizer: Tokenizer, text: str, words: Sequence[str] = ()) -> tuple[Tokenizer, list[int]]:
    """The ids of a text, EOS included, and a tokenizer to which words that are not in the vocabulary have names too."""
    numbering = Numbering(tokenizer, words)
    ids = [*numbering.encode(text), EOS]
    return tokenizer.named(numbering.words), ids


def _steps(logp: Tensor, ids: Sequence[int], names: Tokenizer, gates: Sequence[Tensor]) -> list[Step]:
    """Every written token with what else could have been written. logp [T, V]."""
    said = logp[torch.arange(len(ids)), torch.tensor(ids, device=logp.device)]
    better = (logp > said[:, None]).sum(-1).tolist()
    top, tokens = _sayable(logp).topk(min(OPTIONS, logp.size(-1)))
    copied = (1 - torch.stack([gate.sigmoid() for gate in gates]).mean(0)).tolist() if gates else [None] * len(ids)
    found = zip(names.tokens(ids), said.tolist(), better, top.tolist(), tokens.tolist(), copied, strict=True)
    return [
        Step(shown(token), score, rank, _options(scores, names.tokens(options)), share)
        for token, score, rank, scores, options, share in found
    ]


def _sayable(logp: Tensor) -> Tensor:
    """[T, V] with −inf for the special ids that a search never says."""
    return logp.index_fill(-1, torch.tensor([PAD, BOS, UNK], device=logp.device), float("-inf"))


def _options(scores: Sequence[float], tokens: Sequence[str]) -> list[Option]:
    return [Option(shown(token), score) for token, score in zip(tokens, scores, strict=True) if score > float("-inf")]


def _other_ways(
    predictor: TranslationPredictor, piece: Piece, ids: Sequence[int], logp: Tensor, steps: list[Step]
) -> list[Step]:
    """The steps of a given target, with the text that the model would have written where its likeliest token is another."""
    likeliest = _sayable(logp).argmax(-1).tolist()
    places = [place for place, (token, own) in enumerate(zip(ids, likeliest, strict=True)) if token != own][:WAYS]
    names = predictor.target.named(piece.words)
    ended = {place: names.decode(ids[:place]) for place in places if likeliest[place] == EOS}
    going = [place for place in places if place not in ended]
    if going:
        pieces = [Piece(piece.ids, [*ids[:place], likeliest[place]], piece.words) for place in going]
        results, _ = predictor.search(pieces)
        ended |= {place: found[0].text for place, found in zip(going, results, strict=True) if found}
    return [replace(step, instead=ended.get(place)) for place, step in enumerate(steps)]


def _tree(predictor: TranslationPredictor, piece: Piece, tables: Tables, names: Tokenizer) -> list[Node]:
    if tables.candidates is None:
        return []
    width, penalty = tables.tokens.size(-1), predictor.resolved.search.length_penalty
    longest = int(predictor.limits([piece], 1).longest)
    return BeamTree(tables, lambda token: shown(names.tokens([token])[0]), width, penalty, longest).nodes()


@contextmanager
def _gates(model: Model) -> Iterator[list[Tensor]]:
    """Inside this context the gates [T] of a model that copies are kept, as they were in the first pass; none of others."""
    found: dict[nn.Module, Tensor] = {}
    gates: list[Tensor] = []
    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, PointerDecoder):
                hook = part.gate.register_forward_hook(lambda gate, _, value: found.setdefault(gate, value[0, :, 0].float()))
                stack.callback(hook.remove)
        yield gates
        gates += found.values()


def _unread(predictor: TranslationPredictor, text: str) -> list[str]:
    """A note on words that the model does not know."""
    words = [] if predictor.model.copies else predictor.source.unknown(text)
    return [f"not in the vocabulary, so read as <unk>: {', '.join(dict.fromkeys(words))}"] if words else []


def _unseen(model: Model) -> list[str]:
    """What a model has no look of, and why."""
    uses = {slot.use for slot in find_slots(model)}
    found = []
    if "encoder" not in uses:
        found.append(f"{type(model.encoder).__name__} reads without attention: there is nothing to show among source tokens")
    if "causal" not in uses:
        found.append(f"{type(model.decoder).__name__} keeps what it wrote in its state, without attention to it")
    if "cross" not in uses:
        found.append(f"{type(model.decoder).__name__} has no attention to the source: what it depends on is shown instead")
    return found
