"""Explanations as a self-contained HTML page, with styles, scripts and data inside. It needs no network.

Weights are stored as deflated bytes, 255 · √w. A sentence of 200 tokens and 48 heads makes a page of a few megabytes.
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

from weft.explain.explanation import AttentionMap, DecodingStep, Explanation, Node
from weft.explain.text import Side, Weights, fed, shown

SCRIPTS = ("arrays.js", "heatmap.js", "lines.js", "steps.js", "tokens.js", "tree.js", "panel.js", "page.js")


def page(explanations: Sequence[Explanation], title: str = "weft explain") -> str:
    """Returns an HTML page. Explanations of the same text are shown side by side, different texts one at a time."""
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
    """Encodes JSON for a script element: without <, > and &, so that no tag can start in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(explanation: Explanation) -> dict[str, Any]:
    """Converts an explanation to the JSON data of the page."""
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
        "looks": [_map(each) for each in explanation.maps],
        "best": [[each.text, _rounded(each.score)] for each in explanation.best],
        "tree": [_node(node) for node in explanation.tree],
    }


def packed(weights: Weights) -> str:
    """Encodes weights as deflated bytes in base64."""
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


def _map(attention: AttentionMap) -> dict[str, Any]:
    sides = {"encoder": ("source", "source"), "cross": ("target", "source"), "causal": ("target", "fed")}
    rows, columns = sides[attention.use]
    return {
        "title": attention.title,
        "kind": attention.kind,
        "use": attention.use,
        "how": attention.how,
        "note": attention.note,
        "rows": rows,
        "columns": columns if attention.aligned else "",
        "shape": attention.weights.shape,
        "data": packed(attention.weights),
    }


def _node(node: Node) -> list[Any]:
    final = None if node.final is None else _rounded(node.final)
    return [node.step, node.token, node.parent, _rounded(node.score), node.fate, node.why, final, node.best]


def _rounded(value: float) -> float:
    """Rounds to four decimals. Log-probabilities are bounded by −1000, since JSON has no infinity."""
    return round(max(float(value), -1000.0), 4)


def _asset(name: str) -> str:
    return files("weft.explain").joinpath("assets", name).read_text("utf-8")
