"""Counts the FLOPs of operations as they run, and the bytes that each reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from weft.batch import power_of_two
from weft.bench.formulas import flops, tensors

WRITTEN_ONLY = {"copy_", "fill_", "zero_", "random_", "bernoulli_", "uniform_", "normal_", "exponential_", "_foreach_zero_"}
"""Operations that do not read what they overwrite."""

PICKED = {"embedding": "weight", "_embedding_bag": "weight", "index": "self", "index_select": "self", "gather": "self"}
"""Operations that read only part of this argument: as much as they return."""

PUT = {"index_put_": "values", "scatter_": "src", "index_copy_": "source", "index_add_": "source", "scatter_add_": "src"}
"""Operations that write only as much as this argument holds."""

AGAIN = {"weight_buf"}
"""Arguments that repeat others: the flat copy of a recurrent layer's weights."""

UNTOUCHED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
"""Operations that move nothing, or a single number."""


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


class Counting(TorchDispatchMode):
    """Inside this context, all operations of this thread and of its backward passes are counted in `cost`.

    Composite operations are decomposed, so each part counts once. Data that stays inside a kernel moves no bytes. FLOPs are
    those of `weft.bench.formulas`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cost = Cost()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        with self:
            decomposed = func.decompose(*args, **given)
        if decomposed is not NotImplemented:
            return decomposed
        out = func(*args, **given)
        names = (argument.name for argument in func._schema.arguments)
        named = {**dict(zip(names, args, strict=False)), **given}
        self.cost.add(flops(func, named, args, given, out), moved(func, named, out))
        return out


def moved(func: OpOverload, named: Mapping[str, Any], out: Any) -> int:
    """Bytes that one call reads and writes."""
    name = func.overloadpacket.__name__
    if name in UNTOUCHED:
        return 0
    targets = tensors([named.get(each.name) for each in func._schema.arguments if each.alias_info and each.alias_info.is_write])
    left_out = {PICKED.get(name), *AGAIN}
    read = tensors([value for key, value in named.items() if key not in left_out])
    made = tensors(out)
    if not targets and made and _places(made) <= _places(tensors(list(named.values()))):
        return 0  # a view
    if name in PICKED:
        return sum(map(size, read)) + 2 * sum(map(size, made))
    if name in PUT:
        given = [each for each in read if each is not targets[0]]
        return sum(map(size, given)) + sum(map(size, tensors(named.get(PUT[name]))))
    if name in WRITTEN_ONLY:
        read = [each for each in read if all(each is not target for target in targets)]
    written = {id(each): each for each in (*targets, *made)}
    return sum(map(size, read)) + sum(map(size, written.values())) + _packed(named, made)


def size(tensor: Tensor) -> int:
    """The bytes of a tensor; expanded dimensions count once."""
    count = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= extent if stride or extent == 0 else 1
    return count


def _packed(named: Mapping[str, Any], made: list[Tensor]) -> int:
    """The bytes of packed int8 weights, which are not a tensor: one per input and output."""
    return made[0].size(-1) * int(named["X"].size(-1)) if "W_prepack" in named else 0


def _places(tensors: Sequence[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}
