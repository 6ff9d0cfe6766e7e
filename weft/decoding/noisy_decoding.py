"""Noise in the decoder at test time (Cho 2016, "Noisy parallel approximate decoding for conditional recurrent language model").

Several chains decode the same source greedily. In all but the first, Gaussian noise is added to the decoder's embeddings or
states at every step, and becomes weaker as the text goes on. The text that the model finds most probable, without noise, wins.

Shapes: G sources · C chains · B = G·C rows · T tokens just fed · W width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout, unpad
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.search_loop import Cancellation, SearchRequest, run_search
from weft.decoding.search_methods import Search, SearchResult
from weft.decoding.token_selection import TokenSelector, hashed
from weft.errors import ConfigError
from weft.layers.decoder_state import State, select
from weft.layers.embeddings_and_rotary_positions import TokenEmbedding
from weft.layers.recurrent import each_token
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.base import Decoder, Encoded, HiddenStates
from weft.models.ensembles_and_wrapped_decoders import WrappedDecoder

Where = Literal["embeddings", "states"]


@runtime_checkable
class RecurrentStateDecoder(Protocol):
    """A decoder with recurrent states."""

    def disturb(self, state: State, change: Callable[[Tensor], Tensor]) -> State:
        """The state with `change` applied to the hidden states [B, W] of its recurrent layers."""
        ...


@dataclass
class NoisyDecoderState:
    """The state of a decoder, and what the noise of each row depends on: ids, chain, fed [B], the number of tokens fed."""

    inner: State
    ids: Tensor
    chain: Tensor
    fed: Tensor


class NoisyDecoder(WrappedDecoder):
    """A decoder with noise of standard deviation scale / t at the t-th token that it reads; without decay, scale at all tokens.

    The noise is a hash of the seed, the sentence, the chain, the token's number and the place of the value, so it does not
    depend on the batch. The source says which sentence and chain each row is (`in_chains`); chain 0 has no noise.
    """

    def __init__(self, decoder: Decoder, scale: float, where: Where, seed: int, decay: bool = True) -> None:
        super().__init__(decoder)
        self.scale, self.where, self.seed, self.decay = scale, where, seed, decay
        self.embeddings = [part for part in decoder.modules() if isinstance(part, TokenEmbedding)]
        self.recurrent = decoder if isinstance(decoder, RecurrentStateDecoder) else None
        name = type(decoder).__name__
        if where == "embeddings" and not self.embeddings:
            raise ConfigError(f"decode.search.where: {name} has no token embeddings to add noise to; set decode.search: beam")
        if where == "states" and self.recurrent is None:
            raise ConfigError(f"decode.search.where: {name} has no recurrent states to add noise to; use embeddings")

    def init_state(self, source: Encoded, *, room: int | None = None) -> NoisyDecoderState:
        ids, chain = source.extras["noise.ids"], source.extras["noise.chain"]
        return NoisyDecoderState(self.decoder.init_state(source, room=room), ids, chain, torch.zeros_like(ids))

    def inner_state(self, state: NoisyDecoderState) -> State:
        return state.inner

    def hidden_states(self, tokens: Tensor, state: NoisyDecoderState, layout: Layout | None = None) -> HiddenStates:
        if self.where == "embeddings":
            place = state.fed[:, None] + torch.arange(tokens.size(1), device=tokens.device)
            with self._added(state, place):
                features = self.decoder.hidden_states(tokens, state.inner, layout)
        else:
            features = self._step_by_step(tokens, state, layout)
        fed = state.fed + (tokens.size(1) if layout is None else layout.lengths)
        return replace(features, state=replace(state, inner=features.state, fed=fed))

    def _step_by_step(self, tokens: Tensor, state: NoisyDecoderState, layout: Layout | None) -> HiddenStates:
        """Disturbs the state before each token; in rows whose token is padding, the state stays as it was."""
        assert self.recurrent is not None
        inner, hidden = state.inner, []
        for t, column in enumerate(each_token(layout, tokens.size(1))):
            noise = self._maker(state, state.fed[:, None] + t, None if column is None else column.mask)
            inner = self.recurrent.disturb(inner, partial(_add, noise))
            features = self.decoder.hidden_states(tokens[:, t : t + 1], inner, column)
            inner = features.state
            hidden.append(features.hidden)
        return HiddenStates(torch.cat(hidden, 1), inner)

    @contextmanager
    def _added(self, state: NoisyDecoderState, place: Tensor) -> Iterator[None]:
        """Inside this context noise is added to the embeddings of tokens number `place` [B, T]."""
        noise = self._maker(state, place)

        def add(_: nn.Module, __: object, x: Tensor) -> Tensor:
            return x + noise(x)

        with ExitStack() as stack:
            for embedding in self.embeddings:
                stack.callback(embedding.register_forward_hook(add).remove)
            yield

    def _maker(self, state: NoisyDecoderState, place: Tensor, real: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """A function that makes noise for tensors [B, T, W], other noise at every call; 0 where `real` [B, T] is false."""
        scale = self.scale / (place + 1).float() if self.decay else torch.full_like(place, self.scale, dtype=torch.float32)
        scale = torch.where((state.chain > 0)[:, None], scale, 0.0)
        scale = scale if real is None else scale.where(real, 0.0)
        calls = 0

        def make(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return (normal(self.seed, state.ids, state.chain, place, x.size(-1), calls) * scale[..., None]).to(x.dtype)

        return make


def _add(noise: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """values [B, W] with noise."""
    return values + noise(values[:, None])[:, 0]


def normal(seed: int, ids: Tensor, chain: Tensor, place: Tensor, width: int, call: int = 1) -> Tensor:
    """[B, T, W] numbers from the standard normal distribution (Box & Muller 1958), for ids, chain [B] and place [B, T]."""
    value = torch.arange(width, device=ids.device)
    x = (ids * 0x1E3779B97F4A7C15 + chain * 0x3F4A7C15D1B54A33)[:, None, None] + place[..., None] * 0x5851F42D4C957F2D
    salt = (call * 0x4CF5AD432745937F + (1 << 63)) % (1 << 64) - (1 << 63)  # as 64 bits with a sign
    x = x + value * 0x2127599BF4325C37 + salt
    first, second = (hashed(x + shift, seed) for shift in (0x52DCE729, 0x38495AB5 << 20))
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * torch.pi * second)


def in_chains(source: Encoded, ids: Tensor, chains: int) -> Encoded:
    """Each source `chains` times, with the sentence and the chain of every row."""
    rows = torch.arange(ids.numel(), device=ids.device).repeat_interleave(chains)
    chain = torch.arange(chains, device=ids.device).repeat(ids.numel())
    return _repeated(source, rows, chains, {"noise.ids": ids[rows], "noise.chain": chain})


def _repeated(source: Encoded, rows: Tensor, times: int, extras: dict[str, Tensor]) -> Encoded:
    return Encoded(
        source.memory[rows],
        None if source.layout is None else source.layout.repeat(times),
        extras,
        [_repeated(part, rows, times, extras) for part in source.parts],
        [layer[rows] for layer in source.layers],
        select(source.final, rows),
    )


def log_probabilities(
    decoder: Decoder, source: Encoded, texts: Sequence[list[int]], prefixes: Sequence[list[int]] = ()
) -> list[float]:
    """log P of each text after its prefix, without noise. source: one row per text."""
    totals: list[float] = text_log_likelihoods(decoder, source, texts, prefixes).cpu().double().sum(1).tolist()
    return totals


@dataclass(kw_only=True, eq=False)
class NoisySearch(Search):
    """Decodes several times greedily, with noise in the decoder, and takes the most probable text (Cho 2016).

    The first of the chains has no noise, so the result scores at least as well as a greedy text. Scores are without noise.

    chains: texts per source that are decoded side by side
    scale: standard deviation of the noise at the first token
    where: embeddings that the decoder reads, or the states of recurrent layers, as published
    decay: divide the standard deviation by the number of the token, as published
    length_penalty: a score is the log-probability divided by length to this power
    seed: of the random numbers
    """

    kind = "noisy"
    accepts = frozenset({"n_best", "prefix"})

    chains: PositiveInt = 8
    scale: NonNegativeFloat = 0.5
    where: Where = "embeddings"
    decay: bool = True
    length_penalty: float = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1

    def width(self, n_best: int) -> int:
        return max(self.chains, n_best)

    def final(self, n_best: int) -> bool:
        return False

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        return NoisyDecoder(super().wrap_decoder(decoder), self.scale, self.where, self.seed, self.decay)

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        raise ConfigError(
            "decode.search: noisy ranks whole texts by their probability given a source; for a language model set "
            "decode.search: sample"
        )

    def find(self, decoder: Decoder, source: Any, request: SearchRequest) -> SearchResult:
        n_best, prefix, layout, control = request.n_best or 1, request.prefix, request.prefix_layout, request.cancellation
        chains = self.width(n_best)
        rows = torch.arange(prefix.size(0), device=prefix.device).repeat_interleave(chains)
        many = in_chains(source, request.limits.ids, chains)
        mine = None if control is None else Cancellation(control.rows * chains, lambda row: control.wanted(row // chains))
        in_all = replace(
            request,
            prefix=prefix[rows],
            prefix_layout=None if layout is None else layout.repeat(chains),
            limits=select(request.limits, rows),
            n_best=None,
            cancellation=mine,
        )
        results, _ = run_search(self.wrap_decoder(decoder), many, GreedySelector(self.length_penalty), in_all)
        if mine is not None and control is not None:
            control.stopped.update(row // chains for row in mine.stopped)
        prefixes = unpad(prefix, layout)
        texts = [each[0].tokens for each in results]
        with torch.inference_mode():
            logp = log_probabilities(decoder, many, texts, [prefixes[row] for row in rows.tolist()])
        scored = [Hypothesis(score / len(text) ** self.length_penalty, text) for score, text in zip(logp, texts, strict=True)]
        return [ranked(scored[row * chains : (row + 1) * chains])[:n_best] for row in range(prefix.size(0))], None


def ranked(texts: list[Hypothesis]) -> list[Hypothesis]:
    """The best first, each text once."""
    ordered = sorted(texts, key=lambda each: -each.score)
    return list({tuple(each.tokens): each for each in reversed(ordered)}.values())[::-1]
