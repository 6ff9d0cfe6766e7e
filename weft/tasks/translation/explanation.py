"""Explanation of the translation of one sentence: attention, probabilities of tokens, and the beam tree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.data.batch import BOS, EOS, PAD, UNK
from weft.data.copy_vocabulary import encode_named
from weft.decoding.generate import max_tokens
from weft.decoding.hypotheses import BackpointerTables, RefinementPass
from weft.decoding.score_given_targets import teacher_force
from weft.errors import ConfigError, DataError
from weft.explain.attention_maps import TextAxes, find_maps, find_slots, observed
from weft.explain.beam_tree import BeamTree
from weft.explain.explanation import Candidate, DecodingStep, Explanation, Node, Side, WritingPass, make_side, shown
from weft.explain.inside import Inside, record_inside
from weft.models.pointer_generator import PointerDecoder
from weft.tasks.translation.given_translation import encode_source, encode_target
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.segmenter import TextSegment

Names = Callable[[Sequence[int]], list[str]]
"""A readable text for each id."""

OPTIONS = 5
"""Number of likeliest tokens listed at each step."""

CONTINUATIONS = 12
"""Maximum number of steps of a given target for which the model's own continuation is computed."""

BLANK = "·"
"""The sign of a position that holds no token."""

AT_ONCE = "the decoder writes all tokens at once; probabilities and attention are those of a first pass over blanks"


def explain_translation(
    predictor: TranslationPredictor,
    text: str,
    *,
    target: str | None = None,
    run: str = "",
    influence: bool | None = None,
    inside: bool = False,
) -> Explanation:
    """Explains the translation of a text, or a given `target`, token by token.

    influence: add the influence of each source token on each target token, by removing source tokens one by one; None: only
    if the model has no cross-attention weights · inside: add every step of the model.
    """
    model, segment = predictor.model, encode_source(predictor, text)
    predictor.options.search.check(["trace"])
    if influence and model.decoder.parallel:
        raise ConfigError("influence is measured for models that write one token after the other; leave out --influence")
    (best,), tables = predictor.search([segment], trace=True)
    if target is None and not (best and best[0].ids):
        raise DataError("the search found no translation to explain; increase decode.max_length")
    ids = best[0].ids if target is None else encode_target(predictor, target, segment)
    copying = {name: part.gate for name, part in model.named_modules() if isinstance(part, PointerDecoder)}
    gates: dict[str, Tensor] = {}
    with observed(copying, lambda name, _, gate: gates.setdefault(name, gate[0, :, 0].float())):
        forced, maps = find_maps(model, segment.ids, ids, influence=influence)
    names = predictor.target.named(segment.words).tokens
    steps = _steps(forced.logp, ids, names, list(gates.values()))
    score = sum(step.logp for step in steps) / predictor.options.search.divisor(len(ids))
    if target is None and model.decoder.parallel:
        score = best[0].score  # of a path of CTC, the blanks count too
    if target is not None and not model.decoder.parallel:
        steps = _continuations(predictor, segment, ids, forced.logp, steps)
    source, written = make_side(*encode_named(predictor.source, text)), _target_side(predictor, segment, ids, target)
    return Explanation(
        run=run,
        model=type(model).__name__,
        source=source,
        target=written,
        score=best[0].score if target is None else score,
        steps=steps,
        maps=maps,
        best=best,
        tree=[] if tables is None else _tree(predictor, segment, tables, names),
        passes=_passes(predictor, best[0].passes) if best else [],
        forced=target is not None,
        notes=[*_unknown_words(predictor, text), *_without_attention(predictor)],
        inside=_inside(predictor, segment, ids, (source, written)) if inside else None,
    )


def _inside(predictor: TranslationPredictor, segment: TextSegment, ids: Sequence[int], sides: tuple[Side, Side]) -> Inside:
    """Every step of the model for this target."""
    with record_inside(predictor.model) as recorder:
        teacher_force(predictor.model, segment.ids, ids)
    names, known = predictor.target.named(segment.words).tokens, predictor.target.size + len(segment.words)

    def vocabulary(ids: Sequence[int]) -> list[str]:
        """Behind the words that can be copied, a pointer has columns for further tokens of the source, which stay empty."""
        return [*names([each for each in ids if each < known]), *(BLANK for each in ids if each >= known)]

    return Inside.of(recorder, TextAxes(find_slots(predictor.model), *sides, vocabulary))


def _target_side(predictor: TranslationPredictor, segment: TextSegment, ids: list[int], target: str | None) -> Side:
    """The target as it is shown: as the search wrote it or, if it was given, with its unknown words."""
    if target is None or predictor.model.decoder.parallel:
        return make_side(predictor.target.named(segment.words), ids)
    return make_side(*encode_named(predictor.target, target, segment.words))


def _passes(predictor: TranslationPredictor, passes: Sequence[RefinementPass]) -> list[WritingPass]:
    """The passes of a decoder that writes all tokens at once, in words."""
    size = predictor.target.size
    return [
        WritingPass(
            [shown(predictor.target.tokens([token])[0]) if token < size else BLANK for token in each.tokens], each.written
        )
        for each in passes
    ]


def _steps(logp: Tensor, ids: Sequence[int], names: Names, gates: Sequence[Tensor]) -> list[DecodingStep]:
    """Returns each target token with its likeliest alternatives. logp [T, V]; gates [T] of models that can copy."""
    scores = logp[torch.arange(len(ids)), torch.tensor(ids, device=logp.device)]
    better = (logp > scores[:, None]).sum(-1).tolist()
    top, tokens = _allowed(logp).topk(min(OPTIONS, logp.size(-1)))
    copied = (1 - torch.stack([gate.sigmoid() for gate in gates]).mean(0)).tolist() if gates else [None] * len(ids)
    options = [
        [Candidate(shown(token), score) for token, score in zip(names(row), likeliest, strict=True) if score > -math.inf]
        for row, likeliest in zip(tokens.tolist(), top.tolist(), strict=True)
    ]
    columns = zip(map(shown, names(ids)), scores.tolist(), better, options, copied, strict=True)
    return [DecodingStep(*step) for step in columns]


def _allowed(logp: Tensor) -> Tensor:
    """[T, V] with −inf for the special tokens that a search never outputs."""
    return logp.index_fill(-1, torch.tensor([PAD, BOS, UNK], device=logp.device), -math.inf)


def _continuations(
    predictor: TranslationPredictor, segment: TextSegment, ids: Sequence[int], logp: Tensor, steps: list[DecodingStep]
) -> list[DecodingStep]:
    """Adds, to steps of a given target where another token is likeliest, the text that the model would have written."""
    likeliest = _allowed(logp).argmax(-1).tolist()
    places = [place for place, (token, own) in enumerate(zip(ids, likeliest, strict=True)) if token != own][:CONTINUATIONS]
    names = predictor.target.named(segment.words)
    texts = {place: names.decode(ids[:place]) for place in places if likeliest[place] == EOS}
    unfinished = [place for place in places if place not in texts]
    if unfinished:
        segments = [TextSegment(segment.ids, [*ids[:place], likeliest[place]], segment.words) for place in unfinished]
        results, _ = predictor.search(segments)
        texts |= {place: translations[0].text for place, translations in zip(unfinished, results, strict=True) if translations}
    return [replace(step, instead=texts.get(place)) for place, step in enumerate(steps)]


def _tree(predictor: TranslationPredictor, segment: TextSegment, tables: BackpointerTables, names: Names) -> list[Node]:
    if tables.candidates is None:
        return []
    width, penalty = tables.tokens.size(-1), predictor.options.search.length_penalty
    (longest,) = max_tokens(predictor.model, predictor.request([segment]))
    return BeamTree(tables, lambda token: shown(names([token])[0]), width, penalty, longest).nodes()


def _unknown_words(predictor: TranslationPredictor, text: str) -> list[str]:
    """Returns a note on words that the model does not know."""
    words = [] if predictor.model.copies else predictor.source.unknown(text)
    return [f"not in the vocabulary, so read as <unk>: {', '.join(dict.fromkeys(words))}"] if words else []


def _without_attention(predictor: TranslationPredictor) -> list[str]:
    """Returns notes on the kinds of attention that the model does not have."""
    model = predictor.model
    notes = {
        "encoder": f"{type(model.encoder).__name__} has no self-attention, so there is no map among source tokens",
        "causal": f"{type(model.decoder).__name__} has no self-attention; its state holds the previous tokens",
        "cross": f"{type(model.decoder).__name__} has no attention to the source; influence is shown instead",
    }
    if model.decoder.parallel:
        return [AT_ONCE]
    uses = {slot.use for slot in find_slots(model)}
    return [note for use, note in notes.items() if use not in uses]
