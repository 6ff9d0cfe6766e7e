"""Mutants of Python source: one small change each, such as `<` for `<=`, made on the syntax tree.

Strings, docstrings, annotations, decorators, imports, assertions, messages of errors, arguments of `log(…)` and `__repr__` are
left alone. Line numbers stay as they are.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
UNTOUCHED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert, ast.Global, ast.Nonlocal)
TEXTS = frozenset({"log", "warn", "warning", "debug", "info", "print", "note"})
"""Functions whose arguments are texts for people."""
SYMMETRIC = frozenset({"min", "max"})
SKIPPED_FUNCTIONS = frozenset({"__repr__", "__str__"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the candidate of this number, at a line of the statement that begins at another."""

    file: str
    line: int
    statement: int
    candidate: int
    operator: str
    before: str
    after: str
    function: str = ""
    """`line:name` of the outermost function whose body changes; empty at the level of a module, a class or a default."""

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}:{self.candidate}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def alternatives(node: ast.AST) -> Iterator[tuple[str, ast.AST | list[ast.stmt]]]:
    """The operator and the replacement of each change of this very node, not of what it contains."""
    if isinstance(node, ast.stmt):
        yield from _statements(node)
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, (ast.UnaryOp, ast.Constant)):
        yield "condition negated", _changed(node, test=ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.comprehension):
        for at, test in enumerate(node.ifs):
            if not isinstance(test, ast.UnaryOp):
                yield (
                    "condition negated",
                    _changed(node, ifs=[*node.ifs[:at], ast.UnaryOp(ast.Not(), test), *node.ifs[at + 1 :]]),
                )
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            yield "comparison", _changed(node, ops=[*node.ops[:at], COMPARISONS[type(op)](), *node.ops[at + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        yield "arithmetic", _changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "and/or", _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield "not removed" if isinstance(node.op, ast.Not) else "sign removed", node.operand
    elif isinstance(node, ast.Await):
        yield "await removed", node.value
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        if ast.dump(node.args[0]) != ast.dump(node.args[1]) and getattr(node.func, "id", "") not in SYMMETRIC:
            yield "arguments swapped", _changed(node, args=[node.args[1], node.args[0], *node.args[2:]])
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield "constant", ast.Constant(node.value + 1)
            yield "constant", ast.Constant(node.value - 1)


def _statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST | list[ast.stmt]]]:
    removed = False
    if isinstance(node, ast.Expr):
        removed = not isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom))
    elif isinstance(node, ast.AugAssign):
        removed = True
        if type(node.op) in ARITHMETIC and not _is_text(node.value):
            yield "arithmetic", _changed(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.Assign):
        removed = all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in node.targets)
    elif isinstance(node, ast.AnnAssign):
        removed = node.value is not None and isinstance(node.target, (ast.Attribute, ast.Subscript))
    elif isinstance(node, (ast.Raise, ast.Delete)):
        removed = True
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None", ast.Return(ast.Constant(None))
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield "break/continue", ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(node, (ast.With, ast.AsyncWith)) and all(item.optional_vars is None for item in node.items):
        yield "with removed", node.body
    if removed:
        yield "statement removed", ast.Pass()


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_left_alone(node.value)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in TEXTS
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, UNTOUCHED) or (isinstance(node, FUNCTIONS) and node.name in SKIPPED_FUNCTIONS)


class _Walk:
    """Numbers the candidates of a tree in order, and replaces one of them."""

    def __init__(self, file: str, wanted: int | None = None) -> None:
        self.file, self.wanted = file, wanted
        self.found: list[Mutant] = []
        self.count = 0
        self.statement = self.line = 0
        self.function = ""

    def node(self, node: ast.AST, put: Callable[[Any], None]) -> None:
        if _is_left_alone(node):
            return
        outer = self.statement
        self.line = getattr(node, "lineno", self.line)
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        line = self.line
        for operator, new in list(alternatives(node)):
            self._candidate(node, operator, new, put)
        self._children(node)
        self.statement, self.line = outer, line

    def _candidate(self, node: ast.AST, operator: str, new: Any, put: Callable[[Any], None]) -> None:
        if self.wanted is None:
            before, after = (_shown(each) for each in (node, new))
            self.found.append(Mutant(self.file, self.line, self.statement, self.count, operator, before, after, self.function))
        elif self.count == self.wanted:
            put(new)
        self.count += 1

    def _children(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment") or isinstance(node, ast.Raise):
                continue
            enters = isinstance(node, FUNCTIONS) and name == "body" and not self.function
            if enters:
                first = min(cast(ast.expr, each).lineno for each in [node, *cast(ast.FunctionDef, node).decorator_list])
                self.function = f"{first}:{cast(ast.FunctionDef, node).name}"
            if isinstance(value, ast.AST):
                self.node(value, partial(setattr, node, name))
            elif isinstance(value, list):
                for at, each in enumerate(list(value)):
                    if isinstance(each, ast.AST):
                        self.node(each, partial(_put, value, at))
            if enters:
                self.function = ""


def _put(values: list[Any], at: int, new: Any) -> None:
    values[at : at + 1] = new if isinstance(new, list) else [new]


def _shown(node: Any) -> str:
    """The first line of a node, as source."""
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node[0] if isinstance(node, list) else node)))
    return text.partition("\n")[0][:160]


def mutants_of(source: str, file: str) -> list[Mutant]:
    walk = _Walk(file)
    walk.node(ast.parse(source), lambda new: None)
    return walk.found


def mutated(source: str, candidate: int) -> ast.Module:
    """The tree of the source with one candidate in place; -1 changes nothing."""
    tree = ast.parse(source)
    if candidate >= 0:
        _Walk("", candidate).node(tree, lambda new: None)
    return ast.fix_missing_locations(tree)


def sample(root: Path, files: list[str], seed: int) -> list[Mutant]:
    """One mutant of each line that has any, in random order: each beginning of the list is a random sample of the lines."""
    draw = random.Random(seed)
    chosen = []
    for file in files:
        lines: dict[int, list[Mutant]] = {}
        for each in mutants_of((root / file).read_text("utf-8"), file):
            lines.setdefault(each.line, []).append(each)
        chosen += [draw.choice(lines[line]) for line in sorted(lines)]
    draw.shuffle(chosen)
    return chosen


class _Marks(ast.NodeTransformer):
    """Puts `_hits[offset + line] = 1` before every statement."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
                setattr(node, name, list(self._marked(statements)))
        return node

    def _marked(self, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
        for at, each in enumerate(statements):
            is_docstring = at == 0 and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            is_future = isinstance(each, ast.ImportFrom) and each.module == "__future__"
            if not is_docstring and not is_future:
                mark = ast.parse(f"_hits[{self.offset + each.lineno}] = 1").body[0]
                for node in ast.walk(mark):
                    if isinstance(node, (ast.stmt, ast.expr)):
                        ast.copy_location(node, each)
                yield mark
            yield each


def instrumented(source: str, offset: int) -> ast.Module:
    """The tree of the source with a mark before each statement."""
    return ast.fix_missing_locations(cast(ast.Module, _Marks(offset).visit(ast.parse(source))))
