"""Searches that run in C++: they find what the ordinary loop finds, and what they do not cover uses that loop."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import weft
from tests.helpers.int8_kernel import EXACT, FLIPPED, with_all_levels
from weft.attention.full import FullAttention
from weft.data.batch import BOS, PAD, UNK, Layout, Source
from weft.decoding import cpp_search as native
from weft.decoding.beam_search import BeamSelector
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import Constraint, ForbidTokens, NoRepeatNgram
from weft.decoding.sampling import SamplingSelector
from weft.decoding.search_loop import Cancellation, SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.int8 import in_int8
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild, Kernels
from weft.layers.kernels.cpp_plan import MemoryStruct, NotPlanned, Op
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import ShortlistDecoder

VOCABULARY = 90
SMALL = {"kind": "transformer", "dim": 32, "heads": 2, "feedforward": 48, "encoder_layers": 1, "decoder_layers": 2}
MODELS = {
    "pre": SMALL,
    "post": {**SMALL, "norm": "post", "position": "learned", "max_length": 60, "activation": "gelu"},
    "rotary": {**SMALL, "position": "none", "decoder_self": {"kind": "full", "position": "rotary"}, "activation": "swiglu"},
    "local": {**SMALL, "decoder_self": [{"kind": "local", "window": 3}, {"kind": "full", "bias": False}]},
    "wired": {**SMALL, "encoder_layers": 2, "wiring": "mix"},
    "linear": {**SMALL, "encoder_self": "linear", "decoder_self": "linear", "cross": "linear"},
    "bahdanau": {"kind": "rnn", "dim": 32, "embedding": 24, "encoder_dim": 40, "decoder_layers": 2, "readout": "maxout"},
    "luong": {"kind": "rnn", "dim": 32, "style": "luong", "input_feeding": True, "cell": "lstm", "attention": "general"},
    "plain": {"kind": "rnn", "dim": 32, "style": "fixed", "cell": "rnn", "decoder_layers": 2, "residual": True},
    "convs2s": {"kind": "convs2s", "dim": 32, "channels": 40, "encoder_layers": 1, "decoder_layers": 2},
}
CHOOSERS: dict[str, TokenSelector] = {
    "greedy": GreedySelector(0.6, 5.0),
    "beam": BeamSelector(4),
    "wide": BeamSelector(9, 0.0, keep=3),
    "first": BeamSelector(3, stop="first"),
    "length": BeamSelector(3, stop="length"),
    "sample": SamplingSelector(3, 0.9, top_p=0.8, seed=3),
    "top_k": SamplingSelector(2, 1.3, top_k=7, seed=3),
    "coldest": SamplingSelector(1, 0.0),
}


@pytest.fixture(autouse=True)
def _all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_all_levels(monkeypatch)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    try:
        return cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Native searches, by their number of sources."""
    found: list[int] = []
    finish = native.CppSearch.finish

    def noted(self: native.CppSearch, *given: object) -> object:
        found.append(self.limits.max_tokens.numel())
        return finish(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(native.CppSearch, "finish", noted)
    return found


def made(kind: str, **options: object) -> Model:
    torch.manual_seed(5)
    model: Model = build_model({**MODELS[kind], **options}, Sizes(VOCABULARY, VOCABULARY, True)).eval()
    for parameter in model.parameters():
        parameter.mul_(3 if parameter.dim() > 1 else 1)  # so that rounding cannot change a choice
    return model


def searched(
    model: Model,
    selector: TokenSelector,
    *,
    prefix: bool = True,
    narrow: bool = False,
    rows: Sequence[int] = range(4),
    constraints: Sequence[Constraint] = (ForbidTokens([PAD, BOS, UNK]),),
    **options: object,
) -> list[list[Hypothesis]]:
    """Some of four sources with different lengths and limits, with prefixes of different lengths or none."""
    at = torch.tensor(list(rows))
    source = torch.randint(4, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(6))[at]
    longest, first = torch.tensor([40, 6, 5, 7])[at], torch.tensor([[BOS, 4, 8], [BOS, 0, 0], [BOS, 0, 0], [BOS, 7, 0]])[at]
    decoder, bias = model.decoder, None
    if narrow:
        decoder = ShortlistDecoder(decoder, torch.arange(0, VOCABULARY // 2))
        bias = torch.zeros(4, VOCABULARY // 2)[at]
        bias[:, 20:25] = float("-inf")
    found, _ = run_search(
        decoder,
        model.encode(Source(source, Layout.padded([[9, 4, 6, 2][row] for row in rows], 9))),
        selector,
        SearchRequest(
            prefix=first if prefix else first[:, :1],
            prefix_layout=Layout.padded([[3, 1, 1, 2][row] for row in rows], 3) if prefix else None,
            limits=LengthLimits(longest, torch.tensor([8, 2, 0, 3])[at], at + 11, bias),
            constraints=constraints,
            **options,
        ),  # type: ignore[arg-type]
    )
    return found


def same(found: list[list[Hypothesis]], plain: list[list[Hypothesis]], apart: float = 1e-4) -> None:
    assert [[each.tokens for each in texts] for texts in found] == [[each.tokens for each in texts] for texts in plain]
    for texts, others in zip(found, plain, strict=True):
        assert [each.score for each in texts] == pytest.approx([each.score for each in others], abs=apart)


@pytest.mark.parametrize("narrow", [False, True], ids=["whole", "shortlist"])
@pytest.mark.parametrize("prefix", [False, True], ids=["", "prefix"])
@pytest.mark.parametrize("selector", CHOOSERS)
def test_every_search_finds_the_same(kernels: Kernels, runs: list[int], selector: str, prefix: bool, narrow: bool) -> None:
    model = made("pre")
    plain = searched(model, CHOOSERS[selector], prefix=prefix, narrow=narrow)
    assert not runs
    with cpp.using(kernels):
        same(searched(model, CHOOSERS[selector], prefix=prefix, narrow=narrow), plain)
    assert runs == [4]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_layer_computes_the_same(kernels: Kernels, runs: list[int], kind: str, precision: str) -> None:
    model = made(kind)
    plain = searched(model if precision == "float32" else in_int8(model), BeamSelector(4))
    with cpp.using(kernels):
        near = 3e-3 if EXACT or precision == "float32" else FLIPPED
        same(searched(model if precision == "float32" else in_int8(model, kernels), BeamSelector(4)), plain, near)
    assert runs == [4]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["pre", "post", "rotary", "local", "linear", "convs2s"])
def test_every_kind_of_encoder_computes_the_same(kernels: Kernels, kind: str, precision: str) -> None:
    own: object = {"kind": "local", "window": 2} if kind == "local" else MODELS[kind].get("decoder_self", "full")
    model = made(kind) if kind == "convs2s" else made(kind, encoder_self=own)
    plain, ours = (model, model) if precision == "float32" else (in_int8(model), in_int8(model, kernels))
    lengths = [9, 1, 6, 3]
    tokens = torch.randint(4, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(6))
    for source in (Source(tokens), Source(tokens, Layout.padded(lengths))):
        usual = plain.encode(source).memory
        with cpp.using(kernels), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Model, "encode", lambda *given: pytest.fail("not native"))
            found = native.encode(ours, source).memory
        for row, length in enumerate(lengths if source.layout else [9] * 4):
            torch.testing.assert_close(
                found[row, :length], usual[row, :length], rtol=1e-3, atol=2e-2 * (precision == "int8") + 1e-4
            )


def test_python_and_cpp_have_the_same_structs(kernels: Kernels) -> None:
    size = kernels._library.weft_struct_size
    size.argtypes, size.restype = (ctypes.c_int64,), ctypes.c_int64
    assert [size(which) for which in range(3)] == [ctypes.sizeof(each) for each in (Op, MemoryStruct, native.TaskStruct)]


def test_encoders_without_a_plan_still_work(kernels: Kernels) -> None:
    model, tokens = made("wired"), torch.tensor([[5, 6, 7]])
    with cpp.using(kernels):
        assert torch.equal(native.encode(model, Source(tokens)).memory, model.encode(Source(tokens)).memory)


def test_a_text_does_not_depend_on_its_batch(kernels: Kernels) -> None:
    model = made("rotary")
    with cpp.using(kernels):
        together = searched(model, BeamSelector(4))
        alone = [searched(model, BeamSelector(4), rows=[row])[0] for row in range(4)]
    same(alone, together, 1e-5)


def test_what_is_not_covered_uses_the_ordinary_loop(kernels: Kernels, runs: list[int]) -> None:
    model, again = made("pre"), [ForbidTokens([PAD]), NoRepeatNgram(2, 60)]
    plain = searched(model, BeamSelector(2), constraints=again)
    with cpp.using(kernels):
        same(searched(model, BeamSelector(2), constraints=again), plain)
        searched(model, GreedySelector(), trace=True)
        searched(model, BeamSelector(60))  # more candidates than tokens
    assert not runs


class Doubled(FullAttention):
    """Computes something else than the class that has the plan."""

    def run(self, *given: object) -> object:  # type: ignore[override]
        attended = super().run(*given)  # type: ignore[arg-type]
        attended.context *= 2
        return attended


def test_a_subclass_that_computes_something_else_inherits_no_plan(kernels: Kernels, runs: list[int]) -> None:
    model = made("pre")
    model.decoder.layers[1].cross.__class__ = Doubled
    with pytest.raises(NotPlanned, match="Doubled"):
        native.plan_decoder(model.decoder)
    plain = searched(model, GreedySelector())
    with cpp.using(kernels):
        same(searched(model, GreedySelector()), plain)
    assert not runs


def test_changed_weights_are_planned_again(kernels: Kernels, runs: list[int]) -> None:
    model = made("pre")
    with torch.inference_mode(False), torch.no_grad():
        model = made("pre")
        with cpp.using(kernels):
            before = searched(model, GreedySelector())
            for layer in model.decoder.layers:
                layer.network.up.weight.mul_(-1)
            after = searched(model, GreedySelector())
    same(after, searched(model, GreedySelector()))
    assert before != after and runs == [4, 4]


def test_replaced_parts_are_planned_again(kernels: Kernels) -> None:
    model = made("pre")
    with cpp.using(kernels):
        before = native.plan_decoder(model.decoder)
        assert native.plan_decoder(model.decoder) is before
        model.decoder.layers[1].network = made("pre").decoder.layers[0].network
        after = native.plan_decoder(model.decoder)
        model.decoder.layers[0].network.up.weight = torch.nn.Parameter(torch.zeros(48, 32))
        assert after is not before and native.plan_decoder(model.decoder) is not after


@pytest.mark.parametrize("kind", ["pre", "bahdanau", "convs2s"])
def test_a_plan_does_not_keep_its_model_alive(kernels: Kernels, kind: str) -> None:
    model = made(kind)
    with cpp.using(kernels):
        searched(model, GreedySelector())
    gone = weakref.ref(model.decoder)
    del model
    gc.collect()
    assert gone() is None


def test_sources_that_nobody_waits_for_are_stopped(kernels: Kernels, runs: list[int]) -> None:
    asked: list[int] = []

    def wanted(row: int) -> bool:
        asked.append(row)
        return row > 0

    with cpp.using(kernels):
        control = Cancellation(4, wanted)
        found = searched(made("pre"), GreedySelector(), cancellation=control)
    # Of the four steps before the first check, two read its prefix.
    assert runs == [4] and control.stopped == {0} and len(found[0][0].tokens) == 3 and set(asked) == {0, 1, 2, 3}


def test_wrong_plans_are_noticed(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("rotary")
    plain = searched(model, BeamSelector(4))
    mistakes = {
        "norm": lambda draft, layer, x: x,
        "rotate": lambda draft, x, heads, turns: None,
        "add": lambda draft, x, y: y,
        "activate": lambda draft, kind, x: draft.linear(torch.nn.Linear(96, 48), x),
    }
    for name, mistake in mistakes.items():
        with monkeypatch.context() as patch, cpp.using(kernels):
            patch.setattr(native.PlanBuilder, name, mistake)
            native._PLANS.clear()
            with pytest.raises(AssertionError):
                same(searched(model, BeamSelector(4)), plain)
    native._PLANS.clear()


def test_translating_with_decode_compile_is_native(kernels: Kernels, runs: list[int], reverse_run: Path) -> None:
    translator = weft.load(reverse_run, device="cpu")
    for options in ({}, {"beam": 4, "n_best": 3}, {"precision": "int8"}):
        with torch.inference_mode(False):
            found = translator.translate(["a b c", "d e f g"], compile=True, **options)
            plain = translator.translate(["a b c", "d e f g"], **options)
        assert [each.text for each in found] == [each.text for each in plain]
        assert [[other.text for other in each.alternatives] for each in found] == [
            [other.text for other in each.alternatives] for each in plain
        ]
    assert len(runs) == 3


def test_what_has_no_plan_is_said(kernels: Kernels) -> None:
    said: list[str] = []
    native.prepare(made("pre", decoder_self="aft").decoder, said.append)
    assert said == [
        "decode.compile: no native plan for AttentionFreeMixer, so decoding runs one operation at a time, more slowly"
    ]
    native.prepare(made("pre").decoder, said.append)
    assert len(said) == 1
