"""A Sphinx extension for pages that GitHub shows too, and for docstrings that are written for readers of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAGES = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md", "../README.md": "index.md"}
"""Files outside this folder that are pages of the site."""

DRAWINGS = re.compile(r"images/(mechanisms/.*|course/.*|attention-dates|lengths|zoo|profile|cipher|tasks/couplets)(\.png)?")
"""Figures on a white ground, which a dark page shows with inverted colours; screenshots and photographs are not among them."""

MEMBERS = {"renamed", "front"}
"""Annotated members of parts that are no facts."""

NAME = r"`?[a-z_]\w*`?"
LISTS = (
    (re.compile(rf"\n(?={NAME}  )"), re.compile(rf"({NAME}) {{2,}}(.*)", re.DOTALL)),  # segments   [B, T] int32, …
    (re.compile(rf"\n(?={NAME}: )"), re.compile(rf"({NAME}): (.*)", re.DOTALL)),  # supports_packing: accepts packed rows
    (re.compile(r" ·\s"), re.compile(rf"({NAME}(?: \[[^\]]*\])?):? (.*)", re.DOTALL)),  # use: … · weights [H, T, S] · how: …
)
"""The ways in which docstrings list names: what separates the items, and what an item looks like."""


def link_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to files that are pages of the site lead to the page."""
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")


def list_names(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Turns paragraphs of a docstring that describe names one after the other into lists."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join("\n".join(_listed(paragraph)) for paragraph in paragraphs).split("\n")


def _listed(paragraph: str) -> Iterator[str]:
    for separator, item in LISTS:
        found = [item.fullmatch(text.strip()) for text in separator.split(paragraph)]
        if all(found) and (len(found) > 1 or item is not LISTS[2][1]):
            for each in found:
                text = " ".join(each[2].split()) if each else ""
                yield f"- `{each[1].strip('`')}`: {text}" if each else ""
            return
    yield paragraph


class Settings(SphinxDirective):
    """The settings of the sections of a configuration, as tables."""

    def run(self) -> list[nodes.Node]:
        from weft.config.sections import DataSection, DecodeSection, TrainSection

        lines = []
        for section in (DataSection, TrainSection, DecodeSection):
            name = section.__name__.removesuffix("Section").lower()
            rows = [
                f"| `{name}.{key}` | {_value(field.default)} | {field.description} |"
                for key, field in section.model_fields.items()
            ]
            lines += [f"**{name}**: {section.__doc__}", "", "| setting | default | meaning |", "|---|---|---|", *rows, ""]
        return self.parse_text_to_nodes("\n".join(lines))


class FactTable(SphinxDirective):
    """The facts that a part of the class named by the argument may declare: their values, defaults and meanings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        part = getattr(import_module(module), name)
        owners = [owner for owner in reversed(part.__mro__) if owner.__module__.startswith("weft.")]
        meanings = {name: text for owner in owners for name, text in _described(inspect.getdoc(owner) or "")}
        names = [name for owner in owners for name in inspect.get_annotations(owner) if name not in MEMBERS]
        if missing := [name for name in names if name not in meanings]:
            raise self.error(f"{part.__name__} does not describe {', '.join(missing)}")
        hints = get_type_hints(part)
        rows = [
            f"| `{name}` | {_values(hints[name])} | {_default(part, name)} | {meanings[name]} |"
            for name in dict.fromkeys(names)
        ]
        return self.parse_text_to_nodes("\n".join(["| fact | values | default | meaning |", "|---|---|---|---|", *rows]))


class MechanismTable(SphinxDirective):
    """The facts that every attention and mixer declares."""

    def run(self) -> list[nodes.Node]:
        from weft.config.registry import find_table, load

        shown = (
            "uses",
            "weights_sum",
            "receptive_field",
            "ignores_key_order",
            "supports_packing",
            "packing_is_quadratic",
            "extras",
        )
        lines = [f"| part | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
        for place in ("weft.attention:ATTENTIONS", "weft.attention.mixers:MIXERS"):
            table = find_table(place)
            lines += [
                f"| `{kind}` | {' | '.join(_fact(getattr(load(table, kind), name)) for name in shown)} |" for kind in table
            ]
        return self.parse_text_to_nodes("\n".join(lines))


def _described(docstring: str) -> Iterator[tuple[str, str]]:
    """The names that a docstring describes, line by line or after a sentence with dots between them, and what it says."""
    for paragraph in docstring.split("\n\n"):
        for item in re.split(rf"\n(?={NAME}: )| ·\s", paragraph):
            if found := re.search(rf"(?:^|\.\s)({NAME}(?:, {NAME})*):\s(.*)", item, re.DOTALL):
                yield from ((name.strip("`"), " ".join(found[2].split())) for name in found[1].split(", "))


def _values(hint: Any) -> str:
    """The values of an annotation: those of a literal, or its type."""
    if get_origin(hint) is ClassVar:
        return _values(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return ", ".join(map(_values, get_args(hint)))
    if hint is bool:
        return "`False`, `True`"
    name = "None" if hint is NoneType else hint.__name__ if type(hint) is type else str(hint)
    return f"`{re.sub(r'[a-z_.]+[.]', '', name)}`"


def _default(part: type, name: str) -> str:
    return _fact(getattr(part, name)) if hasattr(part, name) else "must be declared"


def _fact(value: Any) -> str:
    if isinstance(value, frozenset):
        return ", ".join(f"`{each}`" for each in sorted(value)) or "none"
    return "none" if value in ("", (), {}) else f"`{value}`".replace("|", "\\|")


def _value(default: Any) -> str:
    """A default as YAML writes it."""
    from weft.config.yaml_document import scalar

    if isinstance(default, dict) and len(default) == 1:
        return f"`{default['kind']}`"
    return f"`{scalar(default)}`"


def mark_drawings(app: Sphinx, document: nodes.document) -> None:
    """Gives figures on a white ground a class, for the style sheet."""
    for image in document.findall(nodes.image):
        if DRAWINGS.fullmatch(image["uri"]):
            image["classes"].append("drawing")


def inline_formula(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def formula(writer: Any, node: nodes.math_block) -> None:
    """Formulas are MathML, which browsers typeset without scripts and fonts of others."""
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("doctree-read", mark_drawings)
    app.connect("source-read", link_pages)
    app.connect("autodoc-process-docstring", list_names)
    app.add_directive("settings", Settings)
    app.add_directive("facts", FactTable)
    app.add_directive("mechanism-facts", MechanismTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
