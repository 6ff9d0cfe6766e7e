"""The formulas of recorded steps: evaluated on whole arrays, and as trees that a page evaluates cell by cell.

Operands are arrays whose axes have names, and axes of the same name belong together: in `sum(q * k, channel)` with
q [query, channel] and k [key, channel] the result has the axes query and key. `A[i]` is the row of A that i names.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Tree = list[Any]
"""A formula for a page: ["name", "q"], ["number", 2], or an operation, its operands, and {"axes": …} if it runs over axes."""

OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "abs": torch.abs,
}
"""Functions of one number."""

ALONG = ("sum", "prod", "max", "norm", "softmax", "standardize", "largest", "join")
"""Functions along axes. standardize(x, channel, ε) is (x − mean) / √(variance + ε), largest(x, key) is 1 at the largest x and
otherwise 0, and join(x, y, channel) is [x; y]."""


class Named(NamedTuple):
    """An array and the names of its axes."""

    values: Tensor
    axes: tuple[str, ...]


def evaluate(formula: str, operands: Mapping[str, Named | float], axes: tuple[str, ...]) -> Tensor:
    """The value of a formula, with the axes in this order."""
    found = _value(ast.parse(formula, mode="eval").body, operands)
    assert set(found.axes) <= set(axes), f"{formula} has the axes {found.axes}, not {axes}"
    return _aligned(found, axes)


def tree(formula: str) -> Tree:
    """A formula for a page."""
    return _tree(ast.parse(formula, mode="eval").body)


def _tree(node: ast.expr) -> Tree:
    match node:
        case ast.Constant():
            return ["number", node.value]
        case ast.Name():
            return ["name", node.id]
        case ast.UnaryOp():
            return ["negative", _tree(node.operand)]
        case ast.BinOp():
            return [OPERATORS[type(node.op)], _tree(node.left), _tree(node.right)]
        case ast.Subscript():
            return ["row", _tree(node.value), _tree(node.slice)]
    name, given, axes = _call(node)
    return [name, *map(_tree, given), {"axes": axes}] if name in ALONG else [name, *map(_tree, given)]


def _call(node: ast.expr) -> tuple[str, list[ast.expr], list[str]]:
    """A function, its operands, and the names of axes."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), ast.dump(node)
    name, given = node.func.id, node.args
    if name not in ALONG:
        return name, given, []
    if name == "standardize":
        return name, [given[0], *given[2:]], [ast.unparse(given[1])]
    if name == "join":
        return name, given[:-1], [ast.unparse(given[-1])]
    return name, given[:1], [ast.unparse(each) for each in given[1:]]


def _value(node: ast.expr, operands: Mapping[str, Named | float]) -> Named:
    match node:
        case ast.Constant():
            return _number(float(cast(float, node.value)))
        case ast.Name(id="inf"):
            return _number(float("inf"))
        case ast.Name():
            found = operands[node.id]
            return found if isinstance(found, Named) else _number(found)
        case ast.UnaryOp():
            inner = _value(node.operand, operands)
            return Named(-inner.values, inner.axes)
        case ast.BinOp():
            return _combined(OPERATORS[type(node.op)], _value(node.left, operands), _value(node.right, operands))
        case ast.Subscript():
            table, index = _value(node.value, operands), _value(node.slice, operands)
            return Named(table.values[index.values.long()], (*index.axes, *table.axes[1:]))
    name, given, axes = _call(node)
    if name == "where":
        return _where(*(_value(each, operands) for each in given))
    if name == "sum" and isinstance(given[0], ast.BinOp) and isinstance(given[0].op, ast.Mult):
        return _product(_value(given[0].left, operands), _value(given[0].right, operands), axes)
    if name == "join":
        parts = [_value(each, operands) for each in given]
        whole = torch.cat([_aligned(each, parts[0].axes) for each in parts], parts[0].axes.index(axes[0]))
        return Named(whole, parts[0].axes)
    inner = _value(given[0], operands)
    if name not in ALONG:
        return Named(FUNCTIONS[name](inner.values), inner.axes)
    return _along(name, inner, axes, _value(given[1], operands).values if len(given) > 1 else None)


def _number(value: float) -> Named:
    return Named(torch.tensor(float(value), dtype=torch.float64), ())


def _aligned(named: Named, axes: tuple[str, ...]) -> Tensor:
    """The array with these axes, of which it may lack some."""
    order = [named.axes.index(axis) for axis in axes if axis in named.axes]
    values = named.values.permute(order)
    return values[tuple(slice(None) if axis in named.axes else None for axis in axes)]


def _both(left: Named, right: Named) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    axes = left.axes + tuple(axis for axis in right.axes if axis not in left.axes)
    return _aligned(left, axes), _aligned(right, axes), axes


def _combined(sign: str, left: Named, right: Named) -> Named:
    a, b, axes = _both(left, right)
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]]
    functions = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div, "**": torch.pow}
    return Named(functions[sign](a, b), axes)


def _where(condition: Named, yes: Named, no: Named) -> Named:
    chosen, a, axes = _both(condition, yes)
    return Named(torch.where(chosen != 0, a, _aligned(no, axes)), axes)


def _product(left: Named, right: Named, summed: list[str]) -> Named:
    """Σ left · right over these axes, as a product of matrices."""
    axes = dict.fromkeys(left.axes + right.axes)
    letters = {axis: chr(ord("a") + place) for place, axis in enumerate(axes)}
    kept = tuple(axis for axis in axes if axis not in summed)
    sides = ["".join(letters[axis] for axis in each.axes) for each in (left, right)]
    formula = f"{sides[0]},{sides[1]}->{''.join(letters[axis] for axis in kept)}"
    return Named(torch.einsum(formula, left.values, right.values), kept)


def _along(name: str, inner: Named, axes: list[str], epsilon: Tensor | None) -> Named:
    places = [inner.axes.index(axis) for axis in axes]
    kept, x = tuple(axis for axis in inner.axes if axis not in axes), inner.values
    if name == "softmax":
        return Named(x.softmax(places[0]).nan_to_num(0.0), inner.axes)
    if name == "largest":
        chosen = F.one_hot(x.argmax(places[0]), x.size(places[0])).movedim(-1, places[0]) * (x.amax(places, keepdim=True) > 0)
        return Named(chosen.to(x.dtype), inner.axes)
    if name == "standardize":
        assert epsilon is not None
        variance = x.var(places, unbiased=False, keepdim=True)
        return Named((x - x.mean(places, keepdim=True)) / (variance + epsilon).sqrt(), inner.axes)
    if name == "norm":
        return Named(x.norm(dim=places), kept)
    if name == "prod":
        return Named(x.prod(places[0]), kept)
    return Named(x.sum(places) if name == "sum" else x.amax(places), kept)
