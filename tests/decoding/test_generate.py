"""Generation from ids: limits, prefixes, shortlists and captured sizes; and training finds what a predictor finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reference.searching import small_model
from weft.data.batch import BOS, EOS, UNK, Source
from weft.decoding.beam_search import BeamSearch
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.decoding_options import DecodingOptions, changed, resolve_options
from weft.decoding.generate import GenerationRequest, generate, max_tokens
from weft.decoding.greedy_search import GreedySearch
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.lexical_constraints import ForbiddenTerms, TermAutomata
from weft.decoding.sampling import SampleSearch
from weft.models.base import Encoded, Model
from weft.models.ensembles_and_wrapped_decoders import BatchVocabulary
from weft.runs.open_run import open_run
from weft.runs.translator import load
from weft.tasks.translation.generation_request import PLAIN, translate_ids
from weft.tasks.translation.task import TranslationTask

SIZE = 11
SOURCES = [[5, 7, 4, EOS], [9, EOS], [6, 6, 10, 8, 4, EOS]]


def options_of(task: TranslationTask, model: Model, changes: dict[str, Any]) -> DecodingOptions:
    return resolve_options(changed(task.config.decode, {**PLAIN, **changes}), model.device)


@pytest.fixture(scope="module")
def model() -> Model:
    options = {"kind": "transformer", "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1}
    return small_model(options, SIZE)


@torch.inference_mode()
def texts(model: Model, request: GenerationRequest, sources: Any = SOURCES) -> list[list[Hypothesis]]:
    return generate(model, sources, request)[0]


def test_limits_are_those_of_each_source(model: Model) -> None:
    """Texts that never want to end have the most tokens, and texts that always do the fewest, and EOS."""
    request, bias = GenerationRequest(GreedySearch(), [2, 9, 4], min_tokens=3), torch.zeros(3, SIZE, dtype=torch.float64)
    for value, lengths in ((-1e4, [2, 9, 4]), (1e4, [2, 4, 4])):
        bias[:, EOS] = value
        assert [len(text.tokens) for (text,) in texts(model, replace(request, bias=bias))] == lengths
    assert [len(text.tokens) for (text,) in texts(model, replace(request, max_tokens=[1, 1, 1]))] == [1, 1, 1]


def test_the_positions_of_the_model_limit_prefix_and_text(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    request = GenerationRequest(GreedySearch(), [9, 2, 9], prefixes=[[BOS], [BOS], [BOS, 4, 5]])
    assert max_tokens(model, request) == [9, 2, 9]
    monkeypatch.setattr(model, "max_target", 5)
    assert max_tokens(model, request) == [4, 2, 2]
    assert max_tokens(model, replace(request, prefixes=())) == [4, 2, 4]


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(width=3), SampleSearch(seed=4)], ids=lambda search: search.kind)
def test_a_text_depends_neither_on_its_batch_nor_on_who_encodes_it(model: Model, search: Any) -> None:
    request = GenerationRequest(search, [7, 5, 9], prefixes=[[BOS, 6], [BOS], [BOS, 4, 8]], seeds=[11, 12, 13])
    together = texts(model, request)
    for row, source in enumerate(SOURCES):
        mine = [request.max_tokens[row]], [request.prefixes[row]], [request.seeds[row]]
        alone = replace(request, max_tokens=mine[0], prefixes=mine[1], seeds=mine[2])
        with torch.inference_mode():
            encoded = model.encode(Source(torch.tensor([source])))
        for (found,) in (texts(model, alone, [source]), texts(model, alone, encoded)):
            assert [each.tokens for each in found] == [each.tokens for each in together[row]]


def test_captured_searches_are_padded_to_few_sizes_and_find_the_same(model: Model) -> None:
    recorder, bias = SearchGraphs(lambda work: work), torch.zeros(3, SIZE, dtype=torch.float64)
    bias[1, 5:] = -torch.inf
    request = GenerationRequest(BeamSearch(width=2), [6, 8, 7], n_best=2, prefixes=[[BOS], [BOS, 4], [BOS]], bias=bias)
    plain = texts(model, request)
    assert all(token < 5 for text in plain[1] for token in text.tokens)
    for _ in range(3):
        found = texts(model, replace(request, runner=recorder.runner("one")))
        assert [[text.tokens for text in some] for some in found] == [[text.tokens for text in some] for some in plain]
    rows = {shapes[0][0][0] for what, _, shapes in recorder.graphs if what == "work"}
    assert recorder.graphs and rows == {4}


def test_batches_with_constraints_terms_or_a_shortlist_are_padded_too(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such searches are not captured, but their batches come in few sizes as well, and padding changes no text."""
    follow = torch.zeros(2, 3, SIZE, dtype=torch.long)
    follow[1, 1:] = 2
    follow[1, 1:, 9] = 0  # the term is token 9
    numbers = torch.tensor([[-1] * 3, [-1, -1, 9]]), torch.tensor([[0] * 3, [0, 1, 1]])
    term = TermAutomata(follow, *numbers, torch.ones(SIZE, dtype=torch.bool), torch.tensor([[0], [1], [0]]))
    bias = torch.zeros(3, 8, dtype=torch.float64)
    bias[0, 7] = -torch.inf
    narrow = BatchVocabulary(torch.tensor([*range(UNK + 1), 5, 6, 9, 10]), bias)
    recorder, sizes, start = SearchGraphs(lambda work: work), list[tuple[int, ...]](), model.decoder.init_state

    def watched(source: Encoded, *, room: int | None = None) -> Any:
        sizes.append(source.memory.shape[:2])
        return start(source, room=room)

    monkeypatch.setattr(model.decoder, "init_state", watched)
    options: list[dict[str, Any]] = [{"constraints": [ForbiddenTerms(term)]}, {"required": term}, {"shortlist": narrow}]
    for each in options:
        request = GenerationRequest(BeamSearch(width=2), [6, 8, 7], n_best=2, **each)
        plain, padded = (texts(model, replace(request, runner=runner)) for runner in (None, recorder.runner("one")))
        assert [[text.tokens for text in some] for some in padded] == [[text.tokens for text in some] for some in plain]
        assert sizes[-2:] == [(3, 6), (4, 16)]
    assert any(9 in text.tokens for text in texts(model, replace(request, shortlist=None, required=term))[1])
    assert not recorder.graphs


def test_texts_of_a_shortlist_are_ids_of_the_whole_vocabulary(model: Model) -> None:
    ids = torch.tensor([*range(UNK + 1), 6, 9, 10])
    request = GenerationRequest(BeamSearch(width=2), [6, 8, 7], min_tokens=3, prefixes=[[BOS], [BOS, 9], [BOS]])
    outside = torch.full((3, SIZE), -torch.inf, dtype=torch.float64)
    outside[:, ids] = 0.0
    narrow = BatchVocabulary(ids, torch.zeros(3, len(ids), dtype=torch.float64))
    found = texts(model, replace(request, shortlist=narrow))
    written = {token for (text,) in found for token in text.tokens} - {EOS}
    assert written and written <= {6, 9, 10}
    assert [text.tokens for (text,) in found] == [text.tokens for (text,) in texts(model, replace(request, bias=outside))]


def test_training_and_predictor_find_the_same_ids(reverse_run: Path) -> None:
    """Rewards and back-translation get the ids that `weft translate` writes, with the same limits and prefixes."""
    lines, trained = ["a b c d", "g f e", "b"], open_run(reverse_run)
    task, model = trained.task, trained.model.eval()
    assert isinstance(task, TranslationTask) and isinstance(model, Model)
    sources = [[*task.source.encode(line), EOS] for line in lines]
    for changes in ({"search": "greedy"}, {"beam": 3, "n_best": 2}, {"search": "greedy", "max_length": 2}):
        predictor = load(reverse_run, device="cpu").translation_predictor("test", **changes)
        written = [each.ids for each in predictor.predict(map(predictor.parse_input, lines))]
        found = translate_ids(model, (task.source, task.target), sources, options_of(task, model, changes))
        assert [some[0].tokens for some in found] == written
    (greedy,) = zip(*task.draw(model, sources, 0), strict=True)
    plain = translate_ids(model, (task.source, task.target), sources, options_of(task, model, {"search": "greedy"}))
    assert list(greedy) == [some[0].tokens for some in plain]
