"""The server with third-party programs: npm clients of LibreTranslate, and the API fuzzer schemathesis.

`make clients` installs them in the virtual environment. Without them these tests are skipped with a warning.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = Path(sys.prefix)
LIBRETRANSLATE = """
import { translate } from "libretranslate";
const ask = options => translate({ apiurl: process.argv[1], ...options });
console.log(await ask({ query: "a b c", source: "en", target: "de" }));
console.log(await ask({ query: "the and of", target: "de" }) !== undefined);
console.log(await ask({ query: "<b>a b</b>", source: "en", target: "de", format: "html" }));
console.log(await ask({ query: "a", source: "xx", target: "de" }).catch(error => error.message));
"""
TRANSLATE = """
import { Translate } from "translate";
const translate = Translate({ engine: "libre", url: process.argv[1] + "/translate", from: "en", to: "de" });
console.log(await translate("a b c"));
console.log(await translate("d e", { from: "French", to: "German" }));
console.log(await translate("a b", "fr").catch(error => error.message));
"""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def missing(what: str) -> None:
    message = f"NO TESTS WITH {what}: not installed; run make clients"
    warnings.warn(message, stacklevel=2)
    pytest.skip(message)


def node(script: str, url: str) -> list[str]:
    """Runs a Node.js script and returns the lines it prints."""
    program, folder = shutil.which("node"), ENVIRONMENT / "clients"
    if program is None or not (folder / "node_modules").is_dir():
        missing("npm clients")
    command = [str(program), "--input-type=module", "--eval", script, url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_npm_package_libretranslate_works(served: Any) -> None:
    first, detected, page, error = node(LIBRETRANSLATE, served.url)
    assert (first, detected, page) == ("c b a", "true", "<b>b a</b>")
    assert "not found" in error


def test_the_npm_package_translate_works(served: Any) -> None:
    found = node(TRANSLATE, served.url)
    other = served.post("/translate", q="d e", source="fr", target="de")["translatedText"]
    assert found == ["c b a", other, "fr is not available as a target language from en"]


def test_the_server_survives_fuzzing_from_its_schema(served: Any, tmp_path: Path) -> None:
    """Sends a few requests of each kind; benchmarks/serve_load.py --fuzz sends more."""
    program = shutil.which("schemathesis") or shutil.which("schemathesis", path=ENVIRONMENT / "fuzz" / "bin")
    if program is None:
        missing("schemathesis")
    command = [str(program), "run", f"{served.url}/openapi.json", "--max-examples", "5", "--checks", CHECKS, "--seed", "1"]
    done = subprocess.run(
        [*command, "--request-timeout", "60", "--no-color"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    assert served.translate("a b c", model="reverse")[0]["text"] == "c b a"
