"""What belongs to a release: one version everywhere, archives without a trace of the machine, workflows with real targets."""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import re
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.release import (
    BUILD,
    FOLDER,
    PREBUILD,
    SMOKE,
    normalized,
    project_urls,
    public_address,
    unfitting,
    with_libraries,
    write_addresses,
)
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


def pure_wheel() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for name, text in {
            "weft/a.py": "a",
            "weft-1.dist-info/WHEEL": "Root-Is-Purelib: true\nTag: py3-none-any\n",
            "weft-1.dist-info/RECORD": "old",
        }.items():
            wheel.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
    return packed.getvalue()


def test_a_platform_wheel_is_the_pure_one_and_the_libraries() -> None:
    tag, libraries = "py3-none-manylinux_2_28_x86_64", {"AVX2-1-2.so": b"one", "AVX512-VNNI-1-3.so": b"two"}
    made = with_libraries(pure_wheel(), tag, libraries)
    assert made == with_libraries(pure_wheel(), tag, dict(reversed(libraries.items())))
    with zipfile.ZipFile(io.BytesIO(made)) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    assert files["weft-1.dist-info/WHEEL"].decode() == f"Root-Is-Purelib: false\nTag: {tag}\n"
    assert {name: files[f"{FOLDER}/{name}"] for name in libraries} == libraries
    rows = [row.split(",") for row in files.pop("weft-1.dist-info/RECORD").decode().splitlines()]
    assert rows.pop() == ["weft-1.dist-info/RECORD", "", ""]
    for name, digest, size in rows:
        content = files.pop(name)
        assert int(size) == len(content)
        assert digest == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"
    assert not files


def test_a_library_that_older_systems_cannot_load_goes_into_no_wheel() -> None:
    fitting = "Name: GLIBC_2.27 Flags: none\n Name: GLIBCXX_3.4\n (NEEDED) Shared library: [libgomp.so.1]\n"
    assert unfitting(fitting) == ""
    assert unfitting(f"{fitting} Name: GLIBC_2.34\n (NEEDED) Shared library: [libtorch.so]") == "GLIBC_2.34, libtorch.so"
    assert unfitting("Name: GLIBCXX_3.4.30") == "GLIBCXX_3.4.30" and unfitting("Name: ODD_1.0") == "ODD_1.0"


def sources_in(folder: Path, address: str) -> dict[str, str]:
    """The files that a release at an address changes, after it has changed them."""
    (folder / "weft").mkdir(parents=True)
    files = ("pyproject.toml", "README.md", "weft/version.py")
    for name in files:
        shutil.copy(ROOT / name, folder / name)
    write_addresses(folder, address)
    return {name: (folder / name).read_text("utf-8") for name in files}


def test_a_release_with_an_address_has_project_urls(tmp_path: Path) -> None:
    first = sources_in(tmp_path / "first", "https://example.org/owner/weft")
    project = tomllib.loads(first["pyproject.toml"])
    assert project.pop("project")["urls"] == {
        "Homepage": "https://example.org/owner/weft",
        "Documentation": f"https://example.org/owner/weft/blob/v{VERSION}/docs/index.md",
        "Changelog": f"https://example.org/owner/weft/blob/v{VERSION}/CHANGELOG.md",
        "Issues": "https://example.org/owner/weft/issues",
        "Source": f"https://example.org/owner/weft/tree/v{VERSION}",
    }
    assert sources_in(tmp_path / "second", "https://example.org/owner/weft") == first
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_a_release_with_an_address_has_a_readme_whose_links_lead_there(tmp_path: Path) -> None:
    address = "https://example.org/owner/weft"
    before, after = (ROOT / "README.md").read_text("utf-8"), sources_in(tmp_path / "made", address)["README.md"]
    targets = re.compile(r"(!?)\[[^\]]*\]\(([^)]+)\)")
    for (picture, old), (_, new) in zip(targets.findall(before), targets.findall(after), strict=True):
        relative = not old.startswith(("https:", "#"))
        assert new == (f"{address}/{'raw' if picture else 'blob'}/v{VERSION}/{old}" if relative else old)
    assert (
        f"![version {VERSION}, Python 3.11 to 3.13, license Apache-2.0]({address}/raw/v{VERSION}/docs/images/badges.svg)"
        in after
    )
    assert targets.sub("", before) == targets.sub("", after)


def test_files_that_project_urls_name_exist() -> None:
    urls = project_urls("https://example.org/o/weft", VERSION).values()
    files = [url.partition(f"/blob/v{VERSION}/")[2] for url in urls if "/blob/" in url]
    assert len(files) == 2 and all((ROOT / name).is_file() for name in files)


@pytest.mark.parametrize(
    "text", ["https://example.org/owner/weft", "https://example.org/owner/weft/", "https://example.org/owner/weft.git"]
)
def test_addresses_of_a_repository(text: str) -> None:
    assert public_address(text) == "https://example.org/owner/weft"


@pytest.mark.parametrize(
    "text",
    [
        "http://example.org/owner/weft",
        "git@example.org:owner/weft",
        "example.org/owner/weft",
        "https://me:secret@example.org/owner/weft",
        "https://example.org/owner/weft?token=1",
        "https://example.org",
        "https://localhost/owner/weft",
        'https://example.org/owner/weft"\nx = "',
        "",
    ],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no public address"):
        public_address(text)


def test_the_programs_of_the_smoke_test_are_valid() -> None:
    for program in (BUILD, PREBUILD, SMOKE):
        compile(program, "program", "exec")


def test_the_makefile_and_the_workflow_pass_the_address_on() -> None:
    assert "deploy/release.py $(if $(URL),--url '$(URL)')" in (ROOT / "Makefile").read_text("utf-8")
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]["wheel"]["steps"]
    assert {"run": "make release URL=${{ github.server_url }}/${{ github.repository }}"} in steps


def test_the_package_takes_its_pages_along() -> None:
    """Everything that the code reads from the package is declared, so the wheel has it."""
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]["weft"]
    packed = {file for glob in globs for file in (ROOT / "weft").glob(glob)}
    others = {file for file in (ROOT / "weft").rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert {file.relative_to(ROOT) for file in others - packed} == set()
