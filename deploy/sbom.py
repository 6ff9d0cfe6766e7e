"""A bill of materials of what weft needs: packages, versions and licences, as CycloneDX; and known advisories, offline.

    python deploy/sbom.py [--out sbom.json] [--extras serve,plots|all] [--advisories all.zip]

It follows the requirements of the installed distribution, with those of the extras, as far as they are installed. Licences are
what the packages state about themselves. --advisories: the archive or an unpacked folder of https://osv.dev for PyPI
(https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip); those that affect an installed version are printed and
written into the file. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from weft.version import DISTRIBUTION

Package = metadata.Distribution
Advisory = dict[str, Any]


def needed(name: str, extras: Sequence[str] = ()) -> dict[str, Package]:
    """The distribution and all installed ones that it needs, by name in order."""
    found: dict[str, Package] = {}
    waiting = [(name, frozenset(extras))]
    visited = set()
    while waiting:
        item = waiting.pop()
        if item in visited:
            continue
        visited.add(item)
        try:
            package = metadata.distribution(item[0])
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
        found[canonicalize_name(item[0])] = package
        for text in package.requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *item[1])):
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    return dict(sorted(found.items()))


def licence(package: Package) -> str:
    """The licence that a package states: an SPDX expression, else its classifiers, else the first line of its text."""
    facts = package.metadata
    if expression := facts.get("License-Expression"):
        return str(expression)
    classifiers = [each.rpartition(" :: ")[2] for each in facts.get_all("Classifier") or () if each.startswith("License ::")]
    stated = (facts.get("License") or "").strip().splitlines()
    return " / ".join(each for each in classifiers if each != "OSI Approved") or (stated[0][:80] if stated else "not stated")


Finding = tuple[str, str, Advisory]
"""A package, its version, and what affects it."""


def bill(packages: dict[str, Package], found: Sequence[Finding] = ()) -> dict[str, Any]:
    """The bill of materials, CycloneDX 1.6. It has no time and no random number, so the same packages give the same bytes.

    found: known advisories about the packages.
    """
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{package.version}",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            "licenses": [{"license": {"name": licence(package)}}],
        }
        for name, package in packages.items()
    ]
    root = next(each for each in components if each["name"] == canonicalize_name(DISTRIBUTION))
    others = [each for each in components if each is not root]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**root, "type": "application"}},
        "components": others,
        "vulnerabilities": [
            {
                "id": advisory["id"],
                "source": {"name": "OSV", "url": f"https://osv.dev/vulnerability/{advisory['id']}"},
                "description": str(advisory.get("summary", "")),
                "affects": [{"ref": f"pkg:pypi/{name}@{version}"}],
            }
            for name, version, advisory in found
        ],
    }


def advisories(source: Path) -> Iterator[Advisory]:
    """The advisories of an archive or a folder, in the format of OSV."""
    if source.is_dir():
        yield from (json.loads(file.read_text("utf-8")) for file in sorted(source.glob("*.json")))
    else:
        with zipfile.ZipFile(source) as archive:
            yield from (json.loads(archive.read(name)) for name in sorted(archive.namelist()) if name.endswith(".json"))


def affects(advisory: Advisory, name: str, version: str) -> bool:
    """Whether an advisory is about this version. Withdrawn ones are about none."""
    if advisory.get("withdrawn"):
        return False
    for affected in advisory.get("affected", ()):
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI" or canonicalize_name(package.get("name", "")) != name:
            continue
        if version in affected.get("versions", ()):
            return True
        ranges = [each["events"] for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM"]
        if any(_within(events, Version(version)) for events in ranges):
            return True
    return False


def _within(events: Iterable[dict[str, str]], version: Version) -> bool:
    """Whether a version lies in a range of events: `introduced`, `fixed` and `last_affected`, in any order."""
    inside = False
    known = [(kind, bound) for event in events for kind, text in event.items() if (bound := _parsed(text)) is not None]
    for kind, bound in sorted(known, key=lambda each: each[1]):
        if kind == "introduced":
            inside = inside or version >= bound
        elif (kind == "fixed" and version >= bound) or (kind == "last_affected" and version > bound):
            inside = False
    return inside


def _parsed(text: str) -> Version | None:
    try:
        return Version("0.dev0" if text == "0" else re.sub(r"\+.*", "", text))
    except InvalidVersion:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--extras", default="", help="extras that count too, joined by commas, or all")
    parser.add_argument("--advisories", type=Path)
    options = parser.parse_args()
    every = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    packages = needed(DISTRIBUTION, every if options.extras == "all" else [each for each in options.extras.split(",") if each])
    found: list[Finding] = [
        (name, each.version, advisory)
        for advisory in (advisories(options.advisories) if options.advisories else ())
        for name, each in packages.items()
        if affects(advisory, name, each.version)
    ]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(bill(packages, found), indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name, package in packages.items():
        print(f"{name} {package.version}: {licence(package)}")
    if options.advisories is None:
        return
    for name, version, advisory in found:
        print(f"{name} {version} is affected by {advisory['id']}: {advisory.get('summary', '')}", file=sys.stderr)
    print(f"{len(found)} advisories about {len(packages)} packages")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
