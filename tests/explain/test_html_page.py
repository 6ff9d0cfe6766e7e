"""The explanation page: one self-contained file, safe for any text."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from weft.explain.explanation import AttentionMap, Candidate, DecodingStep, Explanation, Node, Side
from weft.explain.html_page import page
from weft.tasks.translation.segmenter import Translation

VOID = {"meta", "br", "link", "img", "input", "hr"}
NASTY = "</script><script>alert(1)</script>"


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects tags, attributes and the data."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[self.open[-1] if self.open else ""] = data
        if self.open and self.open[-1] == "script" and data.startswith("[["):
            self.texts["data"] = data


def side(tokens: list[str], rtl: bool = False) -> Side:
    return Side(" ".join(tokens), tokens, [(place, place + 1) for place in range(len(tokens))], tokens, rtl)


def example(source: list[str], target: list[str], heads: int = 2, layers: int = 1, run: str = "run") -> Explanation:
    """A made-up explanation with rather peaked weights."""
    random = np.random.default_rng(len(source))

    def weights(rows: int, columns: int) -> Any:
        raw = np.exp(6 * random.random((heads, rows, columns)))
        return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)

    shapes = {"cross": (len(target), len(source)), "encoder": (len(source),) * 2, "causal": (len(target),) * 2}
    maps = [
        AttentionMap(f"{use}.{layer}", f"layer {layer + 1}", "full", use, "weights", weights(*shape))  # type: ignore[arg-type]
        for use, shape in shapes.items()
        for layer in range(layers)
    ]
    steps = [DecodingStep(token, -0.1, 0, [Candidate(token, -0.1), Candidate("x", -3.0)]) for token in target]
    tree = [Node(place, token, place - 1, -0.1 * place, "kept", best=True) for place, token in enumerate(target)]
    best = [Translation(" ".join(target), -0.1)]
    return Explanation(run, "Transformer", side(source), side(target), -0.1, steps, maps, best, tree)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_complete_and_self_contained() -> None:
    text = page([example(["a", "b"], ["c", "d", "e"])])
    assert text.startswith("<!doctype html>")
    reader = read(text)
    assert {"html", "head", "title", "style", "main", "script"} <= set(reader.tags)
    assert not {"link", "img", "iframe", "object"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name in ("src", "href", "action", "srcset")]
    addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "an XML namespace, which is not fetched"
    assert "@import" not in text
    assert "url(" not in text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'") in reader.attributes


def test_the_page_contains_the_arrays() -> None:
    found = example(["a", "b"], ["c", "d", "e"])
    ((document,),) = json.loads(read(page([found])).texts["data"])
    assert document["sides"]["previous target"]["tokens"] == ["begin", "c", "d"]
    for data, attention in zip(document["maps"], found.maps, strict=True):
        levels = np.frombuffer(zlib.decompress(base64.b64decode(data["data"])), np.uint8).reshape(data["shape"])
        assert np.allclose((levels / 255) ** 2, attention.weights, atol=0.005)
    assert [step["token"] for step in document["steps"]] == ["c", "d", "e"]
    assert [document["tree"][1][name] for name in ("step", "token", "parent")] == [1, "d", 0]


def test_no_text_becomes_markup() -> None:
    nasty = example([NASTY, "<!--", "&amp;", "\u2028"], ["<img src=x onerror=alert(1)>", "]]>", "{{data}}"], run=NASTY)
    text = page([nasty], title="<b>{{script}}")
    reader = read(text)
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    assert "b" not in reader.tags
    assert not set("<>&") & set(reader.texts["data"])
    ((document,),) = json.loads(reader.texts["data"])
    assert document["sides"]["source"]["tokens"][0] == NASTY
    assert document["sides"]["target"]["tokens"][2] == "{{data}}"
    assert "<b>{{script}}" in reader.texts["title"]


def test_explanations_are_grouped_by_sentence() -> None:
    pairs = [("a", "one"), ("b", "one"), ("a", "two"), ("b", "two")]
    groups = json.loads(read(page([example([text], ["x"], run=run) for text, run in pairs])).texts["data"])
    assert [[(each["sides"]["source"]["text"], each["run"]) for each in group] for group in groups] == [
        [("a", "one"), ("a", "two")],
        [("b", "one"), ("b", "two")],
    ]


def test_a_page_of_two_hundred_tokens_is_below_five_megabytes() -> None:
    words = [f"word{place}" for place in range(200)]
    assert len(page([example(words, words, heads=8, layers=4)])) < 5e6


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    found = example([NASTY], ["x"])
    reader = read(found._repr_html_())
    assert reader.tags == ["iframe"]
    inner = dict(reader.attributes)["srcdoc"]
    assert inner == page([found])
    assert dict(reader.attributes)["sandbox"] == "allow-scripts"


@pytest.mark.parametrize("score", [float("-inf"), -1e9])
def test_impossible_tokens_have_a_finite_score(score: float) -> None:
    found = example(["a"], ["x"])
    found.steps[0] = DecodingStep("x", score, 5, [Candidate("y", -0.1)])
    ((document,),) = json.loads(read(page([found])).texts["data"])
    assert document["steps"][0]["logp"] == -1000
