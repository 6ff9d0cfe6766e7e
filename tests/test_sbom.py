"""The bill of materials, and the comparison with advisories, which have the format of OSV."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from deploy.sbom import affects, bill, licence, needed
from weft.version import DISTRIBUTION, VERSION

ROOT = Path(__file__).parents[1]


def advisory(name: str, *events: dict[str, str], versions: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}]
    return {"id": "X-1", "affected": [{"package": package, "ranges": ranges, "versions": list(versions)}], **more}


def test_the_bill_has_every_package_that_is_needed_and_no_other() -> None:
    core, served = needed(DISTRIBUTION), needed(DISTRIBUTION, ["serve"])
    assert {"torch", "numpy", "pydantic-core", "markdown-it-py"} <= core.keys() and "pytest" not in core
    assert {"fastapi", "starlette"} <= served.keys() - core.keys()
    document = bill(core)
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/{DISTRIBUTION}@{VERSION}"
    assert {each["name"] for each in document["components"]} == core.keys() - {DISTRIBUTION}
    assert json.dumps(bill(needed(DISTRIBUTION))) == json.dumps(document)


def test_every_package_states_a_licence_that_lets_weft_be_shared() -> None:
    stated = {name: licence(package) for name, package in needed(DISTRIBUTION, ["serve", "plots", "dates", "hub"]).items()}
    assert "not stated" not in stated.values(), stated
    assert not {name: text for name, text in stated.items() if "GPL" in text.replace("LGPL", "")}


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.9", False), ("1.0", True), ("1.4.9", True), ("1.5", False), ("2.1", True), ("2.3", False)],
)
def test_ranges_of_versions(version: str, affected: bool) -> None:
    found = advisory("a.b", {"introduced": "1.0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"last_affected": "2.2"})
    assert affects(found, "a-b", version) == affected
    assert not affects(found, "other", version) and not affects({**found, "withdrawn": "2026-01-01"}, "a-b", version)


def test_versions_that_are_listed_and_versions_from_the_beginning() -> None:
    assert affects(advisory("a", versions=("1.0",)), "a", "1.0") and not affects(advisory("a", versions=("1.0",)), "a", "1.1")
    assert affects(advisory("a", {"introduced": "0"}, {"fixed": "3"}), "a", "2.13.0+cpu")


def test_an_affected_environment_is_said(tmp_path: Path) -> None:
    installed = metadata.version("pyyaml")
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("X-1.json", json.dumps(advisory("PyYAML", {"introduced": "0"}, summary="an example")))
        out.writestr("X-2.json", json.dumps(advisory("PyYAML", {"introduced": "0"}, {"fixed": installed})))
    command = [sys.executable, "-m", "deploy.sbom", "--advisories", archive, "--out", tmp_path / "sbom.json"]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and f"pyyaml {installed} is affected by X-1: an example" in done.stderr
    written = json.loads((tmp_path / "sbom.json").read_text())
    assert "1 advisories about" in done.stdout and written["bomFormat"] == "CycloneDX"
    (vulnerability,) = written["vulnerabilities"]
    assert vulnerability["id"] == "X-1" and vulnerability["affects"][0]["ref"] in {
        each["bom-ref"] for each in written["components"]
    }
