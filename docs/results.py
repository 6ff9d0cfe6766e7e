"""docs/results.md from its data: a JSON file and a text for each measurement, in docs/results.

    python docs/results.py             writes the page from the data (make results)
    python docs/results.py --extract   writes the data from a page that was edited by hand, as after a merge
    python docs/results.py --figures   takes the figures of texts into their data, once they have been checked

A text has a line `<!-- table N -->` where table N of the JSON file of the same name stands. The JSON has the command and the
date of the measurement, as far as its text names them, the cells of each table as they are shown, and the figures of the text
that no table has, each with its unit. A text that states another figure is refused: a slip in either file is noticed, and
nothing gets onto the page that is not in the data. The order of the measurements is in `order.txt`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE, FOLDER = DOCS / "results.md", DOCS / "results"
ORDER = "order.txt"

HEADING = re.compile(r"#{1,3} (.+)")
RULE = re.compile(r"\|(?: ?:?-+:? ?\|)+")
PLACE = re.compile(r"<!-- table (\d+) -->")
CELL = re.compile(r"(?<!\\)\|")
COMMAND = re.compile(r"`((?:python|weft|make|torchrun) [^`]+)`")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
NO_FIGURES = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,-])(?!(?:19|20)\d\d\b)\d+(?:[.,]\d+)*")
"""A number of a text: no date, no year, no part of a name."""

UNIT = re.compile(r" ?[%×]| [^\W\d_]+")

Table = dict[str, Any]


def sections(page: str) -> Iterator[tuple[str, str]]:
    """The name and the text of each section of a page, beginning with its heading."""
    lines: list[str] = []
    seen: dict[str, int] = {}
    fenced = False
    for line in [*page.splitlines(), "# end"]:
        fenced ^= line.startswith("```")
        if not fenced and HEADING.fullmatch(line) and lines:
            title = HEADING.fullmatch(lines[0])
            slug = re.sub(r"[^a-z0-9]+", "-", (title[1] if title else "start").lower()).strip("-")[:60]
            seen[slug] = seen.get(slug, 0) + 1
            yield f"{slug}-{seen[slug]}" if seen[slug] > 1 else slug, "\n".join(lines) + "\n"
            lines = []
        lines.append(line)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in CELL.split(line.strip())[1:-1]]


def split(text: str) -> tuple[str, list[Table]]:
    """The text of a section with places for its tables, and the tables."""
    lines, found, kept = text.splitlines(), list[Table](), list[str]()
    at = 0
    while at < len(lines):
        if lines[at].startswith("|") and at + 1 < len(lines) and RULE.fullmatch(lines[at + 1]):
            end = next((row for row in range(at, len(lines)) if not lines[row].startswith("|")), len(lines))
            rows = [cells(line) for line in lines[at + 2 : end]]
            found.append({"columns": cells(lines[at]), "align": cells(lines[at + 1]), "rows": rows})
            kept.append(f"<!-- table {len(found)} -->")
            at = end
        else:
            kept.append(lines[at])
            at += 1
    return "\n".join(kept) + "\n", found


def row(values: list[str]) -> str:
    """A line of a table. An empty cell is one space, as people write it."""
    return "|" + "|".join(f" {value} " if value else " " for value in values) + "|"


def table_text(table: Table) -> str:
    rule = "|" + "|".join(table["align"]) + "|"
    return "\n".join([row(table["columns"]), rule, *(row(values) for values in table["rows"])])


def figures(prose: str) -> list[str]:
    """The numbers that a text states outside of code, each with the word after it, which usually is the unit."""
    text = " ".join(DATE.sub("", NO_FIGURES.sub(" ", prose)).split())
    found = ((number[0], UNIT.match(text, number.end())) for number in NUMBER.finditer(text))
    return [number + (unit[0] if unit else "") for number, unit in found]


def unstated(prose: str, facts: dict[str, Any]) -> list[str]:
    """The figures of a text that are not in its data."""
    cells = {number for table in facts["tables"] for line in table["rows"] for cell in line for number in NUMBER.findall(cell)}
    missing = (each for each in figures(prose) if each.split()[0].rstrip("%×") not in cells)
    return [each for each in dict.fromkeys(missing) if each not in facts["figures"]]


def with_figures(prose: str, tables: list[Table]) -> dict[str, Any]:
    """The data of a section: its tables, and what its text says."""
    command, date = COMMAND.search(prose), DATE.search(prose)
    facts = {"command": command and " ".join(command[1].split()), "date": date and date[0], "tables": tables, "figures": []}
    return {**facts, "figures": unstated(prose, facts)}


def data_text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, indent=1) + "\n"


def take_figures(folder: Path = FOLDER) -> None:
    """Takes the figures of all texts into their data."""
    for text in sorted(folder.glob("*.text")):
        file, prose = text.with_suffix(".json"), text.read_text("utf-8")
        facts = with_figures(prose, read_data(file)["tables"])
        if file.exists() or facts["figures"]:
            file.write_text(data_text(facts), "utf-8")


def read_data(file: Path) -> dict[str, Any]:
    """The data of a section; a text without figures needs none."""
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {"tables": [], "figures": []}


def extract(page: str) -> dict[str, str]:
    """The files of the data, by name."""
    files, order = {}, []
    for name, text in sections(page):
        order.append(name)
        prose, tables = split(text)
        files[f"{name}.text"] = prose
        facts = with_figures(prose, tables)
        if tables or facts["figures"]:
            files[f"{name}.json"] = data_text(facts)
    return {**files, ORDER: "".join(f"{name}\n" for name in order)}


def generate(folder: Path = FOLDER) -> str:
    """The page from the data. Raises ValueError where a text has a table or a figure of its own."""
    parts = []
    for name in (folder / ORDER).read_text("utf-8").split():
        prose, file = (folder / f"{name}.text").read_text("utf-8"), folder / f"{name}.json"
        if split(prose)[1]:
            raise ValueError(f"{folder / name}.text: a table is typed into the text; put it into {file.name}")
        facts = read_data(file)
        if typed := unstated(prose, facts):
            raise ValueError(
                f"{folder / name}.text: {', '.join(typed)}: not in {file.name}; check, then `python docs/results.py --figures`"
            )
        tables = facts["tables"]
        parts.append(PLACE.sub(lambda found, own=tables: table_text(own[int(found[1]) - 1]), prose))
    return "".join(parts)


def main() -> None:
    if "--extract" in sys.argv[1:]:
        files = extract(PAGE.read_text("utf-8"))
        FOLDER.mkdir(exist_ok=True)
        for old in FOLDER.iterdir():
            if old.name not in files:
                old.unlink()
        for name, text in files.items():
            (FOLDER / name).write_text(text, "utf-8")
    if "--figures" in sys.argv[1:]:
        take_figures()
    PAGE.write_text(generate(), "utf-8")


if __name__ == "__main__":
    main()
