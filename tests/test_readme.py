"""What the documents promise: their commands parse, the quick ones run, their code compiles, their links lead somewhere.

A shell block is checked line by line: `weft …` against the real command line, `make …` against the Makefile. Where a
command names a recipe, its `--set` options are checked too. A line may go on after a backslash; in a `console` block only
lines that begin with `$` are commands.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
QUICK = re.compile(r"weft (--help|--version|list\b|new\b)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    place: str
    language: str
    text: str


def blocks(text: str, name: str) -> Iterator[Block]:
    """The fenced blocks of a markdown text, with `name:line` of their first line."""
    for found in re.finditer(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        line = text[: found.start(3)].count("\n") + 1
        lines = [row.removeprefix(found[1]) for row in found[3].split("\n")]
        yield Block(f"{name}:{line}", found[2], "\n".join(lines))


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block as words, without comments, pipes, redirections and settings of variables."""
    if block.language not in ("sh", "bash", "shell", "console"):
        return
    for line in block.text.replace("\\\n", " ").split("\n"):
        if block.language == "console" and not line.startswith("$ "):
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        yield from _split(list(lexer))


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    skip = False
    for word in [*words, ";"]:
        if set(word) <= set("|&;"):
            if command:
                yield command
            command = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif command or not re.fullmatch(r"\w+=.*", word):
            command.append(word)


def weft_arguments(command: list[str]) -> list[str] | None:
    """The arguments of a call of weft, also through `python -m` or torchrun; None for another command."""
    if Path(command[0]).name == "weft":
        return command[1:]
    for place, word in enumerate(command[:-1]):
        if word == "-m" and command[place + 1] in ("weft", "weft.cli"):
            return command[place + 2 :]
    return None


def links(text: str) -> list[str]:
    """Where the links and pictures of a markdown text point, code left out."""
    plain = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return re.findall(r"\]\(<?([^)>\s]+)>?[^)]*\)", plain) + re.findall(r"(?:src|href)=\"([^\"]+)\"", plain)


def slug(heading: str) -> str:
    """The name a heading gets as the target of a link."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)}


def parse(arguments: list[str]) -> int:
    """The exit status of a command line that is parsed as strictly as when it is run, but runs nothing."""
    import typer

    from weft.cli import app, spread_sets

    command: Any = typer.main.get_command(app)
    for item in (command, *command.commands.values()):
        item.callback = None
    with pytest.raises(SystemExit) as end:
        command.main(spread_sets(arguments), prog_name="weft")
    return int(end.value.code or 0)


def check_sets(arguments: list[str]) -> None:
    """Checks the `--set` options of a command that names a recipe. Raises ConfigError."""
    from weft.cli import spread_sets
    from weft.config.sections import load_config, recipes

    spread = spread_sets(arguments)
    sets = [value for word, value in pairwise(spread) if word == "--set"]
    for recipe in set(spread) & set(recipes()):
        load_config(recipe, sets)


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


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in BLOCKS if block.language in ("python", "py")]
)
def test_python_compiles(block: Block) -> None:
    from doctest import DocTestParser

    examples = DocTestParser().get_examples(block.text)
    compile("".join(example.source for example in examples) or block.text, block.place, "exec")


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in BLOCKS if block.language in ("yaml", "yml")]
)
def test_a_configuration_is_valid(block: Block) -> None:
    from weft.config.sections import Config, document

    Config.model_validate(document.read(block.text, block.place).data)


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


QUICK_COMMANDS = [("always", ["--help"]), ("always", ["list"]), ("always", ["train", "--help"])]
QUICK_COMMANDS += [(place, words) for place, words in WEFT if QUICK.match(" ".join(["weft", *words]))]


@pytest.mark.parametrize("arguments", named(QUICK_COMMANDS))
def test_a_quick_command_runs(arguments: list[str], tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from weft.cli import main; main()"]
    done = subprocess.run([*program, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
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


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--no-such-flag"], ["translate"], ["list", "a", "b", "c"]])
def test_a_wrong_command_does_not_parse(arguments: list[str]) -> None:
    assert parse(arguments) == 2


@pytest.mark.parametrize("arguments", [["list"], ["train", "x.yaml", "--set", "a.b=1", "c.d=2"], ["translate", "runs/x"]])
def test_a_right_command_parses(arguments: list[str]) -> None:
    assert parse(arguments) == 0
