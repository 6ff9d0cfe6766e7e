"""Counts the FLOPs of operations as they run, and the bytes that each reads and writes.

FLOPs follow from the shapes of the arguments; a multiplication and an addition count as two. Matrix products and convolutions
use torch's formulas. This file has the others: fused attention (only pairs that are not masked, where torch counts all),
recurrent layers, Fourier transforms, int8 products. Elementwise work is not counted: it shows in the bytes that are moved.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from weft.data.batch import power_of_two

Named = Mapping[str, Any]
"""The arguments of an operation, by name."""


@dataclass
class Cost:
    """The cost of some work. moved: bytes by the size of the operation that moved them, rounded up to a power of two."""

    flops: int = 0
    moved: Counter[int] = field(default_factory=Counter)

    @property
    def bytes(self) -> int:
        return self.moved.total()

    def add(self, flops: int, size: int) -> None:
        self.flops += flops
        if size:
            self.moved[power_of_two(size)] += size


class FlopCounter(TorchDispatchMode):
    """Inside this context, all operations of this thread and of its backward passes are counted in `cost`.

    Composite operations are decomposed, so each part counts once. Data that stays inside a kernel moves no bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        with self:
            decomposed = func.decompose(*args, **options)
        if decomposed is not NotImplemented:
            return decomposed
        out = func(*args, **options)
        names = (argument.name for argument in func._schema.arguments)
        named = {**dict(zip(names, args, strict=False)), **options}
        self.cost.add(flops(func, named, args, options, out), bytes_moved(func, named, out))
        return out


FORWARD, BACKWARD = 2, 5
"""Products of an attention: scores and sums; backward, the scores again and the gradients of q, k, v and the weights."""


def flops(operation: OpOverload, named: Named, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """The FLOPs of one call; 0 for operations without a formula."""
    own = FORMULAS.get(operation.overloadpacket.__name__)
    if own is not None:
        return own(named, out)
    known = flop_registry.get(operation.overloadpacket)
    return 0 if known is None else int(known(*args, **kwargs, out_val=out))


def attention(products: int, heads: int = 1) -> Callable[[Named, Any], int]:
    """The formula of an attention with `products` products; heads: the dimension of q [B, …, width] that counts heads."""

    def count(named: Named, out: Any) -> int:
        q, k = named["query"], named["key"]
        windows = (named.get(f"window_size_{side}") for side in ("left", "right"))
        left, right = (math.inf if window is None or window < 0 else window for window in windows)
        right = 0 if named.get("is_causal") else right
        if q.dim() == 3:  # [tokens, heads, width], ragged
            lengths = (named[name].diff().tolist() for name in ("cum_seq_q", "cum_seq_k"))
            visible = sum(pairs(*each, left, right) for each in zip(*lengths, strict=True))
            return 2 * products * q.size(1) * q.size(2) * visible
        visible = pairs(q.size(3 - heads), k.size(3 - heads), left, right)
        return 2 * products * q.size(0) * q.size(heads) * q.size(3) * visible

    return count


@cache
def pairs(queries: int, keys: int, left: float = math.inf, right: float = math.inf) -> int:
    """Pairs of a query and a key that is at most `left` positions before it or `right` behind it."""
    if left == right == math.inf:
        return queries * keys
    return sum(max(0, int(min(keys - 1, i + right) - max(0, i - left)) + 1) for i in range(queries))


def decoding_attention(named: Named, out: Any) -> int:
    """Scores and sums of single queries over the filled part of a KV cache."""
    query, size, lengths = named["query"], named["key"].size(3), named.get("lengths")
    visible = size if lengths is None else float(lengths.float().mean())
    return int(2 * FORWARD * query.numel() * visible)


def recurrent(products: int) -> Callable[[Named, Any], int]:
    """Every token is multiplied with every weight; backward twice, for the gradients of the input and of the weights."""

    def count(named: Named, out: Any) -> int:
        weights = tensors([value for name, value in named.items() if name.startswith("weight")])
        read = named["input"]
        matrices = sum(weight.numel() for weight in weights if weight.dim() > 1)
        return 2 * products * matrices * (read.numel() // read.size(-1))

    return count


def tensors(value: Any) -> list[Tensor]:
    """The tensors among the arguments or results of an operation."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def fourier(named: Named, out: Tensor) -> int:
    """5 n log₂ n per complex transform of n numbers, half of it if one side is real."""
    read = named["self"]
    whole = read if read.is_complex() else out
    share = 1.0 if read.is_complex() and out.is_complex() else 0.5
    return int(5 * share * whole.numel() * sum(math.log2(max(2, whole.size(place))) for place in named["dim"]))


FUSED = [
    f"_scaled_dot_product_{kind}"
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
]

FORMULAS: dict[str, Callable[[Named, Any], int]] = {
    **{name: attention(FORWARD) for name in FUSED},
    **{f"{name}_backward": attention(BACKWARD) for name in FUSED},
    "_flash_attention_forward": attention(FORWARD, heads=2),
    "_flash_attention_backward": attention(BACKWARD, heads=2),
    "attend_pieces": attention(FORWARD, heads=2),
    "attend_pieces_backward": attention(BACKWARD, heads=2),
    "attend_step": decoding_attention,
    "_cudnn_rnn": recurrent(1),
    "_cudnn_rnn_backward": recurrent(2),
    "mkldnn_rnn_layer": recurrent(1),
    "mkldnn_rnn_layer_backward": recurrent(2),
    "_fft_c2c": fourier,
    "_fft_r2c": fourier,
    "_fft_c2r": fourier,
    "linear_with_input_q_dq_qweight_dq_output_fp32": lambda named, out: 2 * out.numel() * int(named["X"].size(-1)),
    "mv": lambda named, out: 2 * named["self"].numel(),
    "addmv": lambda named, out: 2 * named["mat"].numel(),
    "dot": lambda named, out: 2 * named["self"].numel(),
}

WRITTEN_ONLY = {"copy_", "fill_", "zero_", "random_", "bernoulli_", "uniform_", "normal_", "exponential_", "_foreach_zero_"}
"""Operations that do not read what they overwrite."""

PARTLY_READ = {"embedding": "weight", "_embedding_bag": "weight", "index": "self", "index_select": "self", "gather": "self"}
"""Operations that read only part of this argument: as much as they return."""

PARTLY_WRITTEN = {
    "index_put_": "values",
    "scatter_": "src",
    "index_copy_": "source",
    "index_add_": "source",
    "scatter_add_": "src",
}
"""Operations that write only as much as this argument holds."""

REPEATED = {"weight_buf"}
"""Arguments that repeat others: the flat copy of a recurrent layer's weights."""

UNTOUCHED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
"""Operations that move nothing, or a single number."""


def bytes_moved(func: OpOverload, named: Named, out: Any) -> int:
    """Bytes that one call reads and writes."""
    name = func.overloadpacket.__name__
    if name in UNTOUCHED:
        return 0
    targets = tensors([named.get(each.name) for each in func._schema.arguments if each.alias_info and each.alias_info.is_write])
    left_out = {PARTLY_READ.get(name), *REPEATED}
    read = tensors([value for key, value in named.items() if key not in left_out])
    results = tensors(out)
    if not targets and results and _storages(results) <= _storages(tensors(list(named.values()))):
        return 0  # a view
    if name in PARTLY_READ:
        return sum(map(size, read)) + 2 * sum(map(size, results))
    if name in PARTLY_WRITTEN:
        others = [each for each in read if each is not targets[0]]
        return sum(map(size, others)) + sum(map(size, tensors(named.get(PARTLY_WRITTEN[name]))))
    if name in WRITTEN_ONLY:
        read = [each for each in read if all(each is not target for target in targets)]
    written = {id(each): each for each in (*targets, *results)}
    # Packed int8 weights are not a tensor: one byte per input and output.
    packed = results[0].size(-1) * int(named["X"].size(-1)) if "W_prepack" in named else 0
    return sum(map(size, read)) + sum(map(size, written.values())) + packed


def size(tensor: Tensor) -> int:
    """The bytes of a tensor; expanded dimensions count once."""
    count = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= extent if stride or extent == 0 else 1
    return count


def _storages(tensors: Sequence[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}
