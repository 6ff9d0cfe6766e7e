"""The notebooks run from top to bottom in a Jupyter kernel, and show what their text says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.documents import ROOT, find_name, weft_names

nbclient = pytest.importorskip("nbclient", reason="the notebooks need the extra `notebooks`")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("docs/course/*.ipynb")])


def run(name: str, folder: Path, patch: pytest.MonkeyPatch, place: str = "notebooks") -> Any:
    """A notebook of the folder `place` with its outputs, run in `folder` by the kernel of this environment."""
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "TMPDIR"):
        (folder / variable).mkdir()
        patch.setenv(variable, str(folder / variable))
    patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / place)]))
    patch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / place / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(run("own-data.ipynb", tmp_path, monkeypatch))
    assert float(re.findall(r"^exact +([\d.]+)$", text, re.MULTILINE)[0]) > 80
    assert "miru pli maruno dur sekas" in text
    assert re.search(r"^tilo ", text, re.MULTILINE) and re.search(r"^.*kaban.*$", text, re.MULTILINE)
    assert "model.safetensors" in text


def test_looking_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run("looking-inside.ipynb", tmp_path, monkeypatch)
    text = printed(notebook)
    assert float(re.findall(r"^full: (\d+) %", text, re.MULTILINE)[0]) > 80
    assert re.search(r"^s +← s ", text, re.MULTILINE)
    assert re.search(r"^\* step 0  s .*kept", text, re.MULTILINE) and "dropped  rank" in text
    assert pictures(notebook) == 2


def test_a_chapter_of_the_course_shows_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel; tests/test_course.py runs all chapters without one."""
    notebook = run("05-convolutions.ipynb", tmp_path, monkeypatch, "docs/course")
    assert "one set of ByteNet: 63 tokens" in printed(notebook)
    assert pictures(notebook) == 1


@pytest.mark.parametrize("file", NOTEBOOKS, ids=[file.stem for file in NOTEBOOKS])
def test_a_notebook_is_clean_and_its_names_exist(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "commit notebooks without outputs"
        if cell.cell_type == "code":
            for name in weft_names(cell.source):
                find_name(name)
