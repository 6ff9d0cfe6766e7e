"""Explanations as one HTML page that needs nothing else: styles, script and data inside, no network.

Weights travel as bytes, 255 · √w, deflated: a sentence of 200 tokens with 48 heads is a page of some megabytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from weft.explain.explanation import Explanation, AttentionMap, Node, DecodingStep
from weft.explain.text import Side, Weights, fed, shown

SCRIPTS = ("arrays.js", "heatmap.js", "lines.js", "steps.js", "tokens.js", "tree.js", "panel.js", "page.js")


def page(explanations: Sequence[Explanation], title: str = "weft explain") -> str:
    """A whole HTML page. Explanations of the same text stand side by side, others one after the other."""
    groups: dict[str, list[Explanation]] = {}
    for each in explanations:
        groups.setdefault(each.source.text, []).append(each)
    data = [[document(each) for each in group] for group in groups.values()]
    parts = {
        "title": escape(title),
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        "data": safe_json(data),
    }
    before, *rest = _asset("page.html").split("{{")
    return before + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))


def safe_json(data: Any) -> str:
    """JSON that may stand inside a script element: no tag can begin in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain data."""
    return {
        "run": explanation.run,
        "model": explanation.model,
        "forced": explanation.forced,
        "score": _rounded(explanation.score),
        "notes": explanation.notes,
        "sides": {
            "source": _side(explanation.source),
            "target": _side(explanation.target),
            "fed": _side(fed(explanation.target)),
        },
        "steps": [_step(step) for step in explanation.steps],
        "looks": [_look(look) for look in explanation.looks],
        "best": [[found.text, _rounded(found.score)] for found in explanation.best],
        "tree": [_node(node) for node in explanation.tree],
    }


def packed(weights: Weights) -> str:
    """Weights as deflated bytes, in letters."""
    levels = np.rint(255 * np.sqrt(np.clip(weights, 0.0, 1.0))).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def _side(side: Side) -> dict[str, Any]:
    tokens = [shown(token) for token in side.tokens]
    return {"text": side.text, "tokens": tokens, "words": side.words, "names": side.names, "rtl": side.rtl}


def _step(step: DecodingStep) -> dict[str, Any]:
    return {
        "token": step.token,
        "logp": _rounded(step.logp),
        "better": step.better,
        "options": [[option.token, _rounded(option.logp)] for option in step.options],
        "copied": None if step.copied is None else _rounded(step.copied),
        "instead": step.instead,
    }


def _look(look: AttentionMap) -> dict[str, Any]:
    sides = {"encoder": ("source", "source"), "cross": ("target", "source"), "causal": ("target", "fed")}
    rows, columns = sides[look.use]
    return {
        "title": look.title,
        "kind": look.kind,
        "use": look.use,
        "how": look.how,
        "note": look.note,
        "rows": rows,
        "columns": columns if look.aligned else "",
        "shape": look.weights.shape,
        "data": packed(look.weights),
    }


def _node(node: Node) -> list[Any]:
    final = None if node.final is None else _rounded(node.final)
    return [node.step, node.token, node.parent, _rounded(node.score), node.fate, node.why, final, node.best]


def _rounded(value: float) -> float:
    """Four digits; what was never possible counts as a thousand nats."""
    return round(max(float(value), -1000.0), 4)


def _asset(name: str) -> str:
    return files("weft.explain").joinpath("assets", name).read_text("utf-8")
