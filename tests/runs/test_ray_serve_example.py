"""`examples/ray_serve.py` serves a run on Ray Serve, and its translations are those of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers.process_group import ROOT, free_port

pytest.importorskip("ray", reason="needs Ray")
pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'ray[serve]'", exc_type=ImportError)


def ask(port: int, question: Any) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps({"q": question}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["translatedText"]


def test_answers_are_the_translations_of_the_run(reverse_run: Path, tmp_path: Path) -> None:
    texts = ["a b c", "d e f g", "g f", ""]
    expected = [each.text for each in weft.load(reverse_run, device="cpu").translate(texts)]
    port, said = free_port(), tmp_path / "said"
    command = [sys.executable, "examples/ray_serve.py", str(reverse_run), "--port", str(port)]
    env = {**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with said.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 240
        while True:
            try:
                assert ask(port, texts) == expected
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, said.read_text()
                time.sleep(0.5)
        assert ask(port, texts[0]) == expected[0]
    finally:
        process.terminate()
        process.wait(60)
