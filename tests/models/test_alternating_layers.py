"""A list in a slot: the layers take its entries in turn. Published alternations are configurations of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml

from weft.attention.base import Site
from weft.attention.mixers import build_self
from weft.bench.compare.plan import Entry, labelled, parse_entry, slot_entries
from weft.config.sections import commented_yaml, json_schema, load_config, save_config
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model

SMALL = {"dim": 16, "heads": 4, "feedforward": 24, "dropout": 0.0}
SIZES = Sizes(20, 20, True)
DOCUMENT = Path(__file__).parents[2] / "docs" / "mechanisms.md"


def blocks() -> dict[str, dict[str, Any]]:
    """The configurations of the section "layers in turn", each by the first words before it."""
    section = DOCUMENT.read_text("utf-8").split("### layers in turn\n")[1].split("\n### ")[0]
    found = re.findall(r"\n\n(\S+ \S+)[^\n]*\n(?:[^\n]+\n)*\n```yaml\n(.*?)```", section, re.DOTALL)
    return {name: yaml.safe_load(text)["model"] for name, text in found}


def kinds(layers: Any) -> list[str]:
    names = {"SelfAttention": lambda mixer: type(mixer.attention).__name__}
    return [names.get(type(layer.mixer).__name__, lambda mixer: type(mixer).__name__)(layer.mixer) for layer in layers]


WANTED = {
    "The Reformer": ["LocalAttention", "LshMixer"] * 2,
    "The Sparse": ["LocalAttention", "StridedAttention"] * 2,
    "Longformer's windows": ["LongformerAttention"] * 4,
    "Liu et": ["LocalAttention", "CompressedAttention", "LocalAttention", "CompressedAttention", "LocalAttention"],
}


@pytest.mark.parametrize("name", WANTED)
def test_published_alternations_take_a_step(name: str, tmp_path: Path) -> None:
    """Each configuration of the documentation is loaded, built, and trained for a step."""
    torch.manual_seed(0)
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump({"model": {**blocks()[name], **SMALL}}))
    model = build_model(load_config(file).model, SIZES).train()
    tokens, labels = torch.randint(4, 20, (2, 2, 40))
    source: tuple[Any, ...] = ()
    if hasattr(model, "encoder"):
        source = (torch.randint(4, 20, (2, 40)),)
        assert kinds(model.encoder.layers) == WANTED[name]
    else:
        assert kinds(model.decoder.layers) == WANTED[name]

    def loss() -> torch.Tensor:
        found = model.decoder(tokens, model.decoder.init_state(encoded(model, source, tokens))).logits
        return torch.nn.functional.cross_entropy(found.flatten(0, 1), labels.flatten())

    before = loss()
    before.backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters() if each.requires_grad)
    torch.optim.SGD(model.parameters(), 0.05).step()
    assert loss() < before


def encoded(model: Any, source: tuple[Any, ...], tokens: torch.Tensor) -> Any:
    return model.encode(Source(*source)) if source else model.nothing(tokens.size(0))


def test_longformers_windows_grow() -> None:
    model: Any = build_model({**blocks()["Longformer's windows"], **SMALL}, SIZES)
    assert [layer.mixer.attention.patterns[0].window for layer in model.encoder.layers] == [16, 32, 64, 128]


def test_facts_are_those_of_all_layers() -> None:
    """The least length, packing only if all layers pack, compiling only if all are full."""

    def model(*own: Any, layers: int = 2, **more: Any) -> Any:
        return build_model({"kind": "transformer", **SMALL, "encoder_layers": layers, "encoder_self": list(own), **more}, SIZES)

    lengths = [{"kind": "linformer", "max_length": 50}, {"kind": "gmlp", "max_length": 30}, "full"]
    assert model(*lengths, layers=3).encoder.max_length == 30
    assert model("full", "local").encoder.supports_packing and not model("full", "linear").encoder.supports_packing
    assert model("full", "full").encoder.compiles and not model("full", "local").encoder.compiles
    crossed = model("full", cross=["full", {"kind": "location", "max_length": 12}]).decoder
    assert crossed.max_memory == 12 and not crossed.compiles


def test_one_entry_is_the_part_itself() -> None:
    """The same weights under the same names."""
    spec, lists = {"kind": "transformer", **SMALL}, ("local", ["local"], ["local"] * 4)
    names = [list(build_model({**spec, "decoder_self": own}, SIZES).state_dict()) for own in lists]
    assert names[0] == names[1] == names[2]


def test_layers_of_different_kinds_keep_their_own_counts() -> None:
    """Two caches of different sizes: one has a key for every third token, the other one for every second."""
    own = [{"kind": "compressed", "stride": 3}, {"kind": "compressed", "stride": 2}]
    spec = {"kind": "language_model", **SMALL, "decoder_layers": 4, "decoder_self": own}
    torch.manual_seed(0)
    model: Any = build_model(spec, SIZES).eval()
    tokens = torch.randint(4, 20, (2, 20))
    whole = model.decoder(tokens, model.decoder.init_state(model.nothing(2))).logits
    state, steps = model.decoder.init_state(model.nothing(2), room=24), []
    for token in tokens.split(1, 1):
        found = model.decoder(token, state)
        state = found.state
        steps.append(found.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)


def test_a_list_survives_files_settings_and_schemas(tmp_path: Path) -> None:
    """`--set`, the saved and the commented file, the JSON schema."""
    sets = ["model.encoder_self=[local, {kind: lsh, buckets: 4}]", "model.encoder_self.0.window=9", "model.cross=[full]"]
    config = load_config("transformer-tiny", [*sets, "model.encoder_layers=2"])
    assert [each["kind"] for each in config.model["encoder_self"]] == ["local", "lsh"]
    assert (config.model["encoder_self"][0]["window"], config.model["encoder_self"][1]["buckets"]) == (9, 4)
    changed = load_config("transformer-tiny", [*sets, "model.encoder_self.1.kind=linear"]).model["encoder_self"]
    assert [each["kind"] for each in changed] == ["local", "linear"]
    save_config(config, tmp_path / "saved.yaml")
    (tmp_path / "commented.yaml").write_text(commented_yaml(config))
    schema = json_schema()
    for file in (tmp_path / "saved.yaml", tmp_path / "commented.yaml"):
        assert load_config(file) == config
        jsonschema.validate(yaml.safe_load(file.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": {"kind": "transformer", "encoder_self": ["locale"]}}, schema)


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["model.encoder_self=[local, lhs]"], r"model.encoder_self.1.kind: there is no 'lhs'; did you mean 'lsh'\?"),
        (
            ["model.encoder_self=[local, {kind: lsh, bucket: 4}]"],
            "encoder_self.1.bucket: there is no such option; did you mean",
        ),
        (["model.encoder_self=[]"], "the list is empty; name at least one"),
        (["model.encoder_self=4"], "or a list of these for the layers in turn"),
        (
            ["model.encoder_self=[local, full]", "model.encoder_self.window=3"],
            "is a list; name one of its entries, .*_self.0 to",
        ),
        (["model.encoder_self=[local, full]", "model.encoder_self.2.window=3"], "is a list; name one of its entries"),
    ],
)
def test_what_is_wrong_with_a_list(sets: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config("transformer-tiny", sets)


def test_a_list_longer_than_the_stack_is_refused() -> None:
    with pytest.raises(ConfigError, match="decoder_self: a list of 3 for 2 layers; shorten the list, or use 3 or more layers"):
        build_model({"kind": "transformer", "decoder_layers": 2, "decoder_self": ["full", "local", "linear"]}, SIZES)


def test_compare_takes_lists_in_a_slot() -> None:
    entries = slot_entries([Entry("transformer-tiny")], "model.encoder_self", "full,[local, lsh]", print)
    assert [entry.label for entry in entries] == ["full", "[local, lsh]"]
    assert load_config(entries[1].recipe, entries[1].sets).model["encoder_self"][1]["kind"] == "lsh"
    (named,) = labelled([parse_entry("transformer-tiny,model.encoder_self=[local, {kind: lsh, rounds: 3}]")])
    assert named.label == "encoder_self=[local, lsh rounds=3]"


def test_parts_take_mixers() -> None:
    """Each mixes its share of the channels, as it does alone."""
    torch.manual_seed(0)
    spec = {"kind": "parts", "parts": [{"kind": "local", "window": 3}, {"kind": "convolution", "width": 3}]}
    part: Any = build_self(spec, Site("causal", 16, 4)).eval()
    x, layout = torch.randn(2, 9, 16), Layout.padded([9, 5])
    found = part(x, part.init_state(rows=2), layout=layout).context
    (near, convolution), shares = part.attention.parts, part.attention.share(x).chunk(2, -1)
    own = [share.contiguous() for share in shares]
    wanted = [
        near(own[0], near.init_state(rows=2), append=own[0], layout=layout).context,
        convolution(own[1], convolution.init_state(rows=2), layout=layout).context,
    ]
    torch.testing.assert_close(found[layout.mask], part.attention.out(torch.cat(wanted, -1))[layout.mask])
