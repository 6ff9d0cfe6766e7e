"""The oldest versions that a second environment is tested with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.minimum_versions import PROJECT, minimums


def test_every_dependency_states_an_oldest_version() -> None:
    table = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    needs = [*table["dependencies"], *(each for extra in table["optional-dependencies"].values() for each in extra)]
    stated = minimums()
    unstated = {need for need in needs if need.partition("[")[0].partition(">=")[0] not in stated}
    assert unstated <= {"types-PyYAML"} | {need for need in needs if need.startswith("weft-seq2seq[")}
    assert stated["torch"] == "2.10"


def test_make_minimum_installs_every_extra_and_the_workflow_runs_it() -> None:
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    (listed,) = re.findall(r"^EVERY := (\S+)$", (PROJECT.parent / "Makefile").read_text("utf-8"), re.MULTILINE)
    (inner,) = (need for need in extras["dev"] if need.startswith("weft-seq2seq["))
    reached = {*listed.split(","), *inner.partition("[")[2].rstrip("]").split(",")}
    assert reached <= extras.keys()
    needs = {need for name in reached for need in extras[name]}
    assert {name for name in extras if not needs.issuperset(extras[name])} == set(), "extras that nothing installs"
    steps = yaml.safe_load((PROJECT.parent / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]["oldest-versions"]["steps"]
    assert any(str(step.get("run", "")).startswith("make minimum") for step in steps)


def test_two_oldest_versions_of_one_package_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\ndependencies = ["a>=1"]\n[project.optional-dependencies]\nx = ["a[y]>=2"]\n')
    with pytest.raises(ValueError, match="a has the oldest versions 1 and 2"):
        minimums(file)
