"""Tables, options from constructors, and their error messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PositiveInt

from weft.config import registry, schema
from weft.config.registry import Among
from weft.errors import ConfigError

KITES = f"{__name__}:KITE_TABLE"
TAILS = f"{__name__}:TAIL_TABLE"


class Plain:
    """A kite without anything.

    span  how wide it is,
          in centimetres
    """

    def __init__(self, wind: float, *, span: PositiveInt = 50, colour: Literal["red", "blue"] = "red") -> None:
        self.wind, self.span, self.colour = wind, span, colour


class Tailed:
    """A kite with a tail."""

    def __init__(
        self,
        wind: float,
        *,
        tail: Annotated[dict[str, Any], Among(TAILS)] = {"kind": "ribbon", "length": 7},  # noqa: B006
        spare: Annotated[dict[str, Any], Among(TAILS)] | None = None,
        more: list[Annotated[dict[str, Any], Among(TAILS)]] = [],  # noqa: B006
        ratio: float | None = None,
    ) -> None:
        self.wind, self.tail, self.spare, self.more, self.ratio = wind, tail, spare, more, ratio


class PlainTail:
    """A tail whose kind is also the name of a kite."""

    def __init__(self, *, knots: int = 3) -> None:
        self.knots = knots


@dataclass(kw_only=True)
class Ribbon:
    """A tail made of cloth."""

    length: Annotated[int, Field(description="how long")] = 1
    wide: int = 2


def string_of(wind: float, *, length: int) -> tuple[float, int]:
    """A function may be a part too; this one needs an option."""
    return wind, length


KITE_TABLE = {"plain": f"{__name__}:Plain", "tailed": f"{__name__}:Tailed", "string": f"{__name__}:string_of"}
TAIL_TABLE = {
    "plain": f"{__name__}:PlainTail",
    "ribbon": f"{__name__}:Ribbon",
    "kite": f"{__name__}:Tailed",
    "gone": "no_such_module:Gone",
}


def test_build_passes_context_and_options() -> None:
    kite = registry.build(KITES, {"kind": "plain", "span": 80}, 3.5)
    assert (kite.wind, kite.span, kite.colour) == (3.5, 80, "red")


def test_a_kind_alone_means_its_defaults() -> None:
    assert registry.fill(KITES, "plain") == {"kind": "plain", "span": 50, "colour": "red"}


def test_a_function_can_be_a_part() -> None:
    assert registry.build(KITES, {"kind": "string", "length": 9}, 1.0) == (1.0, 9)


def test_fill_writes_out_the_options_of_parts_inside() -> None:
    assert registry.fill(KITES, {"kind": "tailed", "tail": "plain"})["tail"] == {"kind": "plain", "knots": 3}


def test_options_without_a_kind_change_the_default_part() -> None:
    assert registry.fill(KITES, {"kind": "tailed", "tail": {"length": 2}})["tail"] == {"kind": "ribbon", "length": 2, "wide": 2}
    assert registry.fill(KITES, {"kind": "tailed", "tail": {"wide": 5}})["tail"] == {"kind": "ribbon", "length": 7, "wide": 5}
    assert registry.fill(KITES, {"kind": "tailed"})["tail"] == {"kind": "ribbon", "length": 7, "wide": 2}
    assert registry.fill(KITES, {"kind": "tailed", "tail": "ribbon"})["tail"] == {"kind": "ribbon", "length": 1, "wide": 2}


def test_parts_may_be_absent_listed_or_inside_themselves() -> None:
    filled = registry.fill(KITES, {"kind": "tailed", "spare": "plain", "more": ["plain", {"kind": "kite", "spare": "ribbon"}]})
    assert filled["spare"] == {"kind": "plain", "knots": 3}
    assert filled["more"][1]["spare"] == {"kind": "ribbon", "length": 1, "wide": 2}
    assert (
        registry.fill(KITES, {"kind": "tailed", "more": [{"kind": "kite", "tail": {"length": 2}}]})["more"][0]["tail"]["length"]
        == 2
    )
    assert registry.fill(KITES, "tailed")["spare"] is None


def test_filling_twice_changes_nothing() -> None:
    once = registry.fill(KITES, {"kind": "tailed", "more": ["kite"]})
    assert registry.fill(KITES, once) == once


def test_the_filled_options_are_not_the_table_s_own_default() -> None:
    registry.fill(KITES, "tailed")["tail"]["length"] = 1000
    assert registry.fill(KITES, "tailed")["tail"]["length"] == 7


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("plane", "part.kind: there is no 'plane'; did you mean 'plain'?"),
        ({"kind": "zzz"}, "part.kind: there is no 'zzz'; choose from plain, string, tailed"),
        ({"span": 3}, "part: name one with `kind: …`"),
        (7, "part: must be one of plain, tailed, string"),
        ({"kind": "plain", "spann": 3}, "part.spann: there is no such option; did you mean 'span'?"),
        ({"kind": "plain", "span": 0}, "part.span: input should be greater than 0 (given: 0)"),
        ({"kind": "plain", "span": True}, "part.span: must be a number (given: True)"),
        ({"kind": "tailed", "ratio": True}, "part.ratio: must be a number"),
        ({"kind": "plain", "colour": "rad"}, "part.colour: there is no 'rad'; did you mean 'red'?"),
        ({"kind": "string"}, "part.length: is required but missing"),
        (
            {"kind": "tailed", "tail": {"kind": "ribbon", "lenght": 3}},
            "part.tail.lenght: there is no such option; did you mean 'length'?",
        ),
        ({"kind": "tailed", "tail": {"lenght": 3}}, "part.tail.lenght: there is no such option; did you mean 'length'?"),
        ({"kind": "tailed", "tail": "ribon"}, "part.tail.kind: there is no 'ribon'; did you mean 'ribbon'?"),
        (
            {"kind": "tailed", "spare": {"kind": "plain", "knot": 3}},
            "part.spare.knot: there is no such option; did you mean 'knots'?",
        ),
        (
            {"kind": "tailed", "more": ["plain", {"kind": "plain", "knot": 3}]},
            "part.more.1.knot: there is no such option; did you mean 'knots'?",
        ),
    ],
)
def test_errors_name_the_path(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.fill(KITES, spec, where="part")
    assert str(caught.value).startswith(message)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        registry.fill(KITES, {"kind": "plain", "span": 0, "size": 1})
    assert len(str(caught.value).split("\n")) == 2


def test_a_kind_that_is_not_used_is_not_imported() -> None:
    assert registry.fill(TAILS, "plain") == {"kind": "plain", "knots": 3}
    with pytest.raises(ModuleNotFoundError):
        registry.fill(TAILS, "gone")


def test_load_names_the_nearest_kind() -> None:
    with pytest.raises(ConfigError, match="kite: there is no 'tailled'; did you mean 'tailed'"):
        registry.load(KITE_TABLE, "tailled", where="kite")


def test_options_are_described_by_field_or_docstring() -> None:
    described = registry.options_of(KITES, "plain").model_fields
    assert described["span"].description == "how wide it is, in centimetres"
    assert schema.type_name(described["span"].annotation, described["span"].metadata) == "integer > 0"
    assert schema.type_name(described["colour"].annotation) == "one of red, blue"
    assert registry.options_of(TAILS, "ribbon").model_fields["length"].description == "how long"
    assert registry.options_of(KITES, "string").model_fields["length"].is_required()


class Fair(BaseModel):
    """Two options whose parts have kinds of the same name."""

    kite: Annotated[dict[str, Any], Among(KITES)] = {"kind": "plain"}
    tail: Annotated[dict[str, Any], Among(TAILS)] = {"kind": "plain"}


def test_kinds_of_one_name_in_two_tables_do_not_clash_in_the_json_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    monkeypatch.delitem(TAIL_TABLE, "gone")
    document = schema.json_schema(Fair)
    check = jsonschema.Draft202012Validator(document)
    check.check_schema(document)
    for good in (
        {},
        {"kite": "plain", "tail": "plain"},
        {"kite": {"kind": "plain", "span": 3}, "tail": {"kind": "plain", "knots": 3}},
        {"tail": {"kind": "kite", "more": ["kite", {"kind": "ribbon", "length": 1}], "spare": None}},
    ):
        assert check.is_valid(good), good
    for bad in (
        {"kite": "string"},
        {"kite": {"kind": "plain", "knots": 3}},
        {"tail": {"kind": "plain", "span": 3}},
        {"tail": "string"},
        {"kite": {"span": 3, "kind": "none"}},
        {"tail": {"kind": "kite", "more": [{"kind": "ribbon", "length": "x"}]}},
    ):
        assert not check.is_valid(bad), bad
