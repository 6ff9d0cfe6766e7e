"""A first map between word vectors without any seed (Lample et al. 2018, "Word translation without parallel data").

A discriminator learns to tell mapped source vectors from target vectors, and the map learns to fool it. Of all maps on the way,
the one is taken whose frequent words are nearest to their translations.

Shapes: V, W words · D width of a vector · B words of a batch.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.dictionaries.mapping import Pairs, mutual, similarities
from weft.dictionaries.vectors import Vectors

EPOCHS, STEPS, BATCH = 10, 200, 64
TURNS = 2
"""Steps of the discriminator for each one of the map."""
HIDDEN, DROPOUT, SMOOTHING = 128, 0.1, 0.1
RATES, DECAY = (5e-3, 1e-2), 0.9
"""The first rates of the discriminator and of the map, and the factor that lowers them after each epoch."""
ORTHOGONAL = 0.01
"""How fast the map is pulled towards an orthogonal one."""


def adversarial_pairs(x: Vectors, y: Vectors, frequent: int, *, epochs: int = EPOCHS) -> Pairs:
    """[N, 2]: words that translate each other according to a map that is learnt from the vectors [V, D] and [W, D] alone.

    frequent: words of each side, from the first on, that are learnt from.
    """
    first, second = (torch.from_numpy(np.ascontiguousarray(side[:frequent])) for side in (x, y))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = _learn(first, second, epochs)
    return mutual(similarities(F.normalize(first @ found).numpy(), second.numpy()))


def _learn(x: Tensor, y: Tensor, epochs: int) -> Tensor:
    """The map [D, D] from x to y."""
    width = x.size(1)
    judge = nn.Sequential(
        nn.Dropout(DROPOUT), nn.Linear(width, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, HIDDEN), nn.LeakyReLU(0.2),
        nn.Linear(HIDDEN, 1),
    )  # fmt: skip
    turn = torch.eye(width, requires_grad=True)
    learning = [
        torch.optim.Adam(parameters, rate, betas=(0.0, 0.9))
        for parameters, rate in zip((judge.parameters(), [turn]), RATES, strict=True)
    ]
    best, chosen = -1.0, torch.eye(width)
    for _ in range(epochs):
        for _ in range(STEPS):
            for _ in range(TURNS):
                _step(learning[0], _loss(judge, turn.detach(), x, y))
            _step(learning[1], -_loss(judge, turn, x, y))
            with torch.no_grad():
                turn.copy_((1 + ORTHOGONAL) * turn - ORTHOGONAL * turn @ turn.T @ turn)
        for each in learning:
            each.param_groups[0]["lr"] *= DECAY
        if (now := _nearness(x @ turn.detach(), y)) > best:
            best, chosen = now, turn.detach().clone()
    return chosen


def _loss(judge: nn.Module, turn: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of the discriminator on a random batch of each side."""
    some = [side[torch.randint(len(side), (BATCH,))] for side in (x, y)]
    logits = judge(torch.cat([some[0] @ turn, some[1]]))[:, 0]
    truth = torch.cat([torch.full((BATCH,), value) for value in (SMOOTHING, 1 - SMOOTHING)])
    return F.binary_cross_entropy_with_logits(logits, truth)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _nearness(x: Tensor, y: Tensor) -> float:
    """The mean cosine of the words of x with their nearest words by CSLS."""
    x, y = F.normalize(x), F.normalize(y)
    best = similarities(x.numpy(), y.numpy()).argmax(1)
    return float((x * y[torch.from_numpy(best)]).sum(1).mean())
