"""Prints constraints for pip that hold every dependency of pyproject.toml at the oldest version it allows.

    python deploy/minimum_versions.py > build/minimum.txt && pip install -c build/minimum.txt '.[dev]'

`make minimum` runs the tests with them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
NEED = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def minimums(project: Path = PROJECT) -> dict[str, str]:
    """The oldest version of every dependency that states one. Raises ValueError if two places state different ones."""
    table = tomllib.loads(project.read_text("utf-8"))["project"]
    found: dict[str, str] = {}
    for need in [*table["dependencies"], *(each for extra in table["optional-dependencies"].values() for each in extra)]:
        if stated := NEED.fullmatch(need):
            name, version = stated[1], stated[2]
            if found.setdefault(name, version) != version:
                raise ValueError(f"{project}: {name} has the oldest versions {found[name]} and {version}")
    return found


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in sorted(minimums().items())))
