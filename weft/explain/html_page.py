"""Explanations as a self-contained HTML page, with styles, scripts and data inside. It needs no network.

Translations have a page with scripts (`page`), predictions of other tasks a plain one (`static_page`) made of images, bars and
notes. Weights are stored as deflated bytes, 255 · √w. A sentence of 200 tokens and 48 heads makes a page of a few megabytes.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.attention.base import View
from weft.errors import ConfigError
from weft.explain.explanation import SIDES, Explanation, Weights, shown
from weft.explain.inside import Inside
from weft.explain.inside_view import BUDGET, inside_data

Pixels = NDArray[np.uint8]


def meter(share: float) -> str:
    """A bar for a share between 0 and 1."""
    return f'<meter min="0" max="1" value="{share:.4f}"></meter>'


def notes(texts: Iterable[str]) -> str:
    """A paragraph for each remark to the reader."""
    return "".join(f"<p class=note>{escape(text)}</p>\n" for text in texts)


def shaded_words(words: Sequence[str], shades: Sequence[float] | None, titles: Sequence[float] | None = None) -> str:
    """Words in a row, each as dark as its shade between 0 and 1. titles: numbers shown on hovering, by default the shades."""
    styles = [""] * len(words)
    if shades is not None:
        numbers = zip(shades, shades if titles is None else titles, strict=True)
        styles = [f' style="background:rgba(var(--heat),{shade:.3f})" title="{number:.3f}"' for shade, number in numbers]
    return " ".join(f"<span{style}>{escape(shown(word))}</span>" for word, style in zip(words, styles, strict=True))


def weight_table(rows: Sequence[str], columns: Sequence[str], weights: Weights, title: str) -> str:
    """A table of weights [rows, columns], dark where they are large. title: what the rows look at."""
    head = "".join(f"<th><span>{escape(shown(name))}</span></th>" for name in columns)
    lines = ""
    for name, row in zip(rows, weights.tolist(), strict=False):
        cells = "".join(
            f'<td style="background:rgba(var(--heat),{weight:.3f})" title="{weight:.3f}"></td>'
            for weight in row[: len(columns)]
        )
        lines += f"<tr><th>{escape(shown(name))}</th>{cells}</tr>\n"
    return f"<table class=weights><caption>{escape(title)}</caption>\n<tr><td></td>{head}</tr>\n{lines}</table>\n"


def image(pixels: Pixels, text: str, *, kind: str = "") -> str:
    """Pixels as an image inside the page. text: what it shows, in words · kind: its CSS class."""
    data = base64.b64encode(png(pixels)).decode()
    return f'<img{f" class={kind}" if kind else ""} alt="{escape(text)}" src="data:image/png;base64,{data}">'


LOOKING = (
    "Each picture is a head. Its rows are the tokens in their order, its columns the tokens that they look at; dark is much."
)


def head_images(layers: Mapping[str, Weights], uses: Mapping[str, View]) -> str:
    """A picture for each head of self-attention, layer by layer: the weights [H, T, T] of layers by name, and their uses."""
    figures = ""
    square = [
        each for name, each in layers.items() if uses.get(name) in ("encoder", "causal") and each.shape[1] == each.shape[2]
    ]
    for layer, weights in enumerate(square, start=1):
        for head, each in enumerate(weights, start=1):
            shade = (255 * (1 - np.sqrt(each.clip(0, 1)))).astype(np.uint8)
            title = f"layer {layer}, head {head}"
            figures += f"<figure class='picture exact'>{image(shade, title)}<figcaption>{title}</figcaption></figure>\n"
    return f"<h3>Attention</h3>\n{notes([LOOKING])}{figures}" if figures else ""


def audio(content: bytes, text: str) -> str:
    """A wav file as a player inside the page. text: what is heard, in words."""
    data = base64.b64encode(content).decode()
    return f'<audio controls aria-label="{escape(text)}" src="data:audio/wav;base64,{data}"></audio>'


def png(pixels: Pixels) -> bytes:
    """A PNG file of pixels [H, W] (grey), [H, W, 3] (colours) or [H, W, 4] (colours and opacity)."""
    height, width = pixels.shape[:2]
    colours = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    rows = pixels.astype(np.uint8).reshape(height, -1)
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])  # each begins with the number of its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    packed = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


SCRIPTS = (
    "dom.js",
    "arrays.js",
    "heatmap.js",
    "lines.js",
    "steps.js",
    "tokens.js",
    "tree.js",
    "inside.js",
    "panel.js",
    "page.js",
)


def page(explanations: Sequence[Explanation], title: str = "weft explain") -> str:
    """Returns an HTML page. Explanations of the same text are shown side by side, different texts one at a time."""
    groups: dict[str, list[Explanation]] = {}
    for each in explanations:
        groups.setdefault(each.source.text, []).append(each)
    budget = inside_budget(explanations)
    documents = [[document(each, budget) for each in group] for group in groups.values()]
    parts = {
        "title": escape(title),
        "style": asset("base.css") + asset("page.css") + asset("inside.css"),
        "script": "\n".join(asset(name) for name in SCRIPTS),
        "data": script_data(documents),
    }
    before, *rest = asset("page.html").split("{{")
    return before + "".join(parts[name] + text for name, text in (part.split("}}", 1) for part in rest))


def script_data(data: Any) -> str:
    """JSON inside an element of a page. Without <, > and &, no tag can start in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def inside_budget(explanations: Sequence[Explained]) -> int:
    """The largest size of the steps of each prediction, in bytes, so that all fit into a page."""
    return BUDGET // max(1, sum(each.inside is not None for each in explanations))


def document(explanation: Explanation, budget: int = BUDGET) -> dict[str, Any]:
    """Converts an explanation to the JSON data of the page. `sides` holds the texts that maps refer to by name."""
    sides = {"source": explanation.source, "target": explanation.target}
    maps = []
    for each in explanation.maps:
        rows, columns = SIDES[each.use]
        if not each.aligned:
            columns = f"{each.weights.shape[-1]} slots"
        sides |= zip((rows, columns), explanation.sides(each), strict=True)
        about = {name: getattr(each, name) for name in ("title", "kind", "use", "how", "note")}
        maps.append({**about, "rows": rows, "columns": columns, "shape": each.weights.shape, "data": packed(each.weights)})
    names = ("run", "model", "forced", "score", "notes", "steps", "tree", "passes")
    return {
        **{name: _plain(getattr(explanation, name)) for name in names},
        "languages": explanation.languages,
        "sides": {name: {**vars(side), "tokens": [shown(token) for token in side.tokens]} for name, side in sides.items()},
        "maps": maps,
        "best": [{"text": each.text, "score": _plain(each.score)} for each in explanation.best],
        "inside": None if explanation.inside is None else inside_data(explanation.inside, budget=budget),
    }


def packed(weights: Weights) -> str:
    """Encodes weights as deflated bytes in base64."""
    levels = np.rint(255 * np.sqrt(np.clip(weights, 0.0, 1.0))).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def _plain(value: Any) -> Any:
    """Returns dataclasses as dicts, and floats with four decimals. JSON has no infinity, so −1000 is the smallest."""
    if isinstance(value, float):
        return round(max(value, -1000.0), 4)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in vars(value).items()} if is_dataclass(value) else value


def asset(name: str) -> str:
    """The text of a file of the page."""
    return files("weft.explain").joinpath("assets", name).read_text("utf-8")


@dataclass(frozen=True)
class Section:
    """The explanation of a prediction of any task. run: the model's name · said: the prediction · body: HTML that shows why ·
    inside: every step of the model, if it was asked for."""

    run: str
    said: str
    body: str
    inside: Inside | None = None

    def _repr_html_(self) -> str:
        """Shows the page in a notebook, isolated from the notebook's styles."""
        return in_frame(static_page([self]), "30em", "" if self.inside is None else "allow-scripts")


def in_frame(page: str, height: str, sandbox: str = "") -> str:
    """A page inside another one, which can neither change it nor read from it."""
    style = f"width:100%;height:{height};border:0"
    return f'<iframe srcdoc="{escape(page)}" title="weft explain" style="{style}" sandbox="{sandbox}"></iframe>'


Explained = Explanation | Section
"""The explanation of a translation, or of a prediction of another task."""


def explain_page(explanations: Sequence[Explained], title: str = "weft explain") -> str:
    """The page of explanations, all of translations or none."""
    sections = [each for each in explanations if isinstance(each, Section)]
    translations = [each for each in explanations if isinstance(each, Explanation)]
    if sections and translations:
        raise ConfigError("one run translates and another does not; explain them one by one")
    return static_page(sections, title) if sections else page(translations, title)


def static_page(sections: Sequence[Section], title: str = "weft explain") -> str:
    """An HTML page that needs no network. It has scripts only if it shows the steps of a model."""
    budget, insides = inside_budget(sections), [each.inside for each in sections]
    shown = "".join(
        f"<section>\n<h2>{escape(each.said) or '(nothing)'} <small>{escape(each.run)}</small></h2>\n{each.body}</section>\n"
        + ("" if each.inside is None else "<div class=steps-of-model></div>\n")
        for each in sections
    )
    policy, style, scripts = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:", "", ""
    if any(each is not None for each in insides):
        policy, style = f"{policy}; script-src 'unsafe-inline'", asset("inside.css")
        data = script_data([inside_data(each, budget=budget) for each in insides if each is not None])
        code = "\n".join(asset(name) for name in ("dom.js", "inside.js", "sections.js"))
        scripts = f'<script type="application/json" id="data">{data}</script>\n<script>\n{code}</script>\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{asset('base.css')}{asset('sections.css')}{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1></header>\n<main>\n{shown}</main>\n{scripts}</body>\n</html>\n"
    )
