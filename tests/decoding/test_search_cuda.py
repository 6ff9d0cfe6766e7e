"""The search on a GPU: recorded, and compiled, it finds what it finds when it is worked through as it is."""

from __future__ import annotations

import pytest
import torch

from weft.data.batch import BOS, PAD, Layout, Source
from weft.decoding.beam_search import BeamSearch, BeamSelector
from weft.decoding.cuda_graph_search import search_graphs_of
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.noisy_decoding import NoisySearch
from weft.decoding.search_loop import EAGER, SearchRequest, StepRunner, run_search
from weft.decoding.search_methods import Search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SIZE, ROWS = 5000, 40


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    spec = {"kind": "transformer", "dim": 64, "heads": 4, "feedforward": 128, "encoder_layers": 2, "decoder_layers": 2}
    made: Model = build_model(spec, Sizes(SIZE, SIZE, True)).cuda().eval()
    return made


def search(model: Model, selector: TokenSelector, seed: int, runner: StepRunner = EAGER) -> list[list[Hypothesis]]:
    """Sources and lengths depend on the seed, so that a replay with what was recorded would be seen."""
    torch.manual_seed(seed)
    source = torch.randint(4, SIZE, (ROWS, 32), device="cuda")
    layout = Layout.padded(torch.randint(3, 33, (ROWS,)), 32).to("cuda")
    longest = torch.randint(2, 45, (ROWS,)).cuda()
    longest[0] = 44
    with torch.inference_mode():
        return run_search(
            model.decoder,
            model.encode(Source(source, layout)),
            selector,
            SearchRequest(
                prefix=torch.full((ROWS, 1), BOS, device="cuda"),
                limits=LengthLimits(longest, torch.zeros_like(longest), torch.arange(ROWS, device="cuda")),
                constraints=[ForbidTokens([PAD, BOS])],
                runner=runner,
            ),
        )[0]


def alike(found: list[list[Hypothesis]], plain: list[list[Hypothesis]]) -> None:
    """The same texts but for a few, where rounding decides between two."""
    same = sum(mine[0].tokens == theirs[0].tokens for mine, theirs in zip(found, plain, strict=True))
    assert same >= 0.9 * ROWS
    scores = [[texts[0].score for texts in each] for each in (found, plain)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)


@pytest.mark.parametrize("selector", [GreedySelector(), BeamSelector(4)], ids=["greedy", "beam"])
def test_a_recorded_search_is_the_search(model: Model, selector: TokenSelector) -> None:
    recorder = search_graphs_of(model)
    assert recorder is not None
    for seed in range(4):
        alike(search(model, selector, seed, recorder.runner(type(selector))), search(model, selector, seed))
    assert recorder.graphs and not recorder.refused


def test_a_compiled_search_is_the_search(model: Model) -> None:
    said: list[str] = []
    recorder = search_graphs_of(model)
    assert recorder is not None
    for seed in range(2):
        runner = recorder.runner("compiled", Compiler(said.append))
        alike(search(model, BeamSelector(3), seed, runner), search(model, BeamSelector(3), seed))
    assert not said


@pytest.mark.parametrize("method", [BeamSearch(coverage_penalty=0.2), NoisySearch(chains=4)], ids=["coverage", "noisy"])
def test_a_recorded_search_that_watches_the_decoder_is_the_search(model: Model, method: Search) -> None:
    recorder = search_graphs_of(model)
    assert recorder is not None

    def found(seed: int, runner: StepRunner) -> list[list[Hypothesis]]:
        torch.manual_seed(seed)
        source, layout = torch.randint(4, SIZE, (ROWS, 32), device="cuda"), Layout.padded(torch.randint(3, 33, (ROWS,)), 32)
        longest = torch.full((ROWS,), 20, device="cuda")
        with torch.inference_mode():
            return method.find(
                model.decoder,
                model.encode(Source(source, layout.to("cuda"))),
                SearchRequest(
                    prefix=torch.full((ROWS, 1), BOS, device="cuda"),
                    limits=LengthLimits(longest, torch.zeros_like(longest), torch.arange(ROWS, device="cuda")),
                    constraints=[ForbidTokens([PAD, BOS])],
                    runner=runner,
                ),
            )[0]

    for seed in range(4):
        alike(found(seed, recorder.runner(method.kind + "watched")), found(seed, EAGER))
    assert not recorder.refused
