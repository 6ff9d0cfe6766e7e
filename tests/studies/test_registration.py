"""weft_studies is found through the entry points of pyproject.toml, and through nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

import weft_studies
from weft.bench import doctor
from weft.config import plugins
from weft.config.registry import build, fill, find_table
from weft.config.sections import DecodeSection, json_schema, load_config, recipes
from weft.data.formats import open_pairs
from weft.errors import ConfigError, DataError

ROOT = Path(__file__).parent.parent.parent
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
ADVICE = r"reinstall weft-seq2seq.*pip install -e \."


def forget() -> None:
    plugins.installed_parts.cache_clear()
    plugins.installed_recipes.cache_clear()


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation that is older than the studies."""

    def others(*, group: str) -> list[EntryPoint]:
        return [entry for entry in entry_points(group=group) if not plugins.is_bundled(entry)]

    monkeypatch.setattr(plugins, "entry_points", others)
    forget()
    yield
    forget()


def test_entry_points_are_installed_and_lead_somewhere() -> None:
    installed = {f"{kind}.{name}": entry.value for (kind, name), entry in plugins.installed_parts().items()}
    assert ENTRIES["weft.parts"].items() <= installed.items(), "reinstall: pip install -e ."
    for place in ENTRIES["weft.parts"].values():
        module, _, name = place.partition(":")
        assert module.startswith("weft_studies.") and hasattr(import_module(module), name)
    folder = Path(weft_studies.__file__).parent / "recipes"
    assert {path.stem for path in folder.glob("*.yaml")} <= recipes().keys()
    assert recipes()["memory-network"].parent == folder and list(recipes()) == sorted(recipes())


@pytest.mark.usefixtures("hidden")
def test_without_entry_points_their_names_are_unknown_and_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=f"memory-network: there is no such file or recipe; .*{ADVICE}"):
        load_config("memory-network")
    for table, kind in (("weft.tasks:TASKS", "bits"), ("weft.models:MODELS", "cipher_gan"), ("weft.models:ENCODERS", "ntm")):
        assert kind not in find_table(table)
        with pytest.raises(ConfigError, match=f"there is no '{kind}'; .*{ADVICE}"):
            fill(table, kind)
    with pytest.raises(DataError, match=f"there is no such generator; .*{ADVICE}"):
        open_pairs("generated:listops")
    with pytest.raises(ValueError, match=f"there is no 'no_shared'; there are none to choose from.*{ADVICE}"):
        DecodeSection(rules=["no_shared"])
    (finding,) = [each for each in doctor._versions() if each.name == "weft_studies"]
    assert finding.state == "problem" and "pip install -e ." in finding.advice


@pytest.mark.usefixtures("hidden")
def test_weft_works_without_them() -> None:
    assert load_config("transformer-tiny").decode.rules == [] and "listops" not in recipes()
    assert len(list(open_pairs("generated:dates?count=3"))) == 3
    assert "oneOf" in json_schema()["$defs"]["models.MODELS"]


def test_names_in_configurations_are_checked_against_their_table() -> None:
    assert DecodeSection(rules=["same_length", "no_shared"]).rules == ["same_length", "no_shared"]
    for wrong in (["same_lenght"], [3]):
        with pytest.raises(ValueError, match=r"there is no .*; (did you mean 'same_length'|choose from mirror_repeats)"):
            DecodeSection(rules=wrong)
    options = json_schema()["$defs"]["DecodeSection"]["properties"]["rules"]["items"]
    assert options == {"enum": ["mirror_repeats", "no_shared", "same_length"], "type": "string"}
    assert build("weft.models:ENCODERS", {"kind": "ntm", "dim": 8, "slots": 4}).width == 28
