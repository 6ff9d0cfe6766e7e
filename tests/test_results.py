"""docs/results.md is made from its data, and nothing in its tables is typed by hand."""

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
    assert sum(bool(each["date"]) for each in files) > 0.8 * len(files), "the others are parts of a section that says it"
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


def test_a_table_that_is_typed_into_the_text_is_refused(tmp_path: Path) -> None:
    for name, text in results.extract(PAGE).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "speed.text").write_text("## Speed\n\n| a |\n|---|\n| 1 |\n")
    with pytest.raises(ValueError, match=r"speed\.text: a table is typed into the text; put it into speed\.json"):
        results.generate(tmp_path)
    assert not re.search(r"^\|", (DOCS / "results" / "summary.text").read_text("utf-8"), re.MULTILINE)
