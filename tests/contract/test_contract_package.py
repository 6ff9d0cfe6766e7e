"""`pytest --pyargs weft.contract` checks the parts of installed packages, and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import weft

CODE = """
from weft.attention.full import FullAttention
from weft.models.frontends.base import FrameFrontend, TokenFrontend
from weft.models.rnn import RecurrentEncoder
from weft.models.pooling import MeanPooling


class GoodAttention(FullAttention):
    '''Full attention from elsewhere.'''


class LeakyAttention(FullAttention):
    '''Attends to padding as well.'''

    def init_state(self, memory=None, layout=None, **options):
        return super().init_state(memory, None, **options)


class Unbuildable(FullAttention):
    '''Fails when it is built.'''

    def __init__(self, site):
        raise RuntimeError("no such luck")
"""
PARTS = {
    "attention.good": "GoodAttention",
    "attention.leaky": "LeakyAttention",
    "attention.broken": "Unbuildable",
    "pooling.average": "MeanPooling",
    "front.letters": "TokenFrontend",
    "front.sounds": "FrameFrontend",
    "encoder.reader": "RecurrentEncoder",
    "search.mine": "GoodAttention",
}


def install(site: Path, parts: dict[str, str]) -> None:
    """Lays out a package of one module, as pip would."""
    about = site / "parts_of_ann-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parts_of_ann\nVersion: 1.0\n")
    entries = "".join(f"{name} = parts_of_ann:{part}\n" for name, part in parts.items())
    (about / "entry_points.txt").write_text(f"[weft.parts]\n{entries}")
    (site / "parts_of_ann.py").write_text(CODE)


def check_parts(tmp_path: Path, parts: dict[str, str], *options: str) -> tuple[int, str]:
    """Runs the suite in a process that sees the installed parts. Returns the exit status and the report."""
    install(tmp_path / "site", parts)
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(weft.__file__).parent.parent)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "weft.contract", "-q", "-rpfs", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return run.returncode, run.stdout + run.stderr


def test_a_good_part_passes_and_a_bad_one_fails_with_a_reason(tmp_path: Path) -> None:
    status, report = check_parts(tmp_path, PARTS, "-k", "padding or built or sounds or refused or (good and packed)")
    results = {name: result for result, name in re.findall(r"^(PASSED|FAILED) \S+\[(.*?)\]", report, re.MULTILINE)}
    assert status == 1 and all(name.startswith("parts_of_ann-") for name in results)
    failed = {name.removeprefix("parts_of_ann-") for name, result in results.items() if result == "FAILED"}
    assert {"leaky-cross-padding-content", "transformer-cross-leaky-padding", "attention.broken-built"} <= failed
    assert all("leaky" in name or name == "attention.broken-built" for name in failed)
    for name in (
        "good-cross-padding-content",
        "mixer-good-causal-packed",
        "transformer-self-good-padding",
        "convs2s-cross-good-padding",
        "average-padding",
        "composed-front-letters-padding",
        "composed-encoder-reader-padding",
    ):
        assert results[f"parts_of_ann-{name}"] == "PASSED"
    assert "junk 1000.0, weights False: Tensor-likes are not close" in report
    assert "attention.broken of parts_of_ann cannot be built: no such luck" in report
    assert "sounds reads frames; only fronts that read tokens are checked" in report


def test_without_parts_it_says_so(tmp_path: Path) -> None:
    status, report = check_parts(tmp_path, {"search.mine": "GoodAttention"})
    assert status == 0 and "1 skipped" in report
    assert "no installed package adds a part to check (attention, mixer, pooling, front, encoder, decoder)" in report
