"""docs/results.md is made from its data: no table and no figure of its texts is typed by hand."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("docs_results", DOCS / "results.py")
assert spec is not None and spec.loader is not None
results = importlib.util.module_from_spec(spec)
sys.modules["docs_results"] = results
spec.loader.exec_module(results)

PAGE = """# Results

Words.

## Speed

`python bench.py a
b` · 2026-11-19 · a \\| b

| | ms |
|---|---:|
| weft | 1 |
|  | `a \\| b` |

After.

```
# no heading
| no | table |
```

### Speed

| x |
| --- |
| 2 |
"""


def test_the_page_is_what_the_data_say() -> None:
    found = results.generate()
    assert found == (DOCS / "results.md").read_text("utf-8"), (
        "docs/results.md differs from its data: after an edit of the page by hand run `python docs/results.py --extract`, "
        "after an edit of the data `make results`"
    )


def test_every_file_of_the_data_is_on_the_page_and_tells_when_it_was_measured() -> None:
    names = (DOCS / "results" / "order.txt").read_text().split()
    assert {each.stem for each in (DOCS / "results").iterdir()} == {*names, "order"}
    files = [json.loads(file.read_text("utf-8")) for file in (DOCS / "results").glob("*.json")]
    with_tables = [each for each in files if each["tables"]]
    assert sum(bool(each["date"]) for each in with_tables) > 0.8 * len(with_tables), "others are parts of a section"
    assert all(len(row) == len(table["columns"]) for each in files for table in each["tables"] for row in table["rows"])


def test_a_page_is_taken_apart_and_put_together(tmp_path: Path) -> None:
    files = results.extract(PAGE)
    assert files["order.txt"].split() == ["results", "speed", "speed-2"]
    data = json.loads(files["speed.json"])
    assert (data["command"], data["date"]) == ("python bench.py a b", "2026-11-19")
    assert data["tables"][0]["rows"] == [["weft", "1"], ["", "`a \\| b`"]]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert results.generate(tmp_path) == PAGE.replace("|  |", "| |").replace("| --- |", "|---|")
    data["tables"][0]["rows"][0][1] = "2"
    (tmp_path / "speed.json").write_text(json.dumps(data))
    assert "| weft | 2 |" in results.generate(tmp_path)


@pytest.mark.parametrize(("typed", "found"), [("12.7 ms", "12.7 ms"), ("8 ms", "8 ms"), ("9 s", "9 s"), ("30 %", "30 %")])
def test_a_figure_that_is_typed_into_the_text_is_refused(tmp_path: Path, typed: str, found: str) -> None:
    page = PAGE.replace("After.", "After 9 ms of 2026-11-19, as in 2017 with `beam 5`, [there](p-3.md), H200: 30 s, not 1.")
    files = results.extract(page)
    assert json.loads(files["speed.json"])["figures"] == ["9 ms", "30 s"], "the table has the 1"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    results.generate(tmp_path)
    text = tmp_path / "speed.text"
    text.write_text(text.read_text().replace("After", f"After {typed} and"))
    with pytest.raises(ValueError, match=rf"speed\.text: {found}: not in speed\.json"):
        results.generate(tmp_path)
    results.take_figures(tmp_path)
    assert f"After {typed} and 9 ms" in results.generate(tmp_path)


def test_a_table_that_is_typed_into_the_text_is_refused(tmp_path: Path) -> None:
    for name, text in results.extract(PAGE).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "speed.text").write_text("## Speed\n\n| a |\n|---|\n| 1 |\n")
    with pytest.raises(ValueError, match=r"speed\.text: a table is typed into the text; put it into speed\.json"):
        results.generate(tmp_path)
    assert not re.search(r"^\|", (DOCS / "results" / "summary.text").read_text("utf-8"), re.MULTILINE)
