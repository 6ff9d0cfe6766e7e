"""Likelihoods and predictions for whole targets, computed without holding all logits at once.

Shapes: B rows · T target positions · D width · V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.config.registry import Among, build
from weft.data.batch import BOS, PAD, Layout, pad
from weft.layers.linear_norm_dropout import accumulation_dtype
from weft.losses.cross_entropy import IMPOSSIBLE, CrossEntropy, TokenLoss, label_smoothed_cross_entropy
from weft.models.base import Decoder, Encoded

CHUNK = 4096
"""Tokens whose logits are held at once; at least one position per row."""

Choice = Literal["best", "drawn"]

LossSpec = Annotated[dict[str, Any], Among("weft.losses:LOSSES")]
"""A loss of target tokens and its options, as configurations write them."""


def build_loss(spec: Mapping[str, Any]) -> TokenLoss:
    """The loss that task.loss describes."""
    loss: TokenLoss = build("weft.losses:LOSSES", spec, where="task.loss")
    return loss


def decoder_loss(loss: TokenLoss, decoder: Decoder, hidden: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """A loss of the table `LOSSES` and the negative log-likelihood, each a sum over the labels [B, T] that are not PAD.

    Only the cross-entropy is computed without storing all logits.
    """
    if type(loss) is CrossEntropy:
        return decoder.loss(hidden, labels, smoothing)
    logits = decoder.logits(hidden)
    return loss(logits, labels, smoothing), label_smoothed_cross_entropy(logits.detach(), labels, 0.0)[1]


def log_likelihoods(decoder: Decoder, hidden: Tensor, labels: Tensor, never: Sequence[int] = ()) -> Tensor:
    """[B, T]: log p of each label, at least −IMPOSSIBLE; 0 where it is PAD. The tokens `never` have no probability.

    If the logits of the decoder are scores, the score of each label.
    """

    def likelihoods(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = _logits(decoder, hidden, never)
        chosen = logits.gather(-1, labels[..., None])[..., 0]
        return chosen if decoder.scores else chosen - logits.logsumexp(-1)

    return torch.cat(in_slices(likelihoods, hidden, labels), 1).clamp_min(-IMPOSSIBLE).where(labels != PAD, 0.0)


def text_log_likelihoods(
    decoder: Decoder,
    source: Encoded,
    texts: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]] = (),
    never: Sequence[int] = (),
) -> Tensor:
    """[B, T]: log p of each token of the texts after their prefixes, by default BOS; 0 at tokens of prefixes and at padding.

    source: a row for each text · never: see `log_likelihoods`.
    """
    pairs = list(zip(prefixes or [[BOS]] * len(texts), texts, strict=True))
    rows = [[*prefix, *text][:-1] for prefix, text in pairs]
    device, layout = source.memory.device, Layout.padded([len(row) for row in rows])
    labels = pad([[*[PAD] * (len(prefix) - 1), *text] for prefix, text in pairs]).to(device)
    hidden = decoder.hidden_states(pad(rows).to(device), decoder.init_state(source), layout.to(device)).hidden
    return log_likelihoods(decoder, hidden, labels, never)


def in_slices(compute: Callable[..., Tensor], hidden: Tensor, *others: Tensor) -> list[Tensor]:
    """`compute` of each slice of positions of hidden states [B, T, D] and other tensors [B, T, …], with few logits at once.

    Results are recomputed for the gradient instead of keeping what it needs, so `compute` may draw no random numbers.
    """
    slices = zip(*(each.split(_extent(hidden), 1) for each in (hidden, *others)), strict=True)
    if not torch.is_grad_enabled():
        return [compute(*each) for each in slices]
    return [checkpoint(compute, *each, use_reentrant=False, preserve_rng_state=False) for each in slices]


@torch.no_grad()
def predictions(decoder: Decoder, hidden: Tensor, choice: Choice) -> Tensor:
    """[B, T]: the most probable token after each hidden state, or a sample."""
    tokens = []
    for states in hidden.split(_extent(hidden), 1):
        logits = _logits(decoder, states)
        # The argmax of logit − log(exponential noise) is a sample from the softmax (Gumbel-max) that does not need the host.
        scores = logits if choice == "best" else logits - torch.empty_like(logits).exponential_().log()
        tokens.append(scores.argmax(-1))
    return torch.cat(tokens, 1)


def _logits(decoder: Decoder, hidden: Tensor, never: Sequence[int] = ()) -> Tensor:
    """[B, t, V] in at least float32, for a slice of positions."""
    logits = decoder.logits(hidden)
    logits = logits.to(accumulation_dtype(logits.dtype))
    return logits.index_fill(-1, torch.tensor(never, device=logits.device), -torch.inf) if never else logits


def _extent(hidden: Tensor) -> int:
    """Positions per slice, so that the logits of a slice have about `CHUNK` rows."""
    return max(1, CHUNK // hidden.size(0))
