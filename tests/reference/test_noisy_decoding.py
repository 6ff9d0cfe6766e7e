"""Noise at test time (Cho 2016): chains of greedy decoding, against a loop in float64 that adds the noise by hand.

h_t = φ(h_{t−1} + ε_t, y_{t−1}, …), ε_t ~ N(0, σ_t² I), σ_t = σ_0 / t (section 3); of all chains, one of them without noise, the
text with the highest log P(Y | X) under the model without noise is taken.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.reference.searching import Sources, small_model
from weft.data.batch import BOS, EOS, PAD, UNK
from weft.decoding.cuda_graph_search import SearchGraphs
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.noisy_decoding import NoisySearch, normal
from weft.decoding.search_loop import EAGER, Cancellation, SearchRequest, StepRunner, run_search
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError
from weft.models.base import Model
from weft.models.ensembles_and_wrapped_decoders import Ensemble
from weft.models.rnn import RecurrentState

SIZE, LONGEST, LENGTHS, SCALE = 9, 8, [5, 2, 4], 2.5
FORBIDDEN = [PAD, BOS, UNK]
SOURCES = Sources(SIZE, LENGTHS, LONGEST)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 2},
    "bahdanau": {"kind": "rnn"},
    "luong": {"kind": "rnn", "style": "luong", "cell": "lstm", "attention": "general", "decoder_layers": 2},
}


def make(name: str) -> Model:
    return small_model(MODELS[name], SIZE)


def search(
    model: Model,
    rows: list[int],
    runner: StepRunner = EAGER,
    prefix: list[list[int]] | None = None,
    best: int = 3,
    control: Cancellation | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    method, names = NoisySearch(**{"chains": 6, "scale": SCALE, **options}), 100 + torch.tensor(rows)
    forbid = [ForbidTokens(FORBIDDEN)]
    return SOURCES.find(
        method, model, rows, prefix, names, n_best=best, runner=runner, cancellation=control, constraints=forbid
    )


def log_probability(model: Model, row: int, text: list[int], prefix: list[int]) -> float:
    source = SOURCES.one(row)
    with torch.inference_mode():
        fed = torch.tensor([[BOS, *prefix, *text][:-1]])
        logits = model.decoder(fed, model.decoder.init_state(model.encode(source))).logits[0].log_softmax(-1)
    return sum(float(logits[len(prefix) + j, token]) for j, token in enumerate(text))


@torch.inference_mode()
def chain_by_hand(model: Model, row: int, chain: int, prefix: list[int], where: str) -> list[int]:
    """One chain of one source, token by token."""
    state = model.decoder.init_state(model.encode(SOURCES.one(row)))
    fed, text = [BOS, *prefix], list[int]()
    while not text or (text[-1] != EOS and len(text) < LONGEST):
        t = len(prefix) + len(text) + 1
        for token in fed:
            number = t if len(fed) == 1 else 1 + [BOS, *prefix].index(token)
            amount = SCALE / number if chain else 0.0

            def noise(width: int, call: int, number: int = number, amount: float = amount) -> torch.Tensor:
                drawn = normal(1, torch.tensor([100 + row]), torch.tensor([chain]), torch.tensor([[number - 1]]), width, call)
                return amount * drawn[0, 0].double()

            hook = None
            if where == "states":
                assert isinstance(state, RecurrentState)
                state.layers = [
                    (cell[0] + noise(cell[0].size(1), call), *cell[1:]) for call, cell in enumerate(state.layers, start=1)
                ]
            else:
                hook = model.decoder.embedding.register_forward_hook(lambda _, __, x, noise=noise: x + noise(x.size(-1), 1))
            found = model.decoder(torch.tensor([[token]]), state)
            state = found.state
            if hook is not None:
                hook.remove()
        text.append(int(found.logits[0, -1].index_fill(0, torch.tensor(FORBIDDEN), float("-inf")).argmax()))
        fed = [text[-1]]
    return text


@pytest.mark.parametrize(
    ("name", "where"), [("transformer", "embeddings"), ("luong", "embeddings"), ("luong", "states"), ("bahdanau", "states")]
)
def test_the_best_of_noisy_chains(name: str, where: str) -> None:
    """In a padded batch with prefixes of different lengths: each text, its score, and their order."""
    model, prefixes = make(name), [[5, 4], [], [6]]
    found = search(model, [0, 1, 2], prefix=prefixes, where=where)
    different = 0
    for row, prefix in enumerate(prefixes):
        texts = [chain_by_hand(model, row, chain, prefix, where) for chain in range(6)]
        different += len({*map(tuple, texts)}) - 1
        scored = {tuple(text): log_probability(model, row, text, prefix) / len(text) for text in texts}
        wanted = sorted(scored.items(), key=lambda item: -item[1])[:3]
        assert [each.tokens for each in found[row]] == [list(text) for text, _ in wanted]
        assert [each.score for each in found[row]] == pytest.approx([score for _, score in wanted], abs=1e-6)
    assert different > 3


@pytest.mark.parametrize(("name", "where"), [("transformer", "embeddings"), ("luong", "states")])
def test_a_text_depends_on_its_sentence_and_the_seed_alone(name: str, where: str) -> None:
    model, recorder = make(name), SearchGraphs(lambda work: work)
    together = search(model, [0, 1, 2], where=where)
    for row in range(3):
        alone = search(model, [row], where=where)[0]
        assert [each.tokens for each in alone] == [each.tokens for each in together[row]]
    for _ in range(3):
        assert search(model, [0, 1, 2], recorder.runner("one"), where=where) == together
    assert search(model, [0, 1, 2], where=where, seed=2) != together
    assert search(model, [0, 1, 2], where=where, decay=False) != together


def test_the_result_is_never_less_probable_than_the_greedy_text() -> None:
    model = make("transformer")
    for seed in range(2):
        for row in range(3):
            source = SOURCES.one(row)
            limits = LengthLimits(*(torch.tensor([value]) for value in (LONGEST, 0, 1)))
            with torch.inference_mode():
                encoded = model.encode(source)
            greedy = run_search(
                model.decoder,
                encoded,
                GreedySelector(),
                SearchRequest(prefix=torch.tensor([[BOS]]), limits=limits, constraints=[ForbidTokens(FORBIDDEN)]),
            )[0][0][0]
            assert search(model, [row], seed=seed)[0][0].score >= greedy.score - 1e-6
            assert search(model, [row], seed=seed, chains=1, best=1)[0][0].tokens == greedy.tokens


def test_a_row_that_nobody_waits_for_is_stopped() -> None:
    control = Cancellation(3, lambda row: row != 1)
    search(make("transformer"), [0, 1, 2], control=control)
    assert control.stopped == {1}


def test_an_ensemble_has_noise_in_the_embeddings_of_all_its_models() -> None:
    model = make("transformer")
    twins, plain = search(Ensemble([model, model]), [0, 1, 2]), search(model, [0, 1, 2], scale=0.0)
    assert len(plain[0]) == 1 and any(len(texts) > 1 for texts in twins)


def test_the_noise_is_normal_and_independent() -> None:
    ids, chain = torch.arange(50).repeat_interleave(4), torch.arange(4).repeat(50)
    drawn = normal(3, ids, chain, torch.arange(6).expand(200, -1), 40).double()
    assert drawn.isfinite().all() and drawn.unique().numel() > 0.99 * drawn.numel()
    assert abs(drawn.mean()) < 0.02 and abs(drawn.std() - 1) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.2 and abs((drawn.abs() < 0.6745).double().mean() - 0.5) < 0.01
    for axis in range(3):
        assert abs((drawn.narrow(axis, 1, 1) * drawn.narrow(axis, 0, 1)).mean()) < 0.15
    again = normal(3, ids, chain, torch.arange(6).expand(200, -1), 40, call=2).double()
    assert abs((drawn * again).mean()) < 0.02


def test_states_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="TransformerDecoder has no recurrent states to add noise to; use embeddings"):
        NoisySearch(where="states").wrap_decoder(make("transformer").decoder)
