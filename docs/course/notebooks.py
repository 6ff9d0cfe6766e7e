"""Runs the code of the course and writes its outputs into the pages, its figures into docs/images/course, and the notebooks.

    python docs/course/notebooks.py [PAGE …]

A page is the only source of its chapter. A Python block is a cell. The text block after it is what the cell prints, and the
picture after that the figure which the last expression of the cell returns. The comment `<!-- output varies -->` before a
block says that its numbers differ between machines. `tests/test_course.py` runs the notebooks and compares them with the pages.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CELL = re.compile(
    r"(<!-- output varies -->\n)?```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?(?:\n(!\[[^\]]*\]\(([^)]+)\))\n)?", re.DOTALL
)
MATH = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A Python block of a page: code, the output that the page shows, the picture after it, and whether its numbers vary."""

    code: str
    output: str
    picture: str
    figure: str
    varies: bool


def pages() -> list[Path]:
    """The chapters, in order."""
    return sorted(HERE.glob("[0-9]*.md"))


def parts(text: str) -> Iterator[str | Cell]:
    """The prose and the cells of a page, in order."""
    end = 0
    for found in CELL.finditer(text):
        yield text[end : found.start()]
        mark, code, output, picture, figure = found.groups()
        yield Cell(code, output or "", picture or "", figure or "", bool(mark))
        end = found.end()
    yield text[end:]


def cells(text: str) -> list[Cell]:
    return [part for part in parts(text) if isinstance(part, Cell)]


def run(code: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Runs the code of a cell as a notebook does. Returns what it prints, and the value of its last expression."""
    tree, value, printed = ast.parse(code), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return printed.getvalue(), value


def notebook(text: str) -> dict[str, Any]:
    """The notebook of a page, without outputs."""
    made: list[dict[str, Any]] = []
    for part in parts(text):
        if isinstance(part, Cell):
            made.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": part.code})
        elif part.strip():
            made.append({"cell_type": "markdown", "metadata": {}, "source": MATH.sub(r"$$\n\1$$", part.strip() + "\n")})
    for number, cell in enumerate(made):
        cell["id"], cell["source"] = f"cell-{number}", cell["source"].rstrip("\n").splitlines(keepends=True)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def written(text: str) -> str:
    """The file of the notebook of a page."""
    return json.dumps(notebook(text), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def with_outputs(text: str) -> str:
    """The page with the outputs of its cells. Saves their figures."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made = []
    for part in parts(text):
        if isinstance(part, Cell):
            printed, value = run(part.code, names)
            if hasattr(value, "_repr_png_") != bool(part.figure):
                raise SystemExit(f"a picture belongs after a cell that ends with a figure, and only there:\n{part.code}")
            if part.figure:
                value.savefig(HERE / part.figure, dpi=100)
            made.append("<!-- output varies -->\n" if part.varies else "")
            made.append(f"```python\n{part.code}```\n")
            made.append(f"\n```text\n{printed.rstrip()}\n```\n" if printed.strip() else "")
            made.append(f"\n{part.picture}\n" if part.picture else "")
        else:
            made.append(part)
    return "".join(made)


def main() -> None:
    sys.path.insert(0, str(HERE))
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        text = with_outputs(page.read_text("utf-8"))
        page.write_text(text, "utf-8")
        page.with_suffix(".ipynb").write_text(written(text), "utf-8")
        print(page.name)


if __name__ == "__main__":
    main()
