"""The output layer and its loss, computed without holding all logits in float32.

Shapes: N tokens · D width · V vocabulary.
"""

from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import BOS, PAD
from weft.layers.kernels import triton_available
from weft.layers.linear_norm_dropout import accumulation_dtype, linear_with, to_autocast_dtype

CACHED = 1 << 21
"""Logits per chunk on a CPU: 8 MiB of float32."""

IMPOSSIBLE = 100.0
"""The loss of a label with probability 0, as if it were e⁻¹⁰⁰: high enough to be noticed, and finite."""

UNWRITTEN = 2
"""The ids PAD and BOS, which come first, and which no text contains."""


@torch.no_grad()
def fix_unwritten(table: nn.Embedding, output: nn.Linear) -> None:
    """Starts a model that never writes PAD and BOS: their rows are 0, their biases so low that the softmax is 0."""
    for weight in {table.weight, output.weight}:
        weight[:UNWRITTEN] = 0.0
    output.bias[:UNWRITTEN] = -IMPOSSIBLE
    table.padding_idx = BOS  # a lookup has no gradient in this row


def unwritten_fixed(weights: Tensor) -> Tensor:
    """Weights whose rows of PAD and BOS have no gradient."""
    return torch.cat([weights[:UNWRITTEN].detach(), weights[UNWRITTEN:]])


class RestrictableOutput(Protocol):
    """An output layer that can be restricted to some of its outputs."""

    def rows(self, outputs: Tensor) -> nn.Module: ...


def restrict_outputs(layer: nn.Module, outputs: Tensor) -> nn.Module:
    """The layer restricted to some of its outputs [N]."""
    if not isinstance(layer, nn.Linear):
        return cast(RestrictableOutput, layer).rows(outputs)
    return linear_with(layer.weight.detach()[outputs], None if layer.bias is None else layer.bias.detach()[outputs])


def label_smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """(label-smoothed loss, negative log-likelihood), each a float32 sum over the labels that are not PAD.

    Smoothing ε spreads that share of the probability evenly over the vocabulary (Szegedy et al. 2016), without entries whose
    logits are −inf. A label with a logit of −inf costs `IMPOSSIBLE` and has no gradient.
    """
    logp = logits.to(accumulation_dtype(logits.dtype)).log_softmax(-1)
    never = logp == float("-inf")
    logp = logp.masked_fill(never, -IMPOSSIBLE)
    nll = F.nll_loss(logp.flatten(0, -2), labels.flatten(), ignore_index=PAD, reduction="sum")
    if smoothing == 0:
        return nll, nll.detach()
    real = labels != PAD
    even = -torch.where(real, logp.masked_fill(never, 0.0).sum(-1) / (~never).sum(-1), 0.0).sum()
    return (1 - smoothing) * nll + smoothing * even, nll.detach()


class TokenLoss(Protocol):
    """A loss of the next token, of the table `LOSSES`. Its options are the keyword-only parameters of its constructor."""

    def __call__(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The loss of logits [B, T, V] and labels [B, T], a sum over the labels that are not PAD."""


class CrossEntropy:
    """The cross-entropy of the next token, smoothed by task.label_smoothing."""

    def __call__(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The loss of logits [B, T, V] and labels [B, T], a sum over the labels that are not PAD."""
        return label_smoothed_cross_entropy(logits, labels, smoothing)[0]


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same for logits = hidden · weightᵀ + bias, one chunk of tokens at a time, with gradients computed along the way.

    hidden [B, T, D] · weight [V, D] · bias [V] · labels [B, T]. By default the logits of a chunk fit a CPU's cache, or have
    4096 rows on a GPU.
    """
    if bias is not None:
        hidden, weight = F.pad(hidden, (0, 1), value=1.0), torch.cat([weight, bias[:, None]], 1)
    hidden, labels = to_autocast_dtype(hidden.flatten(0, -2)), labels.flatten()
    if chunk is None:
        chunk = 4096 if hidden.device.type != "cpu" else max(64, CACHED // weight.size(0))
    total, nll = _LinearLoss.apply(hidden, weight, labels, smoothing, chunk)
    return total, nll


class _LinearLoss(torch.autograd.Function):
    """∂loss/∂logits = softmax − target depends on later layers only by a factor, so both products with it are computed at once.

    The even part of smoothing is a product with the mean of the table, so it needs no extra pass over the logits.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        below, own = ctx.needs_input_grad[:2]
        wanted, real = below or own, (labels != PAD)[:, None]
        table, hidden = weight.to(hidden.dtype), hidden.masked_fill(~real, 0.0)
        mean = weight.to(accumulation_dtype(weight.dtype)).mean(0)
        total = torch.zeros((), device=hidden.device, dtype=accumulation_dtype(hidden.dtype))
        nll = torch.zeros_like(total)
        grad_hidden = torch.empty_like(hidden) if below else None
        grad_weight = torch.zeros_like(weight) if own else None
        for begin in range(0, hidden.size(0), chunk):
            rows, gold = hidden[begin : begin + chunk], labels[begin : begin + chunk]
            likelihood, norm, slope = _chunk(rows @ table.t(), gold, smoothing, wanted)
            ok = gold != PAD
            nll -= torch.where(ok, likelihood, 0.0).sum()
            # Autocast would compute a matrix product in half precision.
            total += torch.where(ok, norm - (rows.to(mean.dtype) * mean).sum(-1), 0.0).sum()
            if slope is not None and grad_hidden is not None:
                grad_hidden[begin : begin + chunk] = slope @ table
            if slope is not None and grad_weight is not None:
                grad_weight += slope.t() @ rows
        if grad_hidden is not None:
            grad_hidden.sub_((smoothing * mean).to(hidden.dtype)).masked_fill_(~real, 0.0)
        if grad_weight is not None:
            grad_weight.sub_(smoothing / table.size(0) * hidden.sum(0, dtype=mean.dtype))
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * total, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        below = None if grad_hidden is None else grad_hidden * grad.to(grad_hidden.dtype)
        return below, None if grad_weight is None else grad_weight * grad, None, None, None


def _chunk(logits: Tensor, gold: Tensor, smoothing: float, wanted: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-likelihoods [N], log-denominators of the softmax [N], and softmax − (1 − ε) · gold, which overwrites the logits."""
    if triton_available(logits):
        from weft.layers.kernels.triton.fused_cross_entropy import likelihoods

        return likelihoods(logits, gold, 1 - smoothing, wanted)
    gold = gold[:, None]
    chosen = logits.gather(-1, gold)
    logp = logits.log_softmax(-1, dtype=accumulation_dtype(logits.dtype))
    likelihood = logp.gather(-1, gold)
    slope = None
    if wanted:
        slope = torch.exp(logp, out=logits)
        slope.scatter_(-1, gold, (likelihood.exp() - (1 - smoothing)).to(slope.dtype))
    return likelihood[:, 0], (chosen - likelihood)[:, 0], slope
