"""What the documents promise: commands parse, quick ones run, Python's names exist, settings are valid, links lead somewhere.

A shell block is checked line by line: `weft …` against the real command line, `make …` against the Makefile, `python FILE …`
against the file, `pip install …` against the extras. Where a command names a recipe, its `--set` options are checked too. A
line may go on after a backslash; in a `console` block only lines that begin with `$` are commands.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import tiny
from tests.helpers.documents import (
    CODE,
    DOCUMENTS,
    ROOT,
    Block,
    anchors,
    blocks,
    check_sets,
    commands,
    find_name,
    links,
    parse,
    python_source,
    unknown_arguments,
    weft_arguments,
    weft_names,
)

QUICK = re.compile(r"weft (--help|--version|list\b|new\b)")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DISTRIBUTION = "weft-seq2seq"
"""What users install; `weft` itself is another project's name on package indexes."""
BLOCKS = [block for file in DOCUMENTS for block in blocks(file.read_text("utf-8"), str(file.relative_to(ROOT)))]
COMMANDS = [(block.place, command) for block in BLOCKS for command in commands(block)]
WEFT = [(place, arguments) for place, command in COMMANDS if (arguments := weft_arguments(command)) is not None]


def named(pairs: list[tuple[str, list[str]]]) -> list[Any]:
    return [pytest.param(words, id=f"{place} {' '.join(words)}") for place, words in pairs]


@pytest.mark.parametrize("arguments", named(WEFT))
def test_a_weft_command_parses(arguments: list[str]) -> None:
    assert parse(arguments) == 0
    check_sets(arguments)


@pytest.mark.parametrize("command", named([(place, words) for place, words in COMMANDS if words[0] == "make"]))
def test_a_make_target_exists(command: list[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {word for word in command[1:] if "=" not in word and not word.startswith("-")} <= targets


@pytest.mark.parametrize("command", named([(place, words) for place, words in COMMANDS if words[0].startswith("python")]))
def test_a_script_exists_and_has_these_options(command: list[str]) -> None:
    if command[1] in ("-m", "-c"):
        return
    script = ROOT / command[1]
    known = "".join(file.read_text("utf-8") for file in (script, *script.parent.glob("*.py")))
    assert {word for word in command[2:] if word.startswith("--") and f'"{word}"' not in known} == set()


@pytest.mark.parametrize("command", named([(place, words) for place, words in COMMANDS if "install" in words[:4]]))
def test_what_is_installed_exists(command: list[str]) -> None:
    if "pip" not in command[0] and "pip" not in command[1:3]:
        return
    wanted = [word for word in command[command.index("install") + 1 :] if not word.startswith(("-", "http"))]
    for word in wanted:
        name, _, extras = word.rstrip("]").partition("[")
        assert name != "weft", f"{word}: the distribution is {DISTRIBUTION}"
        if name in (".", DISTRIBUTION):
            assert set(filter(None, extras.split(","))) <= set(PROJECT["optional-dependencies"])


def test_the_extras_are_those_of_the_project() -> None:
    """In README.md, in the table of docs/start.md, and in `weft doctor`, which leaves out those for developers."""
    from weft.bench.doctor import EXTRAS

    extras = set(PROJECT["optional-dependencies"])
    table = re.findall(r"^\| (`.*`) \|", (ROOT / "docs" / "start.md").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(table))) == extras
    readme = (ROOT / "README.md").read_text("utf-8").split("## Install")[1].split("\n## ")[0]
    assert extras <= set(re.findall(r"`(\w+)`", readme))
    assert set(EXTRAS) == extras - {"contract", "docs", "notebooks", "dev"}
    named = {extra for file in DOCUMENTS for extra in re.findall(r"weft-seq2seq\[(\w+)\]", file.read_text("utf-8"))}
    assert named <= extras


PYTHON = [pytest.param(block, id=block.place) for block in BLOCKS if block.language in ("python", "py")]
YAML = [pytest.param(block, id=block.place) for block in BLOCKS if block.language in ("yaml", "yml")]


@pytest.mark.parametrize("block", PYTHON)
def test_python_compiles_and_its_names_exist(block: Block) -> None:
    source = python_source(block)
    compile(source, block.place, "exec")
    for name in weft_names(source):
        find_name(name)
    assert list(unknown_arguments(source)) == []


@pytest.mark.parametrize("block", YAML)
def test_a_configuration_is_valid(block: Block) -> None:
    from weft.config import yaml_document
    from weft.config.sections import Config

    if Config.model_fields.keys() & yaml.safe_load(block.text).keys():
        Config.model_validate(yaml_document.read(block.text, block.place).data)


@pytest.mark.parametrize("file", DOCUMENTS, ids=[str(file.relative_to(ROOT)) for file in DOCUMENTS])
def test_names_and_files_in_the_text_exist(file: Path) -> None:
    words = re.findall(r"`([^`\n]+)`", CODE.sub("", file.read_text("utf-8")))
    for word in words:
        if re.fullmatch(r"(weft\.\w+\.\w+|weft_studies\.\w+)[\w.]*", word):
            find_name(word)
        if re.fullmatch(r"(weft|weft_contract|weft_studies|tests|docs|benchmarks|notebooks)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"`{word}` does not exist"


@pytest.mark.parametrize("file", DOCUMENTS, ids=[str(file.relative_to(ROOT)) for file in DOCUMENTS])
def test_links_lead_somewhere(file: Path) -> None:
    for link in links(file.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{link} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text("utf-8")), f"there is no heading for {link}"


QUICK_COMMANDS = [("always", ["list"]), ("always", ["train", "--help"])]
QUICK_COMMANDS += [(place, words) for place, words in WEFT if QUICK.match(" ".join(["weft", *words]))]


@pytest.mark.parametrize("arguments", named(QUICK_COMMANDS))
def test_a_quick_command_runs(arguments: list[str], weft: tiny.Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert weft(*arguments).strip()


def test_the_program_runs(tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from weft.cli import main; main()"]
    done = subprocess.run([*program, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


EXAMPLE = """
# A title, with `code`

```sh
# a comment
OMP_NUM_THREADS=1 weft train small --set a.b=1 \\
    --out runs/x   # and another
cat in.txt | weft translate runs/x > out.txt && make demo PYTHON=python3.12
torchrun --nproc_per_node 2 -m weft train small
```
  ```console
  $ weft list
  attentions: weft nothing
  ```
[here](docs/x.md#part) ![picture](a.png) `[not](b.md)` <img src="c.png">
"""


def test_commands_are_found_in_a_document() -> None:
    found = [command for block in blocks(EXAMPLE, "x.md") for command in commands(block)]
    assert found == [
        ["weft", "train", "small", "--set", "a.b=1", "--out", "runs/x"],
        ["cat", "in.txt"],
        ["weft", "translate", "runs/x"],
        ["make", "demo", "PYTHON=python3.12"],
        ["torchrun", "--nproc_per_node", "2", "-m", "weft", "train", "small"],
        ["weft", "list"],
    ]
    assert weft_arguments(found[4]) == ["train", "small"]
    assert weft_arguments(found[1]) is None
    assert [block.place for block in blocks(EXAMPLE, "x.md")] == ["x.md:5", "x.md:12"]


def test_links_and_anchors_are_found_in_a_document() -> None:
    assert links(EXAMPLE) == ["docs/x.md#part", "a.png", "c.png"]
    assert anchors(EXAMPLE) == {"a-title-with-code"}
    assert anchors("# One\n## One\n## Two\n") == {"one", "one-1", "two"}


def test_names_of_python_code_are_found() -> None:
    source = "import weft\nfrom weft.errors import DataError\nweft.load('runs/x', divice='cpu').translate(weft.train)\n"
    assert set(weft_names(source)) == {
        "weft",
        "weft.errors.DataError",
        "weft.load",
        "weft.train",
    }
    assert list(unknown_arguments(source)) == ["weft.load(divice=)"]
    with pytest.raises((ImportError, AttributeError)):
        find_name("weft.loda")
    with pytest.raises((ImportError, AttributeError)):
        find_name("weft.explain.html_page.pages")


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--no-such-flag"], ["translate"], ["list", "a", "b", "c"]])
def test_a_wrong_command_does_not_parse(arguments: list[str]) -> None:
    assert parse(arguments) == 2


@pytest.mark.parametrize("arguments", [["list"], ["train", "x.yaml", "--set", "a.b=1", "c.d=2"], ["translate", "runs/x"]])
def test_a_right_command_parses(arguments: list[str]) -> None:
    assert parse(arguments) == 0


def test_every_page_is_listed() -> None:
    """In the README, in the list of the site's first page, and in its table of contents."""
    readme, index = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/index.md"))
    for page in (ROOT / "docs").glob("*.md"):
        if page.stem in ("index", "contributing", "changelog", "api"):
            continue
        assert f"](docs/{page.name})" in readme, f"README.md does not list {page.name}"
        assert f"]({page.name})" in index, f"docs/index.md does not list {page.name}"


def test_the_architecture_page_names_files_that_exist_and_walks_past_each_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walk, table = page.split("## A walk for newcomers")[1].split("## Where things are")
    stops = re.findall(r"^\d+\. `(weft/[\w/]+\.py)`", walk, re.MULTILINE)
    assert len(stops) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) == len(set(stops))
    assert len(re.findall(r"^\| .*`weft/.* \|$", table, re.MULTILINE)) >= 50
    known = [
        f"/{file.relative_to(ROOT)}"
        for folder in ("weft", "weft_contract", "tests", "deploy", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in known)] == []


def test_the_tree_of_the_architecture_page_has_each_room_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = page.split("## The tree")[1].split("```")[1]
    found = [("weft/" if indent else "") + name for indent, name in re.findall(r"^(  )?([\w.]+/?)\s", tree, re.MULTILINE)]
    packages = [each.parent for each in ROOT.glob("weft*/__init__.py")] + [
        each.parent for each in ROOT.glob("weft/*/__init__.py")
    ]
    assert [name for name in found if found.count(name) > 1 or not (ROOT / name).exists()] == []
    assert [room.name for room in packages if f"{room.relative_to(ROOT)}/" not in found] == []


TABLES = [pytest.param(file, id=str(file.relative_to(ROOT))) for file in DOCUMENTS]


@pytest.mark.parametrize("file", TABLES)
def test_no_table_has_a_row_twice(file: Path) -> None:
    text = CODE.sub("", file.read_text("utf-8"))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()[2:]
        assert [row for row in rows if rows.count(row) > 1] == []


RESULTS = CODE.sub("", (ROOT / "docs" / "results.md").read_text("utf-8"))
MEASURED = sorted({" ".join(span.split()) for span in re.findall(r"`((?:[A-Z_]+=\S+ )?python benchmarks/[^`]+)`", RESULTS)})


def _imported(script: Path) -> list[Path]:
    """The scripts beside a script that it imports names from."""
    names = re.findall(r"^from (\w+) import", script.read_text("utf-8"), re.MULTILINE)
    return [file for name in names if name != "trainings" and (file := script.with_name(f"{name}.py")).exists()]


@pytest.mark.parametrize("command", MEASURED)
def test_a_command_of_the_results_has_its_script_its_options_and_its_systems(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(re.sub(r"^[A-Z_]+=\S+ |[\[\]]", "", command))
    words = words[: words.index("--")] if "--" in words else words  # what follows is the command of another program
    script = ROOT / words[1]
    text, shared = script.read_text("utf-8"), (ROOT / "benchmarks" / "trainings.py").read_text("utf-8")
    known = "".join([text, *(file.read_text("utf-8") for file in _imported(script))])
    known += shared if "add_options" in known else ""
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in known] == []
    if "--only" in words:
        systems = words[words.index("--only") + 1].replace("/", ",").split(",")
        unknown = [name for name in systems if f'"{name}"' not in text]
        monkeypatch.syspath_prepend(str(script.parent))
        tables = vars(importlib.import_module(script.stem)).values() if unknown else ()
        assert [name for name in unknown if not any(isinstance(table, dict) and name in table for table in tables)] == []
