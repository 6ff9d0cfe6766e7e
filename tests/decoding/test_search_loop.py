"""The search loop against exhaustive search, one sentence against a batch of them, and what it promises on the way."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.attention.core import dot_product
from weft.attention.core import kv_cache as kv_store
from weft.data.batch import BOS, EOS, PAD, Layout, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.ngram_blocking_and_rules import ForbidTokens, NoRepeatNgram
from weft.decoding.sampling import SamplingSelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, candidates, top_k, uniform
from weft.layers.kernels.cuda_graph_capture import Compiler
from weft.models.base import Decoder, Encoded, HiddenStates, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import Ensemble

DIM, SOURCES, LENGTHS = 16, 6, [9, 5, 7, 3, 8, 6]
VARIANTS = {
    "full": {},
    "linear": {"decoder_self": "linear", "cross": "linear"},
    "recurrent": {"decoder_self": "recurrent", "cross": "additive"},
    "local": {"decoder_self": {"kind": "local", "window": 3}},
}
CHOOSERS = {
    "greedy": GreedySelector,
    "beam": lambda: BeamSelector(4, 0.6),
    "beam of one": lambda: BeamSelector(1, 0.6),
    "sample": lambda: SamplingSelector(3, 0.8, 6, 0.9, seed=7),
    "wide beam": lambda: BeamSelector(12, 1.0),
}


def make(size, variant="full", seed=3, sharp=3.0, eos=0.0):
    torch.manual_seed(seed)
    options = {
        "kind": "transformer",
        "dim": DIM,
        "feedforward": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "share_embeddings": "none",
    }
    model = build_model({**options, **VARIANTS[variant]}, Sizes(size, size, True)).eval()
    with torch.no_grad():
        model.decoder.output.weight.mul_(sharp * DIM**0.5)
        # the output layer has no bias: the last norm's bias gives EOS its advantage
        direction = model.decoder.output.weight[EOS] / model.decoder.output.weight[EOS].norm() ** 2
        model.decoder.norm.bias.add_(eos * direction)
    return model


def sources(size):
    return torch.randint(4, size, (SOURCES, max(LENGTHS)), generator=torch.Generator().manual_seed(0))


def encode(model, size, rows=slice(None)):
    tokens, lengths = sources(size)[rows], torch.tensor(LENGTHS)[rows]
    extent = int(lengths.max())
    with torch.inference_mode():
        return model.encode(Source(tokens[:, :extent], Layout.padded(lengths, extent)))


def limits(groups, longest=12, shortest=0, ids=None):
    def column(value):
        return value if torch.is_tensor(value) else torch.full((groups,), value)

    return LengthLimits(column(longest), column(shortest), torch.arange(groups) if ids is None else ids)


def bos(groups):
    return torch.full((groups, 1), BOS)


def log_probability(model, encoded, text, prefix=(BOS,)):
    fed = torch.tensor([[*prefix, *text][:-1]])
    with torch.inference_mode():
        logits = model.decoder(fed, model.decoder.init_state(encoded)).logits.log_softmax(-1)[0, len(prefix) - 1 :]
    return float(logits[range(len(text)), list(text)].sum())


@pytest.mark.parametrize("variant", VARIANTS)
def test_wide_beam_equals_exhaustive_search(variant):
    size, longest = 5, 4
    model = make(size, variant)
    texts = [
        text
        for n in range(1, longest + 1)
        for text in itertools.product(range(size), repeat=n)
        if EOS not in text[:-1] and (text[-1] == EOS or n == longest)
    ]
    for g in range(2):
        encoded = encode(model, size, slice(g, g + 1))
        likely = [log_probability(model, encoded, text) for text in texts]
        for penalty in (0.0, 0.6, 1.0, -0.5):
            scored = [(value / len(text) ** penalty, list(text)) for value, text in zip(likely, texts, strict=True)]
            expected = sorted(scored, reverse=True)[:5]
            found, _ = run_search(
                model.decoder,
                encoded,
                BeamSelector(size**longest, penalty, keep=5),
                SearchRequest(prefix=bos(1), limits=limits(1, longest)),
            )
            for hypothesis, (score, text) in zip(found[0], expected, strict=True):
                assert hypothesis.tokens == text
                assert hypothesis.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_equals_its_sentences_alone(name, variant):
    """Different prefixes, limits and lengths in one call, rows leaving early, against each sentence by itself."""
    size = 13
    model = make(size, variant, eos=1.0)
    generator = torch.Generator().manual_seed(1)
    count = torch.tensor([1, 4, 2, 1, 3, 2])
    prefix = torch.randint(4, size, (SOURCES, 4), generator=generator)
    prefix[:, 0] = BOS
    shortest, longest = torch.tensor([0, 3, 0, 5, 1, 0]), torch.tensor([12, 5, 30, 7, 20, 9])
    ids = torch.tensor([11, 5, 7, 100, 3, 8])
    alone = []
    for g in range(SOURCES):
        row = slice(g, g + 1)
        limit = limits(1, longest[row], shortest[row], ids[row])
        found, _ = run_search(
            model.decoder,
            encode(model, size, row),
            CHOOSERS[name](),
            SearchRequest(prefix=prefix[row, : count[g]], limits=limit, check=100),
        )
        alone.append(found[0])
    for check in (1, 3, 100):
        found, _ = run_search(
            model.decoder,
            encode(model, size),
            CHOOSERS[name](),
            SearchRequest(
                prefix=prefix,
                prefix_layout=Layout.padded(count, 4),
                limits=limits(SOURCES, longest, shortest, ids),
                check=check,
            ),
        )
        for g in range(SOURCES):
            assert [hypothesis.tokens for hypothesis in found[g]] == [hypothesis.tokens for hypothesis in alone[g]]
            for hypothesis in found[g]:
                ended = hypothesis.tokens[-1] == EOS
                assert len(hypothesis.tokens) <= longest[g]
                assert not ended or len(hypothesis.tokens) > shortest[g] or len(hypothesis.tokens) == longest[g]


def test_exact_stop_never_loses_what_the_heuristics_lose():
    size, lost = 12, 0
    for seed in range(12):
        model = make(size, seed=seed, sharp=2.0, eos=1.0)
        encoded = encode(model, size)
        best = {
            stop: run_search(
                model.decoder,
                encoded,
                BeamSelector(4, 1.0, stop=stop),
                SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES, 20)),
            )[0]
            for stop in ("exact", "length", "first")
        }
        for g in range(SOURCES):
            assert best["exact"][g][0].score >= max(best["length"][g][0].score, best["first"][g][0].score) - 1e-6
            lost += best["first"][g][0].score < best["exact"][g][0].score - 1e-6
    assert lost > 0


class Bigrams(Decoder):
    """chances [V, V] of each token after each other one."""

    def __init__(self, chances):
        super().__init__()
        self.chances = torch.tensor(chances)

    def init_state(self, source, *, room=None):
        return torch.zeros(source.memory.size(0))

    def hidden_states(self, tokens, state, layout=None):
        return HiddenStates(self.chances[tokens].log(), state)

    def logits(self, hidden):
        return hidden.clone()


@pytest.mark.parametrize(("penalty", "wanted"), [(-0.3, [4, EOS]), (-1.5, [EOS]), (0.0, [4, EOS]), (0.6, [4, EOS])])
def test_the_exact_stop_goes_on_while_a_longer_text_can_win(penalty, wanted):
    """Ending at once has probability 0.40, ending after token 4 0.55. Below 0 the penalty costs a longer text: 0.55 still wins
    at −0.3, where log 0.55 · 2^0.3 > log 0.40, and loses at −1.5. The best that a running hypothesis can reach is then to end
    with the next token, not at the longest length."""
    start = [1e-9, 1e-9, 0.40, 1e-9, 0.55, 0.05]
    decoder = Bigrams([start, start, start, start, [1e-9, 1e-9, 1.0, *[1e-9] * 3], start])
    found, _ = run_search(
        decoder,
        Encoded(torch.zeros(1, 1, 1)),
        BeamSelector(2, penalty, keep=1),
        SearchRequest(prefix=bos(1), limits=limits(1, 16), check=1),
    )
    assert EOS == 2 and found[0][0].tokens == wanted


def test_scores_are_the_models_log_probabilities():
    size = 13
    model = make(size, eos=1.0)
    found, _ = run_search(
        model.decoder, encode(model, size), BeamSelector(4, 0.0), SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES))
    )
    for g in range(SOURCES):
        for hypothesis in found[g]:
            expected = log_probability(model, encode(model, size, slice(g, g + 1)), hypothesis.tokens)
            assert hypothesis.score == pytest.approx(expected, abs=1e-3)


def test_sampling_follows_the_models_distribution():
    size = 8
    model = make(size, sharp=1.0)
    encoded = encode(model, size, slice(0, 1))
    found, _ = run_search(
        model.decoder, encoded, SamplingSelector(20000, seed=1), SearchRequest(prefix=bos(1), limits=limits(1, 1))
    )
    drawn = torch.bincount(torch.tensor([hypothesis.tokens[0] for hypothesis in found[0]]), minlength=size) / 20000
    with torch.inference_mode():
        wanted = model.decoder(bos(1), model.decoder.init_state(encoded)).logits[0, 0].softmax(-1)
    assert (drawn - wanted).abs().max() < 0.012


def test_random_numbers_are_even_and_differ():
    numbers = uniform(3, torch.arange(1000), torch.arange(20), torch.tensor(5))
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01 and abs(float(numbers.std()) - 12**-0.5) < 0.01
    assert numbers.unique().numel() > 19000
    assert not torch.equal(numbers, uniform(4, torch.arange(1000), torch.arange(20), torch.tensor(5)))


def test_top_k_and_top_p_narrow_the_choice():
    size = 13
    model = make(size, sharp=1.0)
    encoded = encode(model, size, slice(0, 1))
    with torch.inference_mode():
        chances = model.decoder(bos(1), model.decoder.init_state(encoded)).logits[0, 0].softmax(-1)
    order = chances.argsort(descending=True).tolist()
    few, _ = run_search(
        model.decoder, encoded, SamplingSelector(500, top_k=3), SearchRequest(prefix=bos(1), limits=limits(1, 1))
    )
    assert {hypothesis.tokens[0] for hypothesis in few[0]} == set(order[:3])
    nucleus = int((chances.sort(descending=True).values.cumsum(0) < 0.6).sum()) + 1
    some, _ = run_search(
        model.decoder, encoded, SamplingSelector(2000, top_p=0.6), SearchRequest(prefix=bos(1), limits=limits(1, 1))
    )
    assert {hypothesis.tokens[0] for hypothesis in some[0]} == set(order[:nucleus])


def test_top_p_counts_only_what_top_k_left():
    """Of chances 0.30, 0.20, 0.10 and others, the first three have 0.60; four fifths of that are in the first two."""
    chances = torch.tensor([0.30, 0.20, 0.10, *[0.04] * 10])
    sample, t = SamplingSelector(4000, top_k=3, top_p=0.8, seed=2), torch.zeros((), dtype=torch.long)
    logits = chances.log().expand(1, 4000, -1)
    token = sample.step(logits, logits.logsumexp(-1), sample.init_state(1, logits.device), t, limits(1)).tokens[0]
    assert token.unique().tolist() == [0, 1]
    assert abs(float((token == 0).float().mean()) - 0.6) < 0.03


def test_forbidden_tokens_and_repeats_do_not_appear():
    size = 20
    model = make(size, sharp=1.0)
    encoded = encode(model, size)
    free, _ = run_search(
        model.decoder, encoded, BeamSelector(4), SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES, 15))
    )
    assert any(len(set(found[0].tokens)) < len(found[0].tokens) for found in free)
    usual = [token for found in free for token in found[0].tokens if token > 3]
    ban = sorted(set(usual), key=usual.count)[-2:]
    for n in (1, 2):
        found, _ = run_search(
            model.decoder,
            encoded,
            BeamSelector(4),
            SearchRequest(
                prefix=bos(SOURCES), limits=limits(SOURCES, 15), constraints=[ForbidTokens(ban), NoRepeatNgram(n, 20)], check=1
            ),
        )
        for texts in found:
            tokens = texts[0].tokens
            grams = list(itertools.pairwise(tokens)) if n == 2 else tokens
            assert not set(tokens) & set(ban)
            assert len(set(grams)) == len(grams)


class Waits(TorchDispatchMode):
    """Counts operations that make the host wait for the device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        if name.startswith(("_local_scalar_dense", "nonzero", "masked_select", "item", "equal")):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CHOOSERS)
def test_the_loop_does_not_wait_for_the_device(name):
    size = 13
    model = make(size)
    encoded = encode(model, size)
    with Waits() as waits:
        run_search(
            model.decoder,
            encoded,
            CHOOSERS[name](),
            SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES, 30), check=100, constraints=[ForbidTokens([5])]),
        )
    assert len(waits.seen) <= 2  # how many steps there are at most, and at the end how many were needed


def test_an_ensemble_of_twins_equals_one_and_families_mix():
    size = 13
    one, other = make(size, eos=1.0), make(size, "recurrent", seed=4)
    tokens, layout = sources(size), Layout.padded(LENGTHS, max(LENGTHS))
    twins = Ensemble([one, one]).eval()
    alone, _ = run_search(
        one.decoder,
        one.encode(Source(tokens, layout)),
        BeamSelector(4),
        SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES)),
    )
    double, _ = run_search(
        twins.decoder,
        twins.encode(Source(tokens, layout)),
        BeamSelector(4),
        SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES), check=1),
    )
    assert [texts[0].tokens for texts in alone] == [texts[0].tokens for texts in double]
    mixed = Ensemble([one, other]).eval()
    found, _ = run_search(
        mixed.decoder,
        mixed.encode(Source(tokens, layout)),
        BeamSelector(4, 0.0),
        SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES), check=1),
    )
    text = found[0][0].tokens
    row = Encoded(
        torch.zeros(1, 1, DIM),
        None,
        parts=[model.encode(Source(tokens[:1], layout.select(torch.tensor([0])))) for model in (one, other)],
    )
    fed = torch.tensor([[BOS, *text][:-1]])
    with torch.inference_mode():
        logp = mixed.decoder(fed, mixed.decoder.init_state(row)).logits[0]
    assert found[0][0].score == pytest.approx(float(logp[range(len(text)), text].sum()), abs=1e-3)


def test_the_trace_is_the_beam_tree():
    size = 13
    model = make(size, eos=1.0)
    plain, _ = run_search(
        model.decoder, encode(model, size), BeamSelector(4), SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES, 9))
    )
    traced, tables = run_search(
        model.decoder,
        encode(model, size),
        BeamSelector(4),
        SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES, 9), trace=True, check=1),
    )
    assert plain == traced
    source, beam, step = 2, 1, 2
    text, at = [], beam
    for t in range(step, -1, -1):
        text.append(int(tables.tokens[t, source, at]))
        at = int(tables.parents[t, source, at])
    expected = log_probability(model, encode(model, size, slice(source, source + 1)), text[::-1])
    assert float(tables.scores[step, source, beam]) == pytest.approx(expected, abs=1e-3)
    for each in range(SOURCES):
        parts = (tables.candidates.parent, tables.candidates.token, tables.candidates.score)
        considered = {(parent, token): score for parent, token, score in zip(*(part[step, each].tolist() for part in parts))}
        kept = zip(*(part[step, each].tolist() for part in (tables.parents, tables.tokens, tables.scores)), strict=True)
        assert all(considered[parent, token] == score for parent, token, score in kept)


@pytest.mark.parametrize("extent", [100, 5000, 32001, 40000])
def test_top_k_by_blocks_is_exact(extent):
    values = torch.randn(7, extent, generator=torch.Generator().manual_seed(extent))
    values[:, ::3] = float("-inf")
    top, index = top_k(values, 10)
    assert torch.equal(top, values.topk(10).values)
    assert torch.equal(values.gather(1, index), top)


def test_candidates_are_the_best_of_all_hypotheses():
    """Taken from each hypothesis first, they are those of all continuations side by side."""
    generator = torch.Generator().manual_seed(1)
    logits, score = torch.randn(5, 4, 9000, generator=generator), torch.randn(5, 4, generator=generator)
    logits[:, :, ::3], score[0, 1:] = float("-inf"), float("-inf")
    top, parent, token = candidates(logits, score, 8)
    best, index = (logits + score[..., None]).flatten(1).topk(8)
    assert torch.equal(top, best)
    assert torch.equal(parent, index // 9000) and torch.equal(token, index % 9000)
    few, _, _ = candidates(logits[..., :3], score, 8)
    assert few.shape == (5, 8)


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_masks_that_are_added_are_the_masks(monkeypatch, name):
    """As on a GPU, with fused kernels that are given what to add to scores: made once a step and once a source."""
    size, made = 9, []
    model, selector = make(size), CHOOSERS[name]()
    asked = {
        "prefix": torch.cat([bos(3), torch.tensor([[4, 5], [6, 0], [0, 0]])], 1),
        "prefix_layout": Layout.padded([3, 2, 1]),
    }
    asked["limits"] = limits(3, 9)
    plain, _ = run_search(model.decoder, encode(model, size, slice(0, 3)), selector, SearchRequest(**asked))
    monkeypatch.setattr(dot_product, "_fused", lambda q, keys, need_weights: not need_weights)
    monkeypatch.setattr(kv_store, "UNFUSED", frozenset())
    additive = kv_store.additive
    for module in (dot_product, kv_store):
        monkeypatch.setattr(module, "additive", lambda mask, dtype: made.append(mask.shape) or additive(mask, dtype))
    fused, _ = run_search(model.decoder, encode(model, size, slice(0, 3)), selector, SearchRequest(**asked))
    assert [[each.tokens for each in texts] for texts in fused] == [[each.tokens for each in texts] for texts in plain]
    assert [texts[0].score for texts in fused] == pytest.approx([texts[0].score for texts in plain], abs=1e-4)
    width = selector.width
    assert made == [(3, 9), (3, 1, 3, 16), *[(3, 1, width, 16 * width)] * 8]


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_recorded_step_is_the_step(variant, name):
    """What a CUDA graph does, done by calling the step again: the state stays in its place and is written over."""
    size = 9
    model, selector = make(size, variant), CHOOSERS[name]()
    recorder = SearchGraphs(lambda work: work)
    for groups in (SOURCES, 2, SOURCES):
        for longest in (9, 30):
            encoded = encode(model, size, slice(0, groups))
            asked = {
                "prefix": bos(groups),
                "limits": limits(groups, longest),
                "constraints": [ForbidTokens([PAD]), NoRepeatNgram(3, 40)],
            }
            plain, _ = run_search(model.decoder, encoded, selector, SearchRequest(**asked))
            recorded, _ = run_search(model.decoder, encoded, selector, SearchRequest(**asked, runner=recorder.runner("one")))
            assert recorded == plain


@pytest.mark.parametrize(("name", "variant"), [("beam", "full"), ("sample", "linear")])
def test_a_compiled_step_is_the_step(variant, name):
    """Written down as the operations that it asks for, it is the same step; what it changes in place stays in its place."""
    size, said = 9, []
    model, selector, recorder = make(size, variant), CHOOSERS[name](), SearchGraphs(lambda work: work)
    compiler = Compiler(said.append, backend="aot_eager")
    asked = {"prefix": bos(SOURCES), "limits": limits(SOURCES, 14), "constraints": [ForbidTokens([PAD]), NoRepeatNgram(3, 40)]}
    plain, _ = run_search(model.decoder, encode(model, size), selector, SearchRequest(**asked))
    for _ in range(2):
        compiled, _ = run_search(
            model.decoder, encode(model, size), selector, SearchRequest(**asked, runner=recorder.runner("one", compiler))
        )
        assert compiled == plain
    assert not said
    assert any(recording.held is not None for recording in recorder.graphs.values())


def test_what_cannot_be_compiled_is_said_once_and_done_as_it_is():
    said = []
    compiler = Compiler(said.append, backend="no such backend")
    for _ in range(2):
        work = compiler(lambda tensor: tensor.add_(1), [torch.zeros(2)])
        numbers = torch.zeros(2)
        work(numbers)
        assert numbers.tolist() == [1, 1]
    assert len(said) == 1 and "compiling failed" in said[0]


def test_a_size_is_recorded_in_a_thread_that_has_run_it_before():
    captured = []
    recorded = SearchGraphs(lambda work: captured.append(threading.get_ident()) or work).runner("one")

    def double(times):
        for _ in range(times):
            recorded.opening("double", lambda given: given[0] * 2, (torch.ones(3),))

    double(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(double, 1).result()
        assert not captured, "this thread may have no handles yet"
        pool.submit(double, 2).result()
    double(2)
    assert len(captured) == 1 and captured[0] != threading.get_ident()


def test_nothing_is_recorded_while_the_device_is_crowded():
    crowded = [True, False]
    recorder = SearchGraphs(lambda work: work, crowded=lambda: crowded.pop(0))
    recorded = recorder.runner("one")
    for count in (0, 0, 1):  # new, crowded, recorded
        assert torch.equal(recorded.opening("double", lambda given: given * 2, torch.ones(2)), torch.full((2,), 2.0))
        assert recorder.counts()["recorded"] == count


def test_recordings_stop_when_they_hold_enough_memory():
    model, recorder = make(9), SearchGraphs(lambda work: work, room=1)
    for groups in (SOURCES, SOURCES, 2, 2):
        asked = {"prefix": bos(groups), "limits": limits(groups)}
        encoded = encode(model, 9, slice(0, groups))
        plain, _ = run_search(model.decoder, encoded, BeamSelector(4), SearchRequest(**asked))
        found, _ = run_search(model.decoder, encoded, BeamSelector(4), SearchRequest(**asked, runner=recorder.runner("one")))
        assert found == plain
    assert recorder.counts() == {"recorded": 1, "refused": 0} and recorder.room < 0


def test_a_recorded_encoder_is_the_encoder():
    model, recorded = make(9), SearchGraphs(lambda work: work).runner("one")
    for rows in (slice(0, 3), slice(3, 6), slice(1, 4)):
        tokens, layout = sources(9)[rows], Layout.padded(torch.tensor(LENGTHS)[rows], 9)
        with torch.inference_mode():
            assert torch.equal(
                recorded.encode(model, Source(tokens, layout)).memory, model.encode(Source(tokens, layout)).memory
            )


def test_a_model_that_cannot_be_recorded_is_searched_as_usual():
    """The opening and the step are each tried once."""
    tried = []

    def capture(work):
        tried.append(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    model, recorder = make(9), SearchGraphs(capture)
    plain, _ = run_search(
        model.decoder, encode(model, 9), BeamSelector(4), SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES))
    )
    for _ in range(3):
        found, _ = run_search(
            model.decoder,
            encode(model, 9),
            BeamSelector(4),
            SearchRequest(prefix=bos(SOURCES), limits=limits(SOURCES), runner=recorder.runner("one")),
        )
        assert found == plain
    assert len(tried) == 2
