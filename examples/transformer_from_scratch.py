"""A Transformer in one file, with torch alone: trains on dates in a minute or two, then writes them by greedy and beam search.

    python examples/transformer_from_scratch.py [--steps 700]

The model is that of Vaswani et al. 2017 as published: a norm follows each residual sum (post-norm; weft's default is pre-norm),
and source, target and output share one table of embeddings. Each part names the files of weft that do the same for every model,
faster and with more options. With the weights of a weft model, this one gives the same logits, losses and outputs.

Shapes: B sentences · S source positions · T target positions · D width · H heads · V vocabulary.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from datetime import date, timedelta

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[str, str]
PAD, BOS, EOS, UNK = 0, 1, 2, 3


def date_pairs(seed: int) -> Iterator[Pair]:
    """Endless dates, in words and in ISO form. In weft: weft/data/generators.py."""
    chance = random.Random(seed)
    while True:
        day = date(1970, 1, 1) + timedelta(days=chance.randrange(25000))
        pattern = chance.choice(("{:%A}, {} {:%B %Y}", "{:%B} {}, {:%Y}", "{1} {0:%b %Y}"))
        yield pattern.format(day, day.day, day), day.isoformat()


class Characters:
    """A vocabulary of characters after four special tokens. In weft: weft/data/tokenizers/word_character_byte.py."""

    def __init__(self, texts: list[str]) -> None:
        self.characters = sorted(set("".join(texts)))
        self.ids = {character: i for i, character in enumerate(self.characters, start=4)}

    def __len__(self) -> int:
        return 4 + len(self.characters)

    def encode(self, text: str) -> list[int]:
        return [*(self.ids.get(character, UNK) for character in text), EOS]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.characters[i - 4] for i in ids if i >= 4)


def pad(rows: list[list[int]]) -> Tensor:
    """[B, T]: rows of different lengths, filled with PAD on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


def batches(pairs: list[Pair], characters: Characters, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches (source, target, labels). The decoder reads the target and has to predict the labels.

    In weft: weft/data/batching.py (which rows) and weft/data/batch.py (masks and packed rows).
    """
    chance = random.Random(seed)
    while True:
        chosen = chance.sample(pairs, size)
        sources, targets = ([characters.encode(text) for text in side] for side in zip(*chosen, strict=True))
        yield pad(sources), pad([[BOS, *row[:-1]] for row in targets]), pad(targets)


class MultiHeadAttention(nn.Module):
    """softmax(QKᵀ/√d)V in H heads, each with its share of the width (section 3.2).

    In weft: weft/attention/core/multihead.py (projections) and weft/attention/core/dot_product.py (the rest).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """x [B, T, D] attends to memory [B, S, D] where mask [B, 1, T or 1, S] is true → [B, T, D]."""
        q, k, v = self._split(self.query(x)), self._split(self.key(memory)), self._split(self.value(memory))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, D] → [B, H, T, D/H]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def sinusoids(length: int, dim: int) -> Tensor:
    """[T, D]: sin and cos of p / 10000^(2i/D) in turn, for i < D/2 (section 3.5). In weft:
    weft/layers/embeddings_and_rotary_positions.py.
    """
    angles = torch.arange(length)[:, None].float() * 10000.0 ** (-torch.arange(0, dim, 2).float() / dim)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class FeedForward(nn.Module):
    """W₂ relu(W₁ x) at every position (section 3.3). In weft: weft/layers/feedforward.py."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class AddAndNorm(nn.Module):
    """norm(x + dropout(f(x))): the residual connection around a sub-layer f. In weft: weft/models/transformer_blocks.py."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        return self.norm(x + self.dropout(update))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.network = MultiHeadAttention(dim, heads), FeedForward(dim, hidden)
        self.add_attention, self.add_network = AddAndNorm(dim, dropout), AddAndNorm(dim, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.add_attention(x, self.attention(x, x, mask))
        return self.add_network(x, self.network(x))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source (cross-attention), then the feed-forward network."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.cross = MultiHeadAttention(dim, heads), MultiHeadAttention(dim, heads)
        self.network = FeedForward(dim, hidden)
        self.add_attention, self.add_cross, self.add_network = (AddAndNorm(dim, dropout) for _ in range(3))

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.add_attention(x, self.attention(x, x, causal))
        x = self.add_cross(x, self.cross(x, memory, mask))
        return self.add_network(x, self.network(x))


class Transformer(nn.Module):
    """Encoder and decoder stacks over one table of embeddings, which is the output layer too.

    In weft: weft/models/transformer.py, weft/layers/embeddings_and_rotary_positions.py (tables) and weft/models/base.py
    (encoder and decoder).
    """

    def __init__(
        self, vocabulary: int, dim: int = 96, heads: int = 4, hidden: int = 256, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(vocabulary, dim), nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, hidden, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, hidden, dropout) for _ in range(layers))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source [B, S], target [B, T] → logits [B, T, V] of the token after each target token (teacher forcing)."""
        return self.decode(target, *self.encode(source))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source [B, S] → memory [B, S, D], and the mask [B, 1, 1, S] of its tokens."""
        mask = (source != PAD)[:, None, None]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """target [B, T] → logits [B, T, V]. Padding is on the right, so the causal mask hides it from all real tokens."""
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()[None, None]
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, causal, memory, mask)
        return x @ self.table.weight.t()

    def _embed(self, tokens: Tensor) -> Tensor:
        dim = self.table.embedding_dim
        x = self.table(tokens) * math.sqrt(dim)
        return self.dropout(x + sinusoids(tokens.size(1), dim).to(x.dtype))


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """The cross-entropy with labels of which a share ε is spread evenly over the vocabulary, as a sum over real tokens.

    In weft: weft/losses/cross_entropy.py.
    """
    log_p, real = logits.log_softmax(-1), labels != PAD
    likelihood = log_p.gather(-1, labels[..., None])[..., 0]
    return -((1 - smoothing) * likelihood + smoothing * log_p.mean(-1))[real].sum()


def noam(step: int, dim: int, warmup: int) -> float:
    """dim^-½ · min(step^-½, step · warmup^-1½) (section 5.3). In weft: weft/training/lr_schedules.py."""
    return float(dim**-0.5 * min(step**-0.5, step * warmup**-1.5))


def train(model: Transformer, pairs: list[Pair], characters: Characters, steps: int, warmup: int = 400) -> None:
    """Updates the model with Adam, on batches of 64 pairs.

    In weft: weft/training/training_loop.py and weft/training/optimizer.py."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    began = time.monotonic()
    model.train()
    for step, (source, target, labels) in zip(range(1, steps + 1), batches(pairs, characters, 64, seed=1)):
        optimizer.param_groups[0]["lr"] = noam(step, model.table.embedding_dim, warmup)
        loss = label_smoothed_loss(model(source, target), labels) / (labels != PAD).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}  {time.monotonic() - began:.0f} s", flush=True)


@torch.inference_mode()
def greedy_search(model: Transformer, source: Tensor, longest: int) -> list[list[int]]:
    """The most probable token at each step, for every row of source [B, S], up to and with EOS.

    In weft: weft/decoding/beam_search.py. weft feeds one token at a time, with a cache of the keys and values of earlier ones
    (weft/attention/core/kv_cache.py); here, every step computes the whole prefix again.
    """
    memory, mask = model.encode(source)
    target = torch.full((source.size(0), 1), BOS)
    for _ in range(longest):
        token = model.decode(target, memory, mask)[:, -1].argmax(-1)
        target = torch.cat([target, token[:, None]], 1)
        if (target == EOS).any(1).all():
            break
    rows = target[:, 1:].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


@torch.inference_mode()
def beam_search(
    model: Transformer, source: Tensor, longest: int, beam: int = 4, penalty: float = 1.0
) -> list[tuple[float, list[int]]]:
    """The `beam` best outputs for one source [S], best first: (log-probability / length^penalty, tokens up to and with EOS).

    In weft: weft/decoding/beam_search.py (the choice of tokens) and weft/decoding/search_loop.py (the loop, for batches).
    """
    memory, mask = model.encode(source[None])
    running: list[tuple[float, list[int]]] = [(0.0, [BOS])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        target = torch.tensor([tokens for _, tokens in running])
        log_p = model.decode(target, memory.expand(len(running), -1, -1), mask)[:, -1].log_softmax(-1)
        total = log_p + torch.tensor([score for score, _ in running], dtype=log_p.dtype)[:, None]
        best, places = total.flatten().topk(min(2 * beam, total.numel()))
        parents, chosen = (places // log_p.size(1)).tolist(), (places % log_p.size(1)).tolist()
        candidates = [(score, [*running[i][1], token]) for score, i, token in zip(best.tolist(), parents, chosen)]
        ended = [tokens[-1] == EOS or length == longest for _, tokens in candidates]
        finished += [(score / length**penalty, tokens[1:]) for (score, tokens), end in zip(candidates[:beam], ended) if end]
        finished = sorted(finished, reverse=True)[:beam]
        running = [candidate for candidate, end in zip(candidates, ended) if not end][:beam]
        # Done if even the best running hypothesis, at the greatest length and without further loss, would come too late.
        if not running or (len(finished) == beam and running[0][0] / longest**penalty <= finished[-1][0]):
            break
    return finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=700, help="updates (default 700)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    pairs = [pair for _, pair in zip(range(12000), date_pairs(seed=1))]
    known = {target for _, target in pairs}
    tests = [pair for _, pair in zip(range(600), date_pairs(seed=2)) if pair[1] not in known][:200]
    characters = Characters([text for pair in pairs for text in pair])
    model = Transformer(len(characters))
    train(model, pairs, characters, steps)
    model.eval()
    outputs = greedy_search(model, pad([characters.encode(source) for source, _ in tests]), longest=12)
    right = sum(characters.decode(output) == target for output, (_, target) in zip(outputs, tests))
    print(f"\n{right} of {len(tests)} dates that were not in the training data are right.")
    for source, target in tests[:3]:
        print(f"\n{source}  (expected {target})")
        for score, output in beam_search(model, torch.tensor(characters.encode(source)), longest=12, beam=3):
            print(f"  {score:6.3f}  {characters.decode(output)}")


if __name__ == "__main__":
    main()
