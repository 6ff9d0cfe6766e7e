"""The distribution is called weft-seq2seq, because `weft` on package indexes is another project."""

import re
import tomllib
from pathlib import Path

import weft
from weft.version import DISTRIBUTION, VERSION, install

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ADVICE = re.compile(r"pip install [^\n`]*?\bweft(?!-seq2seq)\b(?!/|_)")


def test_the_name_and_the_version_have_one_source() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION == "weft-seq2seq"
    assert PROJECT["project"]["scripts"] == {"weft": "weft.cli:main"}
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "weft.version.VERSION"}
    assert weft.__version__ == VERSION


def test_extras_of_the_project_refer_to_its_own_name() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = [need for needs in extras.values() for need in needs if need.startswith("weft")]
    assert named and all(need.startswith(f"{DISTRIBUTION}[") for need in named)
    for need in named:
        assert set(need.partition("[")[2].rstrip("]").split(",")) <= extras.keys()


def test_nobody_is_told_to_install_the_other_project() -> None:
    assert install("serve") == "pip install 'weft-seq2seq[serve]'"
    assert ADVICE.search("pip install 'weft[serve]'") and not ADVICE.search(install("serve"))
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("weft/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    assert len(files) > 100
    assert not [f"{file}: {found[0]}" for file in files if (found := ADVICE.search(file.read_text("utf-8")))]


def test_installing_torch_for_a_cpu_is_explained_before_weft() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    order = [
        text.index(words) for words in ("pip install torch --index-url", "pip install '.[plots]'", "## Train on your own data")
    ]
    assert order == sorted(order)
