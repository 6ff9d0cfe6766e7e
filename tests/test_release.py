"""What belongs to a release: one version everywhere, archives without a trace of the machine, workflows with real targets."""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
from pathlib import Path

import yaml

from deploy.release import normalized
from weft.version import VERSION

ROOT = Path(__file__).parents[1]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_the_version_has_its_section_and_its_citation() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", changes, re.MULTILINE)
    assert [name for name, _ in versions][:2] == ["Unreleased", VERSION] and versions[1][1]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], str(citation["date-released"])) == versions[1]
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["license"]


def test_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    picture, readme = (ROOT / "docs/images/badges.svg").read_text("utf-8"), (ROOT / "README.md").read_text("utf-8")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", picture)
    stated = ["version", VERSION, "python", " | ".join(versions), "license", project["license"]]
    assert texts == stated and project["requires-python"] == f">={versions[0]}"
    assert f'aria-label="version {VERSION}, Python {stated[3]}, license {project["license"]}"' in picture
    assert f"![version {VERSION}, Python {versions[0]} to {versions[-1]}, license {project['license']}]" in readme
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions


def test_workflows_and_hooks_call_what_exists() -> None:
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text("utf-8"))["jobs"]
        commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        assert commands and {command.split()[1] for command in commands if command.startswith("make ")} <= TARGETS
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
    for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(file.read_text("utf-8"))


def archive(order: list[str], time: int, owner: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in order:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), time, owner, 0o600
            tar.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_archives_of_the_same_files_are_the_same_bytes() -> None:
    first, second = archive(["a/b", "a/c"], 1, "me"), archive(["a/c", "a/b"], 2, "you")
    assert first != second and normalized(first, 1_700_000_000) == normalized(second, 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(normalized(first, 1_700_000_000))) as tar:
        assert [(each.name, each.mtime, each.uname, each.mode) for each in tar] == [
            ("a/b", 1_700_000_000, "", 0o644),
            ("a/c", 1_700_000_000, "", 0o644),
        ]
        extracted = tar.extractfile("a/b")
        assert extracted is not None and extracted.read() == b"a/b"


def test_the_package_takes_its_pages_along() -> None:
    """Everything that the code reads from the package is declared, so the wheel has it."""
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["weft"]
    packed = {file for glob in globs for file in (ROOT / "weft").glob(glob)}
    others = {file for file in (ROOT / "weft").rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert {file.relative_to(ROOT) for file in others - packed} == set()
