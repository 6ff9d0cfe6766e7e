"""Decoders that write all tokens at once: what they see, what they copy, and what their searches find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.reference.parallel_models import BLANK, CANVASES, SOURCES, decoder_of, found, make, search_of, sources
from weft.config.registry import build
from weft.data.batch import BOS, EOS, PAD, UNK
from weft.decoding.cpp_search import cpp_ctc_paths, path_states
from weft.decoding.ctc_decoding import best_paths, path_logits
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.mask_predict import ROUND, HashedUniform, refine
from weft.decoding.ngram_blocking_and_rules import NoRepeatNgram
from weft.errors import ConfigError
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild
from weft.models.base import Encoded
from weft.models.nonautoregressive import FertilityPredictor, NonAutoregressiveDecoder


@torch.inference_mode()
def test_every_input_changes_every_output() -> None:
    """Each source token and each target token influence all positions of the target."""
    for canvas in ("length", "upsampled"):
        model = make(canvas)
        decoder, rows = decoder_of(model), [[5, 6, 7, 8, 9, EOS]]
        source = model.encode(sources(rows))
        known = decoder.canvases.known(source, torch.tensor([6]), 6)
        tokens = torch.full_like(known.layout.positions, BLANK)

        def hidden(source: Encoded, tokens: Tensor, known: Any = known, decoder: NonAutoregressiveDecoder = decoder) -> Tensor:
            return decoder.hidden_states(tokens, decoder.open(source, known), known.layout).hidden[0]

        before = hidden(source, tokens)
        for place in range(5):
            other = [[*rows[0][:place], 11, *rows[0][place + 1 :]]]
            assert ((hidden(model.encode(sources(other)), tokens) - before).abs().amax(1) > 1e-6).all()
        for place in range(tokens.size(1)):
            written = tokens.clone()
            written[0, place] = 6
            assert ((hidden(source, written) - before).abs().amax(1) > 1e-6).all()


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_text_depends_neither_on_its_batch_nor_on_padding(canvas: str) -> None:
    model, (search, options) = make(canvas), search_of(canvas)
    together = found(model, search, SOURCES, best=3, extent=9, **options)
    assert any(len(text.tokens) > 1 for texts in together for text in texts)
    for row, texts in zip(SOURCES, together, strict=True):
        alone = found(model, search, [row], best=3, **options)[0]
        assert [text.tokens for text in alone] == [text.tokens for text in texts]
        assert [text.score for text in alone] == pytest.approx([text.score for text in texts], abs=1e-5)


@pytest.mark.parametrize("canvas", CANVASES)
def test_recorded_passes_write_the_same(canvas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is recorded when its size comes again, and canvases of other lengths are filled up to it."""
    model, (search, options) = make(canvas), search_of(canvas)
    expected = [found(model, search, [row, other], best=3, **options) for row in SOURCES for other in SOURCES]
    monkeypatch.setitem(ROUND, "cpu", 8)
    captured = 0

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        nonlocal captured
        captured += 1
        work()
        return work

    runner = SearchGraphs(capture).runner("one")
    for _ in range(3):
        rows = [
            found(model, search, [row, other], best=3, extent=9, runner=runner, **options)
            for row in SOURCES
            for other in SOURCES
        ]
        assert [[[text.tokens for text in texts] for texts in each] for each in rows] == [
            [[text.tokens for text in texts] for texts in each] for each in expected
        ]
    assert captured


@pytest.mark.parametrize("canvas", CANVASES)
def test_compiled_passes_write_the_same(canvas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sources, canvases of several lengths, and passes over texts that are written in part."""
    try:
        kernels = cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))
    model, search = make(canvas), search_of(canvas)
    searches = [search, *([("refine", {"iterations": 3, "lengths": 3})] if canvas in ("length", "copied") else [])]
    searches += [("ctc", {})] if canvas == "upsampled" else []
    expected = [found(model, name, SOURCES, best=1 if name == "ctc" else 3, **options) for name, options in searches]
    monkeypatch.setattr(type(model.decoder), "hidden_states", lambda *given: pytest.fail("not native"))
    with cpp.using(kernels):
        native = [found(model, name, SOURCES, best=1 if name == "ctc" else 3, **options) for name, options in searches]
    assert native == [
        [[Hypothesis(pytest.approx(text.score, abs=1e-4), text.tokens, text.passes) for text in texts] for texts in each]
        for each in expected
    ]


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        ({"canvas": {"kind": "upsampled", "factor": 3}, "position": "learned", "max_length": 40, "norm": "post"}, True),
        ({"mixer": {"kind": "full", "position": "rotary"}, "position": "none"}, True),
        ({"mixer": [{"kind": "local", "window": 3}, {"kind": "linear"}]}, True),
        ({"cross": "linear"}, False),
    ],
    ids=["learned", "rotary", "mixers", "linear"],
)
@torch.inference_mode()
def test_compiled_paths_have_the_same_states(options: dict[str, Any], planned: bool) -> None:
    """What the attentions to the source read is computed by the plan as well; other attentions run one operation at a time."""
    try:
        kernels = cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))
    model = make("upsampled", **options)
    decoder, source = decoder_of(model), model.encode(sources(SOURCES, 9))
    states, lengths = path_states(decoder, source)
    assert cpp_ctc_paths(decoder, source, UNK + 1) is None
    with cpp.using(kernels):
        ours, ours_lengths = path_states(decoder, source)
        found = cpp_ctc_paths(decoder, source, UNK + 1)
    ok = torch.arange(states.size(1)) < lengths[:, None]
    assert torch.equal(ours_lengths, lengths) and (found is not None) == planned
    torch.testing.assert_close(ours[ok], states[ok], atol=1e-5, rtol=1e-4)
    if found is not None:
        path, scores = best_paths(path_logits(decoder, states), lengths)
        torch.testing.assert_close(found[1], scores, atol=1e-4, rtol=1e-4)
        assert torch.equal(found[0][ok], path[ok]) and torch.equal(found[2], lengths)


@pytest.mark.parametrize("canvas", ["length", "fertility"])
def test_a_text_does_not_depend_on_the_lengths_beside_it(canvas: str) -> None:
    model = make(canvas)
    few, many = (found(model, "one_pass", SOURCES, best=count, lengths=count) for count in (3, 9))
    for some, all_of_them in zip(few, many, strict=True):
        scores = {tuple(text.tokens): text.score for text in all_of_them}
        for text in some:  # another draw of fertilities may find the same text with a better score
            better = scores[tuple(text.tokens)] - text.score
            assert better == pytest.approx(0, abs=1e-5) if canvas == "length" else better > -1e-5


def test_one_iteration_is_the_length_model() -> None:
    model = make("length")
    for lengths in (1, 4):
        refined = found(model, "refine", SOURCES, best=4, iterations=1, lengths=lengths)
        assert refined == found(model, "one_pass", SOURCES, best=4, lengths=lengths)


@torch.inference_mode()
def test_refining_masks_the_least_sure_tokens() -> None:
    """Iteration i writes ⌊N (I − i) / I⌋ tokens again, the least probable ones, as a plain loop does."""
    model, rows, total = make("length"), [[5, 6, 7, 8, 9, 10, EOS]], 4
    decoder = decoder_of(model)
    source = model.encode(sources(rows))
    canvas = decoder.canvases.known(source, torch.tensor([9]), 9)
    writing = refine(decoder, source, canvas, total)
    tokens, scores = [BLANK] * 9, [0.0] * 9
    for iteration in range(total):
        count = 9 if iteration == 0 else 9 * (total - iteration) // total
        masked = sorted(range(9), key=lambda place: scores[place])[:count] if iteration else range(9)
        fed = torch.tensor([[BLANK if place in masked else token for place, token in enumerate(tokens)]])
        logits = decoder.logits(decoder.hidden_states(fed, decoder.open(source, canvas), canvas.layout).hidden)[0]
        logits[:, [PAD, BOS, EOS, UNK, BLANK]] = float("-inf")
        best, chosen = logits.log_softmax(-1).max(-1)
        for place in masked:
            tokens[place], scores[place] = int(chosen[place]), float(best[place])
        written, new = writing.passes[iteration]
        assert written[0].tolist() == tokens
        assert new[0].nonzero()[:, 0].tolist() == sorted(masked)
    assert writing.logp[0].tolist() == pytest.approx(scores, abs=1e-5)


@torch.inference_mode()
def test_fertilities_of_one_copy_the_source() -> None:
    model = make("fertility")
    plan, source = decoder_of(model).canvases, model.encode(sources(SOURCES))
    assert source.layout is not None
    ones = source.layout.mask.long()
    canvas = plan.known(source, ones.sum(1), 7, ones)
    assert canvas.origin is not None
    assert canvas.layout.lengths.tolist() == [5, 3, 7]
    assert canvas.origin[2].tolist() == list(range(7))
    canvas = plan.known(source, ones.sum(1), 6, torch.tensor([[2, 0, 1, 3, 0, 0, 0]] * 3))
    assert canvas.origin is not None
    assert canvas.origin[0].tolist() == [0, 0, 2, 3, 3, 3]


@torch.inference_mode()
def test_the_first_candidate_has_the_most_probable_fertilities() -> None:
    model = make("fertility")
    plan, source = decoder_of(model).canvases, model.encode(sources(SOURCES))
    assert isinstance(plan, FertilityPredictor)
    canvases = plan.propose(source, 20, torch.full((3,), 20), HashedUniform(1, torch.tensor([1, 2, 3])))
    likeliest = plan.logp(source).argmax(-1)
    for row, given in enumerate(SOURCES):
        wanted = [place for place in range(len(given)) for _ in range(int(likeliest[row, place]))]
        assert canvases[0].origin is not None
        assert canvases[0].origin[row][: len(wanted)].tolist() == wanted
    assert len({tuple(canvas.layout.lengths.tolist()) for canvas in canvases}) > 3


def test_no_text_has_special_tokens_or_is_too_long() -> None:
    for canvas in CANVASES:
        search, options = search_of(canvas)
        for texts in found(make(canvas), search, SOURCES, best=3, **options):
            for text in texts:
                inner = text.tokens[:-1] if canvas == "ratio" and text.tokens[-1] == EOS else text.tokens
                assert not {PAD, BOS, EOS, UNK, BLANK} & set(inner)
                assert len(text.tokens) <= 20


@pytest.mark.parametrize(
    ("canvas", "search"), [("length", "one_pass"), ("length", "refine"), ("upsampled", "ctc"), ("upsampled", "ctc_beam")]
)
def test_constraints_hold_in_texts_written_at_once(canvas: str, search: str) -> None:
    model, options = make(canvas), {"length": {"lengths": 1}}.get(canvas, {})
    free = [texts[0].tokens for texts in found(model, search, SOURCES, **options)]
    assert any(len(set(text)) < len(text) for text in free), "the model repeats itself"
    bound = [texts[0].tokens for texts in found(model, search, SOURCES, more=[NoRepeatNgram(1, 30)], **options)]
    assert all(len(set(text)) == len(text) for text in bound)


def test_ctc_takes_the_text_of_the_most_probable_path() -> None:
    model = make("upsampled")
    greedy = found(model, "ctc", SOURCES)
    for row, texts in zip(SOURCES, greedy, strict=True):
        beam = found(model, "ctc_beam", [row], best=1, width=60)[0][0]
        # A beam sums over paths, so its text is at least as probable as the best path of the greedy text.
        assert beam.score >= texts[0].score - 1e-4


def test_wrong_searches_are_refused() -> None:
    for canvas, search, says in [
        ("length", "beam", "writes one token after the other"),
        ("length", "ctc", "set it to one_pass"),
        ("upsampled", "refine", "set it to ctc"),
    ]:
        with pytest.raises(ConfigError, match=says):
            build("weft.decoding:SEARCHES", search).wrap_decoder(make(canvas).decoder)
    with pytest.raises(ConfigError, match="position: none would make all blanks"):
        make("length", position="none")
